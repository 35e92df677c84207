// Block-wide reductions as kernels have them: int8 rows by their largest element, a histogram by shared atomics, a ballot.
#include <cuda_fp16.h>
#include <math_constants.h>

template <int BLOCK>
__device__ __forceinline__ float block_max(float value, float* of_warps) {
  for (int lanes = 16; lanes > 0; lanes >>= 1) value = fmaxf(value, __shfl_down_sync(0xffffffffu, value, lanes));
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = value;
  __syncthreads();
  if (threadIdx.x < 32) {
    value = threadIdx.x < BLOCK / 32 ? of_warps[threadIdx.x] : -CUDART_INF_F;
    for (int lanes = 16; lanes > 0; lanes >>= 1) value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, lanes));
    if (threadIdx.x == 0) of_warps[0] = value;
  }
  __syncthreads();
  return of_warps[0];
}

// x (rows, n), q (rows, n), scale (rows)   grid (rows)   block (BLOCK)
template <int BLOCK>
__global__ void quantize_rows(const __half* __restrict__ x, signed char* __restrict__ q, float* __restrict__ scale, int n) {
  __shared__ float of_warps[BLOCK / 32];
  const size_t row = (size_t)blockIdx.x * n;
  float largest = 0.f;
  for (int i = threadIdx.x; i < n; i += BLOCK) largest = fmaxf(largest, fabsf(__half2float(x[row + i])));
  largest = block_max<BLOCK>(largest, of_warps);
  const float s = largest > 0.f ? largest / 127.f : 1.f;
  for (int i = threadIdx.x; i < n; i += BLOCK) {
    const int code = __float2int_rn(__half2float(x[row + i]) / s);
    q[row + i] = (signed char)max(-127, min(127, code));
  }
  if (threadIdx.x == 0) scale[blockIdx.x] = s;
}

// counts (16) of the low four bits of x (n)   grid (any)   block (at least 16)
extern "C" __global__ void histogram(const int* x, int n, int* counts) {
  __shared__ int of_block[16];
  if (threadIdx.x < 16) of_block[threadIdx.x] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&of_block[x[i] & 15], 1);
  __syncthreads();
  if (threadIdx.x < 16) atomicAdd(&counts[threadIdx.x], of_block[threadIdx.x]);
}

// first[b]: the first i < n with u[b, i] > limit[b, i], or n; n <= 32   grid (B)   block (32)
extern "C" __global__ void first_above(const float* u, const float* limit, int* first, int n) {
  const int i = threadIdx.x, at = blockIdx.x * n + i;
  const unsigned above = __ballot_sync(0xffffffffu, i < n && u[i < n ? at : 0] > limit[i < n ? at : 0]);
  if (i == 0) first[blockIdx.x] = above ? __ffs(above) - 1 : n;
}
