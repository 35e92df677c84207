// Two of every four weights: the mask of the two largest magnitudes, and the packed form of what a mask keeps.
//
//   prune_2_4   mask[i] = fewer than two of its four come before it: the larger, and of equals those of lower index
//   pack_2_4    values: the kept of each four in their order, then zeros; places: where they stood, 2 bits each, in rising order
//
// prune_2_4: w, mask (rows, n, behind), fours along the middle axis, a short last one by itself. pack_2_4: fours of w and mask one
// after another, values (2 fours), places (fours). bad (1), 0 at first, becomes 1 for a NaN or an infinity among the weights, or for
// a mask that keeps more than two of a four.
// grid (ceil(fours / 256))   block (256)   shared none   budget: 40 registers, 0 spills
// instances: prune_2_4<float|__half|__nv_bfloat16>, pack_2_4<float|__half|__nv_bfloat16>
// Source: Mishra et al. 2021 (arXiv 2104.08378), section 2 and figure 2.
#include "common.cuh"

constexpr int THREADS = 256;

template <typename T>
__global__ void __launch_bounds__(THREADS)
prune_2_4(const T* __restrict__ w, bool* __restrict__ mask, int* __restrict__ bad, long long fours, long long n, long long behind) {
  const long long four = (long long)blockIdx.x * THREADS + threadIdx.x, groups = (n + 3) / 4;
  if (four >= fours) return;
  const long long row = four / behind / groups, start = four / behind % groups * 4;
  const long long first = (row * n + start) * behind + four % behind;
  float size[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    size[i] = start + i < n ? fabsf(widen(w[first + i * behind])) : -1.f;       // what is not there comes last
    if (!(size[i] < CUDART_INF_F)) atomicOr(bad, 1);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    int before = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) before += size[j] > size[i] || (j < i && size[j] == size[i]);
    if (start + i < n) mask[first + i * behind] = before < 2;
  }
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
pack_2_4(const T* __restrict__ w, const bool* __restrict__ mask, T* __restrict__ values, unsigned char* __restrict__ places,
         int* __restrict__ bad, long long fours) {
  const long long four = (long long)blockIdx.x * THREADS + threadIdx.x;
  if (four >= fours) return;
  int kept = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) kept |= mask[4 * four + i] << i;
  if (__popc(kept) > 2) atomicOr(bad, 1);
  int chosen = kept;                                  // filled up with free places, the lowest first
#pragma unroll
  for (int i = 0; i < 4; ++i) chosen |= __popc(chosen) < 2 ? 1 << i : 0;
  const int first = __ffs(chosen) - 1, second = __ffs(chosen & (chosen - 1)) - 1;
  const T zero = T(0.f);
  values[2 * four] = kept >> first & 1 ? w[4 * four + first] : zero;
  values[2 * four + 1] = kept >> second & 1 ? w[4 * four + second] : zero;
  places[four] = (unsigned char)(first | second << 2);
}
