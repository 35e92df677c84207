// c = a b^T on tensor cores: bfloat16 in, float32 accumulation and output; a block of 4 warps makes a 64 x 64 tile of c.
//
//   c[i, j] = sum_k a[i, k] b[j, k]
//
// a (M, K), b (N, K), c (M, N); any M and N, K a multiple of 8 (rows are copied 16 bytes at a time).
// Two stages of shared memory: while one is multiplied, cp.async fills the other. A warp takes 16 rows: ldmatrix, then
// mma.sync m16n8k16 for each pair of 8 columns. Rows are padded by 8 elements, so that ldmatrix meets no bank conflict.
// grid (ceil(N / 64), ceil(M / 64))   block (128)   shared 4 * 64 * (BK + 8) * 2 bytes: 20 KB at BK = 32
// budget: 128 registers, 0 spills
// instances: matmul_bf16<32>
// Source: PTX ISA, mma.m16n8k16 and ldmatrix; the tiling is that of any CUTLASS tutorial.
#include "common.cuh"
#include "ptx.cuh"

constexpr int TILE = 64;

template <int BK>
__global__ void __launch_bounds__(128)
matmul_bf16(const __nv_bfloat16* __restrict__ a, const __nv_bfloat16* __restrict__ b, float* __restrict__ c, int M, int N, int K) {
  constexpr int LD = BK + 8;
  extern __shared__ __align__(16) __nv_bfloat16 stages[];
  __nv_bfloat16* sA = stages;                         // [2][TILE][LD]
  __nv_bfloat16* sB = sA + 2 * TILE * LD;             // [2][TILE][LD]
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, m0 = blockIdx.y * TILE, n0 = blockIdx.x * TILE;
  auto fill = [&](int stage, int k0) {
    for (int at = thread; at < TILE * BK / 8; at += 128) {
      const int r = at / (BK / 8), k = at % (BK / 8) * 8, to = (stage * TILE + r) * LD + k;
      const bool in_a = m0 + r < M && k0 + k < K, in_b = n0 + r < N && k0 + k < K;     // outside: zeros
      ptx::cp_async_16(sA + to, in_a ? a + (long long)(m0 + r) * K + k0 + k : a, in_a);
      ptx::cp_async_16(sB + to, in_b ? b + (long long)(n0 + r) * K + k0 + k : b, in_b);
    }
    ptx::cp_async_commit();
  };
  float sums[TILE / 8][4] = {};
  fill(0, 0);
  for (int k0 = 0, stage = 0; k0 < K; k0 += BK, stage ^= 1) {
    if (k0 + BK < K) {
      fill(stage ^ 1, k0 + BK);
      ptx::cp_async_wait<1>();                        // the group before the one just sent off
    } else {
      ptx::cp_async_wait<0>();
    }
    __syncthreads();                                  // what every thread copied is there
#pragma unroll
    for (int k = 0; k < BK; k += 16) {
      unsigned rows[4];
      ptx::ldmatrix_x4(rows, sA + (stage * TILE + warp * 16 + lane % 16) * LD + k + lane / 16 * 8);
#pragma unroll
      for (int n = 0; n < TILE / 8; n += 2) {
        unsigned pair[4];
        ptx::ldmatrix_x4(pair, sB + (stage * TILE + n * 8 + lane % 8 + lane / 16 * 8) * LD + k + lane / 8 % 2 * 8);
        const unsigned left[2] = {pair[0], pair[1]}, right[2] = {pair[2], pair[3]};
        ptx::mma_m16n8k16_bf16(sums[n], rows, left);
        ptx::mma_m16n8k16_bf16(sums[n + 1], rows, right);
      }
    }
    __syncthreads();                                  // the stage may be filled again
  }
#pragma unroll
  for (int n = 0; n < TILE / 8; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int i = m0 + warp * 16 + lane / 4 + e / 2 * 8, j = n0 + n * 8 + lane % 4 * 2 + e % 2;
      if (i < M && j < N) c[(long long)i * N + j] = sums[n][e];
    }
}
