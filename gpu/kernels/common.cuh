// Number formats, reductions over a warp, and rows of matrices: what every kernel here needs. Attention's own part: attention.cuh.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math_constants.h>

constexpr unsigned FULL_WARP = 0xffffffffu;

// Every 16-bit number is a float32 exactly; narrow rounds to the nearest, ties to even.
__device__ __forceinline__ float widen(float x) { return x; }
__device__ __forceinline__ float widen(__half x) { return __half2float(x); }
__device__ __forceinline__ float widen(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ void narrow(float x, float* to) { *to = x; }
__device__ __forceinline__ void narrow(float x, __half* to) { *to = __float2half_rn(x); }
__device__ __forceinline__ void narrow(float x, __nv_bfloat16* to) { *to = __float2bfloat16_rn(x); }

// The largest of 32 lanes, in every lane; a NaN is passed over, since whoever weighs it with exp gets NaN anyway.
__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(FULL_WARP, x, step));
  return x;
}

// The sum of 32 lanes, in every lane, always added in the same order.
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(FULL_WARP, x, step);
  return x;
}

// e^(x - m), and 1 for a part of weight e^m beside a whole that has seen nothing either (m = x = -inf).
__device__ __forceinline__ float rescaling(float x, float m) { return m == -CUDART_INF_F ? 1.f : expf(x - m); }

// ln of the sum l e^m; +inf among what was summed makes it NaN.
__device__ __forceinline__ float log_of_sum(float m, float l) { return (m == CUDART_INF_F ? CUDART_NAN_F : m) + logf(l); }

// Where the rows of one head of one sequence lie: row i starts at element first + i * step.
struct Rows {
  long long first, step;
};

// (B, H, L, C) where there are no offsets; else (T, H, C) with the sequence's rows from offsets[b] on.
__device__ __forceinline__ Rows rows_of(const int* offsets, int b, int h, int H, int L, int C) {
  if (offsets == nullptr) return {((long long)b * H + h) * L * C, C};
  return {((long long)offsets[b] * H + h) * C, (long long)H * C};
}

// The same for one number a row: (B, H, L), or (H, T) with T = L.
__device__ __forceinline__ long long scalars_of(const int* offsets, int b, int h, int H, int L) {
  return offsets == nullptr ? ((long long)b * H + h) * L : (long long)h * L + offsets[b];
}

// Which row of out goes with a row of lse: the same where batched, (T, H) for (H, T) where packed.
__device__ __forceinline__ long long out_row(long long lse_row, int H, int L, int packed) {
  return packed ? lse_row % L * H + lse_row / L : lse_row;
}

// Rows i0 .. i0 + ROWS - 1 into shared memory as float32, leading dimension `ld`; 0 past `stop` and from column `columns` to C.
template <int ROWS, int C, int THREADS, typename T>
__device__ __forceinline__ void load_tile(float* tile, int ld, const T* matrix, Rows rows, int i0, int stop, int columns, int thread) {
  for (int at = thread; at < ROWS * C; at += THREADS) {
    const int r = at / C, c = at % C;
    tile[r * ld + c] = i0 + r < stop && c < columns ? widen(matrix[rows.first + (i0 + r) * rows.step + c]) : 0.f;
  }
}
