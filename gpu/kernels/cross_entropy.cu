// Cross-entropy of rows of logits and its gradient in one launch: every statistic of a row comes from one online pass over the vocabulary.
//
//   m' = max(m, max of the chunk),  l' = l e^(m - m') + sum over the chunk of e^(z - m'),  S = sum w_c z_c,  W = sum w_c,   lse = m + ln l
//   loss  = a (lse - z_y) + (e / V) (W lse - S) + z_loss w_y lse^2,       a = w_y (1 - e)
//   dz_c  = g (p_c (a + e W / V + 2 z_loss w_y lse) - a_c),               p = e^(z - m) / l,   a_c = a [c = y] + w_c e / V
//
// g = dloss, over `total` where that is given (0 where it is 0). S and W only where the label is smoothed, e > 0. A row whose target is
// `ignored` is not read: loss and gradient 0. A class without weight may be -inf; with weight its loss is inf. NaN, +inf and rows of
// -inf alone give NaN. weights, total, losses, row_losses and dlogits may be null: w = 1, total = 1, not wanted.
// count: the weights of all targets that count, added up by one block. mean: the rows' losses added up by one block, over the total.
// cross_entropy: grid (rows)   block (32, WARPS)   shared 3 WARPS floats, static;   count, mean: grid (1)   block (256)
// budget: 64 registers, 0 spills
// instances: cross_entropy<float|__half|__nv_bfloat16, 1|8>, count<float|__half|__nv_bfloat16>, mean<float|__half|__nv_bfloat16>
// Source: Milakov and Gimelshein 2018 (arXiv 1805.02867), algorithm 3; Szegedy et al. 2016 (arXiv 1512.00567), section 7.
#include "common.cuh"

constexpr int CHUNK = 4;                              // elements of a lane between two rescalings
constexpr int THREADS = 256;

// The sum over a block of one number a thread, in every thread, always in the same order. `shared` holds one number a warp.
template <int WARPS>
__device__ __forceinline__ float block_sum(float x, float* shared, int lane, int warp) {
  x = warp_sum(x);
  if (WARPS == 1) return x;
  __syncthreads();                                    // what an earlier call left has been read
  if (lane == 0) shared[warp] = x;
  __syncthreads();
  x = 0.f;
  for (int w = 0; w < WARPS; ++w) x += shared[w];
  return x;
}

template <typename T, int WARPS>
__global__ void __launch_bounds__(32 * WARPS)
cross_entropy(const T* __restrict__ logits, const long long* __restrict__ targets, const T* __restrict__ weights,
              const double* __restrict__ total, const float* __restrict__ dloss, int dloss_step, T* __restrict__ losses,
              float* __restrict__ row_losses, T* __restrict__ dlogits, int V, long long ignored, float smoothing, float z_loss) {
  __shared__ float parts[WARPS];
  const int lane = threadIdx.x, warp = threadIdx.y, thread = warp * 32 + lane, threads = 32 * WARPS;
  const long long row = blockIdx.x, y = targets[row];
  const T* z = logits + row * V;
  const bool counts = y != ignored, smooth = smoothing > 0.f;
  float m = -CUDART_INF_F, l = 0.f, S = 0.f, W = 0.f;
  for (int i0 = thread; counts && i0 < V; i0 += CHUNK * threads) {
    float chunk[CHUNK], m_new = m;
#pragma unroll
    for (int c = 0; c < CHUNK; ++c) {
      const int i = i0 + c * threads;
      chunk[c] = i < V ? widen(z[i]) : -CUDART_INF_F;
      m_new = fmaxf(m_new, chunk[c]);
      if (smooth && i < V) {
        const float w = weights == nullptr ? 1.f : widen(weights[i]);
        W += w;
        if (w > 0.f) S += w * chunk[c];
      }
    }
    l *= rescaling(m, m_new);
    const float shift = m_new == -CUDART_INF_F ? 0.f : m_new;                   // nothing yet: avoid -inf - -inf
#pragma unroll
    for (int c = 0; c < CHUNK; ++c) l += expf(chunk[c] - shift);
    m = m_new;
  }
  // One rescaling joins the lanes: first the maximum of all, then the sums.
  float m_all = warp_max(m);
  if (WARPS > 1) {
    __shared__ float maxima[WARPS];
    if (lane == 0) maxima[warp] = m_all;
    __syncthreads();
    for (int w = 0; w < WARPS; ++w) m_all = fmaxf(m_all, maxima[w]);
  }
  l = block_sum<WARPS>(l * rescaling(m, m_all), parts, lane, warp);
  if (smooth) {
    S = block_sum<WARPS>(S, parts, lane, warp);
    W = block_sum<WARPS>(W, parts, lane, warp);
  }
  const float top = fabsf(m_all) == CUDART_INF_F ? CUDART_NAN_F : m_all, lse = top + logf(l);
  const float w_y = counts && weights != nullptr ? widen(weights[y]) : 1.f, a = w_y * (1.f - smoothing), share = smoothing / V;
  if (thread == 0 && (losses != nullptr || row_losses != nullptr)) {
    float loss = 0.f;
    if (counts) {
      loss = lse - lse;                               // 0, or the NaN of a row that has no softmax
      if (a > 0.f) loss += a * (logf(l) + (top - widen(z[y])));
      if (smooth) loss += share * (W * lse - S);
      if (z_loss != 0.f) loss += z_loss * w_y * lse * lse;
    }
    if (losses != nullptr) narrow(loss, &losses[row]);
    if (row_losses != nullptr) row_losses[row] = loss;
  }
  if (dlogits == nullptr) return;
  const double over = total == nullptr ? 1. : *total;
  const float g = over > 0. ? (float)((double)dloss[row * dloss_step] / over) : 0.f;
  const float pull = a + (smooth ? share * W : 0.f) + (z_loss != 0.f ? 2.f * z_loss * w_y * lse : 0.f);
  for (int i = thread; i < V; i += threads) {
    float dz = 0.f;
    if (counts && over > 0.) {
      const float own = smooth ? share * (weights == nullptr ? 1.f : widen(weights[i])) : 0.f;
      dz = g * (expf(widen(z[i]) - top) / l * pull - (i == y ? a + own : own));
    }
    narrow(dz, &dlogits[row * V + i]);
  }
}

// The sum over one block of a number a thread, in double: warp by warp, then over the warps by one thread.
__device__ __forceinline__ double total_of(double x, double* shared, int thread) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(FULL_WARP, x, step);
  if (thread % 32 == 0) shared[thread / 32] = x;
  __syncthreads();
  x = 0.;
  for (int w = 0; w < THREADS / 32; ++w) x += shared[w];
  return x;
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
count(const long long* __restrict__ targets, const T* __restrict__ weights, double* __restrict__ total, long long rows, long long ignored) {
  __shared__ double parts[THREADS / 32];
  double w = 0.;
  for (long long row = threadIdx.x; row < rows; row += THREADS)
    if (targets[row] != ignored) w += weights == nullptr ? 1. : (double)widen(weights[targets[row]]);
  w = total_of(w, parts, threadIdx.x);
  if (threadIdx.x == 0) *total = w;
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
mean(const float* __restrict__ row_losses, const double* __restrict__ total, T* __restrict__ loss, long long rows) {
  __shared__ double parts[THREADS / 32];
  double sum = 0.;
  for (long long row = threadIdx.x; row < rows; row += THREADS) sum += row_losses[row];
  sum = total_of(sum, parts, threadIdx.x);
  const double over = total == nullptr ? 1. : *total;
  if (threadIdx.x == 0) narrow(over > 0. ? (float)(sum / over) : 0.f, loss);
}
