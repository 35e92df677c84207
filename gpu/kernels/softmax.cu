// Online softmax and log-sum-exp of rows of any length and stride, in one pass for the statistics and one for the output.
//
//   m' = max(m, max of the chunk),  l' = l e^(m - m') + sum over the chunk of e^(x - m');   p = e^(x - m) / l,  lse = m + ln l
//
// x, p: `rows` rows of n elements, `stride` apart; stride = the product of the axes behind the reduced one, rows = all others.
// A row of -inf, or an empty one, gives p = 0 and lse = -inf; a NaN or +inf makes its row NaN. p or lse may be null.
// grid (rows)   block (32, WARPS)   shared 2 WARPS floats, static   budget: 56 registers, 0 spills
// instances: online_softmax<float|__half|__nv_bfloat16, 1|8>
// Source: Milakov and Gimelshein 2018 (arXiv 1805.02867), algorithm 3.
#include "common.cuh"

constexpr int CHUNK = 4;                              // elements of a lane between two rescalings

template <typename T, int WARPS>
__global__ void __launch_bounds__(32 * WARPS)
online_softmax(const T* __restrict__ x, T* __restrict__ p, float* __restrict__ lse, long long n, long long stride) {
  const int lane = threadIdx.x, warp = threadIdx.y, thread = warp * 32 + lane, threads = 32 * WARPS;
  const long long row = blockIdx.x, first = row / stride * n * stride + row % stride;
  float m = -CUDART_INF_F, l = 0.f;
  for (long long i0 = thread; i0 < n; i0 += CHUNK * threads) {
    float chunk[CHUNK], m_new = m;
#pragma unroll
    for (int c = 0; c < CHUNK; ++c) {
      const long long i = i0 + (long long)c * threads;
      chunk[c] = i < n ? widen(x[first + i * stride]) : -CUDART_INF_F;
      m_new = fmaxf(m_new, chunk[c]);
    }
    l *= rescaling(m, m_new);
    const float shift = m_new == -CUDART_INF_F ? 0.f : m_new;                   // nothing yet: avoid -inf - -inf
#pragma unroll
    for (int c = 0; c < CHUNK; ++c) l += expf(chunk[c] - shift);
    m = m_new;
  }
  // One rescaling joins the lanes: first the maximum of all, then the sum.
  float m_all = warp_max(m);
  if (WARPS > 1) {
    __shared__ float maxima[WARPS];
    if (lane == 0) maxima[warp] = m_all;
    __syncthreads();
    for (int w = 0; w < WARPS; ++w) m_all = fmaxf(m_all, maxima[w]);
  }
  l = warp_sum(l * rescaling(m, m_all));
  if (WARPS > 1) {
    __shared__ float sums[WARPS];
    if (lane == 0) sums[warp] = l;
    __syncthreads();
    l = 0.f;
    for (int w = 0; w < WARPS; ++w) l += sums[w];
  }
  if (lse != nullptr && thread == 0) lse[row] = log_of_sum(m_all, l);
  if (p == nullptr) return;
  const float shift = m_all == -CUDART_INF_F ? 0.f : m_all, whole = l == 0.f ? 1.f : l;
  for (long long i = thread; i < n; i += threads) narrow(expf(widen(x[first + i * stride]) - shift) / whole, &p[first + i * stride]);
}
