// Symmetric and affine codes with one scale for all of a tensor, for each index of an axis, or for each run of the last axis.
//
//   symmetric   s = max |x| / high,                     z = 0,                      q = clip(rint(x / s), low, high)
//   affine      s = (max(x, 0) - min(x, 0)) / high,     z = rint(-min(x, 0) / s),   q = clip(rint(x / s) + z, low, high)
//
// What shares a scale is a block: index b of the middle axis of (before, n, behind); or, where group > 0, one of the runs of that
// length in rows of n, the last of a row may be short. sizes (blocks, 2), zeros at first: the bits of max(x, 0) and of -min(x, 0),
// which order as the numbers do, NaN and infinities above all others; shares of a block arrive there in any order. A block of zeros
// has scale 1. given_scale and given_zero (blocks) may be null.
// grid (blocks, shares)   block (256)   shared none   budget: 48 registers, 0 spills
// instances: extremes<float|__half|__nv_bfloat16>, quantize<float|__half|__nv_bfloat16, signed char|unsigned char|int>
// Source: Jacob et al. 2018 (arXiv 1712.05877), section 2.1.
#include "common.cuh"

constexpr int THREADS = 256;

// Number j of a block lies at first + j / run * step + j % run.
struct Block {
  long long first, run, step, count;
};

__device__ __forceinline__ Block block_of(long long b, long long before, long long n, long long behind, long long group) {
  if (group == 0) return {b * behind, behind, n * behind, before * behind};
  const long long runs = (n + group - 1) / group, start = b % runs * group, count = min(group, n - start);
  return {b / runs * n + start, count, 0, count};
}

__device__ __forceinline__ long long place_of(const Block& block, long long j) {
  return block.first + j / block.run * block.step + j % block.run;
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
extremes(const T* __restrict__ x, unsigned* __restrict__ sizes, long long before, long long n, long long behind, long long group) {
  const Block block = block_of(blockIdx.x, before, n, behind, group);
  unsigned most = 0, least = 0;
  for (long long j = blockIdx.y * THREADS + threadIdx.x; j < block.count; j += (long long)gridDim.y * THREADS) {
    const float own = widen(x[place_of(block, j)]);
    const unsigned size = __float_as_uint(fabsf(own));
    if (own < 0.f) least = max(least, size);
    else most = max(most, size);                      // a NaN is not below 0 either
  }
  most = __reduce_max_sync(FULL_WARP, most), least = __reduce_max_sync(FULL_WARP, least);
  if (threadIdx.x % 32 == 0) {
    atomicMax(&sizes[2ll * blockIdx.x], most);
    atomicMax(&sizes[2ll * blockIdx.x + 1], least);
  }
}

template <typename T, typename Code>
__global__ void __launch_bounds__(THREADS)
quantize(const T* __restrict__ x, const unsigned* __restrict__ sizes, const float* __restrict__ given_scale,
         const long long* __restrict__ given_zero, Code* __restrict__ q, float* __restrict__ scale, long long* __restrict__ zero,
         long long before, long long n, long long behind, long long group, float low, float high, bool symmetric) {
  const long long b = blockIdx.x;
  const Block block = block_of(b, before, n, behind, group);
  const float most = __uint_as_float(sizes[2 * b]), least = __uint_as_float(sizes[2 * b + 1]);
  // In double: the span of two float32 may overflow, and the scale has one rounding instead of two.
  float s = (float)((symmetric ? (double)fmaxf(most, least) : (double)most + least) / high);
  s = given_scale != nullptr ? given_scale[b] : s == 0.f ? 1.f : s;
  const float own_zero = symmetric ? 0.f : fminf(rintf(least / s), high);
  const float z = given_zero != nullptr ? (float)given_zero[b] : own_zero;
  if (blockIdx.y == 0 && threadIdx.x == 0) scale[b] = s, zero[b] = (long long)z;
  for (long long j = blockIdx.y * THREADS + threadIdx.x; j < block.count; j += (long long)gridDim.y * THREADS) {
    const long long at = place_of(block, j);
    q[at] = (Code)fminf(fmaxf(rintf(widen(x[at]) / s) + z, low), high);
  }
}
