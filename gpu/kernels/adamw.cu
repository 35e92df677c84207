// A step of AdamW, and one on float32 masters fused with what stands around it: unscaling, the search for inf and NaN, the clip by the
// norm, the weights rounded to 16 bits. Every number is read and written once; the gradients once more before, for their norm.
//
//   g  = grad / loss_scale min(1, max_norm / |grad / loss_scale|)
//   m' = b1 m + (1 - b1) g,   v' = b2 v + (1 - b2) g^2,   p' = p (1 - lr decay) - lr (m' / c1) / (sqrt(v' / c2) + eps),   c = 1 - b^t
//
// A NaN or inf in any gradient: masters, moments and weights as they were. m' = 0 moves nothing, whatever it is divided by.
// survey: sums[block] = the sum of squares of a share of the gradients, in double, where no square of a float32 overflows: their sum
// is finite if and only if every gradient is. Every block of master_step adds the `surveys` <= 256 sums up in one order.
// survey: grid (surveys);   adamw, master_step: grid (ceil(n / 256))   block (256)   shared 8 doubles, static
// budget: 48 registers, 0 spills
// instances: adamw<float|__half|__nv_bfloat16>, master_step<__half|__nv_bfloat16>
// Source: Loshchilov and Hutter 2019 (arXiv 1711.05101), algorithm 2; Micikevicius et al. 2018 (arXiv 1710.03740), sections 3.1 and 3.2.
#include "common.cuh"

constexpr int THREADS = 256;

struct Numbers {                                      // of a step, each rounded to float32 once
  float rate, kept, b1, rest1, b2, rest2, c1, c2, eps;
};

__device__ __forceinline__ float stepped(float p, float g, float* m, float* v, const Numbers& x) {
  *m = x.b1 * *m + x.rest1 * g;
  *v = x.b2 * *v + x.rest2 * g * g;
  const float move = *m == 0.f ? 0.f : *m / x.c1 / (sqrtf(*v / x.c2) + x.eps);
  return p * x.kept - x.rate * move;
}

// The sum over a block of a number a thread, in double, in every thread and always in the same order.
__device__ __forceinline__ double block_total(double x, double* shared) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(FULL_WARP, x, step);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
  __syncthreads();
  x = 0.;
  for (int w = 0; w < THREADS / 32; ++w) x += shared[w];
  return x;
}

extern "C" __global__ void __launch_bounds__(THREADS) survey(const float* __restrict__ grad, double* __restrict__ sums, long long n) {
  __shared__ double parts[THREADS / 32];
  double sum = 0.;
  for (long long i = (long long)blockIdx.x * THREADS + threadIdx.x; i < n; i += (long long)gridDim.x * THREADS)
    sum += (double)grad[i] * grad[i];
  sum = block_total(sum, parts);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
adamw(const T* __restrict__ param, const T* __restrict__ grad, const float* __restrict__ m, const float* __restrict__ v,
      T* __restrict__ new_param, float* __restrict__ new_m, float* __restrict__ new_v, long long n, float rate, float kept, float b1,
      float rest1, float b2, float rest2, float c1, float c2, float eps) {
  const Numbers numbers = {rate, kept, b1, rest1, b2, rest2, c1, c2, eps};
  const long long i = (long long)blockIdx.x * THREADS + threadIdx.x;
  if (i >= n) return;
  float own_m = m[i], own_v = v[i];
  narrow(stepped(widen(param[i]), widen(grad[i]), &own_m, &own_v, numbers), &new_param[i]);
  new_m[i] = own_m, new_v[i] = own_v;
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
master_step(const float* __restrict__ grad, const float* __restrict__ master, const float* __restrict__ m, const float* __restrict__ v,
            const double* __restrict__ sums, int surveys, T* __restrict__ weights, float* __restrict__ new_master,
            float* __restrict__ new_m, float* __restrict__ new_v, long long n, double unscale, double max_norm, float rate, float kept,
            float b1, float rest1, float b2, float rest2, float c1, float c2, float eps) {
  __shared__ double parts[THREADS / 32];
  const Numbers numbers = {rate, kept, b1, rest1, b2, rest2, c1, c2, eps};
  const double sum = block_total(threadIdx.x < surveys ? sums[threadIdx.x] : 0., parts);
  const bool taken = sum < CUDART_INF;                // a NaN is not below it either
  const double norm = sqrt(sum) * unscale;
  const float factor = (float)(norm > max_norm ? unscale * (max_norm / norm) : unscale);
  const long long i = (long long)blockIdx.x * THREADS + threadIdx.x;
  if (i >= n) return;
  float p = master[i], own_m = m[i], own_v = v[i];
  if (taken) p = stepped(p, grad[i] * factor, &own_m, &own_v, numbers);
  new_master[i] = p, new_m[i] = own_m, new_v[i] = own_v;
  narrow(p, &weights[i]);
}
