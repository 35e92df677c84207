// The product of two matrices of 8-bit codes: four products an instruction (dp4a), added up in int32, scaled in float32.
//
//   out = (x_scale scale) (x q) + bias
//
// x (N, C), q (C, M), out (N, M); scale (M) or one number, x_scale (N) or one number (their steps 1 or 0); bias (M), or null. One
// block computes 32 x 32 of out; x and q pass through shared memory in tiles of 64 along C, four codes a word, so that q stands there
// transposed. C up to 131,071, whose sums int32 holds whatever the codes.
// grid (ceil(M / 32), ceil(N / 32))   block (256)   shared 4,352 bytes, static   budget: 48 registers, 0 spills
// instances: matmul_int8<float|__half|__nv_bfloat16>
// Source: Jacob et al. 2018 (arXiv 1712.05877), section 2.2; one scale a row and a column: Dettmers et al. 2022 (arXiv 2208.07339).
#include "common.cuh"

constexpr int TILE = 32, WORDS = 16, THREADS = 256, OWN = TILE * TILE / THREADS;

// Four codes of a matrix, `step` apart, from row or column c on, as one word; 0 past the end.
__device__ __forceinline__ int four_codes(const signed char* codes, long long step, int c, int C) {
  unsigned word = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) word |= (c + i < C ? (unsigned)(unsigned char)codes[(c + i) * step] : 0u) << 8 * i;
  return (int)word;
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
matmul_int8(const signed char* __restrict__ x, const signed char* __restrict__ q, const T* __restrict__ scale,
            const T* __restrict__ x_scale, const T* __restrict__ bias, T* __restrict__ out, int N, int C, int M, int scale_step,
            int x_scale_step) {
  __shared__ int x_tile[TILE][WORDS + 1], q_tile[TILE][WORDS + 1];
  const long long m0 = (long long)blockIdx.x * TILE, n0 = (long long)blockIdx.y * TILE;
  const int column = threadIdx.x % TILE, row = threadIdx.x / TILE;
  int total[OWN] = {};
  for (int c0 = 0; c0 < C; c0 += 4 * WORDS) {
    for (int at = threadIdx.x; at < TILE * WORDS; at += THREADS) {
      const int r = at / WORDS, w = at % WORDS;
      x_tile[r][w] = n0 + r < N ? four_codes(x + (n0 + r) * C, 1, c0 + 4 * w, C) : 0;
      const int m = at % TILE, v = at / TILE;         // neighbouring threads read neighbouring columns
      q_tile[m][v] = m0 + m < M ? four_codes(q + m0 + m, M, c0 + 4 * v, C) : 0;
    }
    __syncthreads();
    for (int w = 0; w < WORDS; ++w) {
      const int theirs = q_tile[column][w];
#pragma unroll
      for (int i = 0; i < OWN; ++i) total[i] = __dp4a(x_tile[row + i * (THREADS / TILE)][w], theirs, total[i]);
    }
    __syncthreads();
  }
  const long long m = m0 + column;
  if (m >= M) return;
#pragma unroll
  for (int i = 0; i < OWN; ++i) {
    const long long n = n0 + row + i * (THREADS / TILE);
    if (n >= N) break;
    const float product = widen(x_scale[n * x_scale_step]) * widen(scale[m * scale_step]) * (float)total[i];
    narrow(bias == nullptr ? product : product + widen(bias[m]), &out[n * M + m]);
  }
}
