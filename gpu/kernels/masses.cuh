// Weights as whole numbers, so that their sums are exact and the same in every order of the threads; and where such a sum is reached.
#pragma once
#include "common.cuh"

using Mass = unsigned long long;
constexpr Mass NO_MASS = ~0ull;                       // of what is no weight: NaN, negative, infinite

// w 2^shift, rounded down. The host chooses shift so that V of them stay below 2^62.
__device__ __forceinline__ Mass mass_of(float w, int shift) { return (Mass)ldexpf(w, shift); }

__device__ __forceinline__ Mass warp_total(Mass x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(FULL_WARP, x, step);
  return x;
}

// The sum of the lanes up to and with this one.
__device__ __forceinline__ Mass warp_prefix(Mass x, int lane) {
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const Mass other = __shfl_up_sync(FULL_WARP, x, step);
    if (lane >= step) x += other;
  }
  return x;
}

// The largest of a block's numbers, in every thread.
template <int WARPS>
__device__ __forceinline__ float block_max(float x, float* maxima, int lane, int warp) {
  x = warp_max(x);
  if (lane == 0) maxima[warp] = x;
  __syncthreads();
  for (int w = 0; w < WARPS; ++w) x = fmaxf(x, maxima[w]);
  return x;
}

// Each warp owns a share of 0 .. V - 1, side by side; what the weights of the shares before, of its own and of all come to.
struct Sums {
  Mass before, own, all;                              // all = NO_MASS where one of the weights is none
  int from, stop;
};

template <int WARPS, typename Weight>
__device__ __forceinline__ Sums sums_of(int V, Mass* totals, int lane, int warp, Weight weight) {
  const int share = (V + WARPS - 1) / WARPS;
  Sums sums = {0, 0, 0, warp * share, min(V, (warp + 1) * share)};
  bool none = false;
  for (int i = sums.from + lane; i < sums.stop; i += 32) {
    const Mass w = weight(i);
    none |= w == NO_MASS;
    sums.own += w == NO_MASS ? 0 : w;
  }
  sums.own = warp_total(sums.own);
  if (__any_sync(FULL_WARP, none)) sums.own = NO_MASS;
  __syncthreads();                                    // the totals of an earlier call have been read
  if (lane == 0) totals[warp] = sums.own;
  __syncthreads();
  for (int w = 0; w < WARPS; ++w) {
    const Mass total = totals[w];
    if (w < warp) sums.before += total;
    sums.all = sums.all == NO_MASS || total == NO_MASS ? NO_MASS : sums.all + total;
  }
  return sums;
}

// The first i with target < w_0 + … + w_i, in every thread: target lies below the sum of all, so that i has a weight above 0.
template <typename Weight>
__device__ __forceinline__ int first_past(const Sums& sums, Mass target, int* found, int lane, Weight weight) {
  if (sums.before <= target && target - sums.before < sums.own) {
    Mass sum = sums.before;
    for (int i0 = sums.from; i0 < sums.stop; i0 += 32) {
      const Mass prefix = warp_prefix(i0 + lane < sums.stop ? weight(i0 + lane) : 0, lane);
      const unsigned past = __ballot_sync(FULL_WARP, target < sum + prefix);
      if (past != 0) {
        if (lane == 0) *found = i0 + __ffs(past) - 1;
        break;
      }
      sum += __shfl_sync(FULL_WARP, prefix, 31);
    }
  }
  __syncthreads();
  return *found;
}

// The token that u stands for, the first i with u S < w_0 + … + w_i; S > 0 is the sum of all.
template <typename Weight>
__device__ __forceinline__ int drawn(const Sums& sums, double u, int* found, int lane, Weight weight) {
  return first_past(sums, min((Mass)(u * (double)sums.all), sums.all - 1), found, lane, weight);
}
