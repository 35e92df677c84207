// Conversions of NVIDIA's headers, one element a thread.   grid (ceil(n / 128))   block (128)
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void to_half(const float* x, __half* y, int n) {
  const int i = blockIdx.x * 128 + threadIdx.x;
  if (i < n) y[i] = __float2half_rn(x[i]);
}
extern "C" __global__ void to_bfloat16(const float* x, __nv_bfloat16* y, int n) {
  const int i = blockIdx.x * 128 + threadIdx.x;
  if (i < n) y[i] = __float2bfloat16_rn(x[i]);
}
extern "C" __global__ void from_half(const __half* x, float* y, int n) {
  const int i = blockIdx.x * 128 + threadIdx.x;
  if (i < n) y[i] = __half2float(x[i]);
}
extern "C" __global__ void from_bfloat16(const __nv_bfloat16* x, float* y, int n) {
  const int i = blockIdx.x * 128 + threadIdx.x;
  if (i < n) y[i] = __bfloat162float(x[i]);
}
