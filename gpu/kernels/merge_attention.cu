// Attention over the union of disjoint sets of keys, from the output and log-sum-exp of each.
//
//   lse = ln(sum_s e^lse_s),   out = sum_s e^(lse_s - lse) out_s
//
// out_a, out_b (rows, Dv) in T, lse (rows) in float32; merge_splits: parts (splits, rows, Dv) and (splits, rows), both
// float32; packed: out is (Tq, Hq, Dv), lse (Hq, Tq), Lq = Tq.
// A part with lse = -inf adds nothing, whatever its out; only such parts: 0 and -inf. An lse of NaN or +inf makes the row NaN.
// The parts are added in order, so the answer is the same each time.
// grid (ceil(rows / 4))   block (32, 4), a warp a row   shared none   budget: 56 registers, 0 spills
// instances: merge_attention<float|__half|__nv_bfloat16>, merge_splits<float|__half|__nv_bfloat16>
// Source: Milakov and Gimelshein 2018 (arXiv 1805.02867), section 3.1.
#include "common.cuh"

template <typename T>
__global__ void __launch_bounds__(128, 1)
merge_attention(const T* __restrict__ out_a, const float* __restrict__ lse_a, const T* __restrict__ out_b,
                const float* __restrict__ lse_b, T* __restrict__ out, float* __restrict__ lse, long long rows, int Dv) {
  const long long row = (long long)blockIdx.x * 4 + threadIdx.y;
  if (row >= rows) return;
  const float a = lse_a[row], b = lse_b[row], m = fmaxf(a, b);
  const float w_a = a == -CUDART_INF_F ? 0.f : expf(a - m), w_b = b == -CUDART_INF_F ? 0.f : expf(b - m), l = w_a + w_b;
  for (int c = threadIdx.x; c < Dv; c += 32) {
    float o = 0.f;
    if (a != -CUDART_INF_F) o += w_a / l * widen(out_a[row * Dv + c]);
    if (b != -CUDART_INF_F) o += w_b / l * widen(out_b[row * Dv + c]);
    narrow(o, &out[row * Dv + c]);
  }
  if (threadIdx.x == 0) lse[row] = log_of_sum(m, l);
}

template <typename T>
__global__ void __launch_bounds__(128, 1)
merge_splits(const float* __restrict__ outs, const float* __restrict__ lses, T* __restrict__ out, float* __restrict__ lse, int splits,
             long long rows, int Hq, int Lq, int Dv, int packed) {
  const long long row = (long long)blockIdx.x * 4 + threadIdx.y;
  if (row >= rows) return;
  const long long at = out_row(row, Hq, Lq, packed) * Dv, step = rows * Dv;
  float m = -CUDART_INF_F, l = 0.f;
  for (int s = 0; s < splits; ++s) m = fmaxf(m, lses[s * rows + row]);
  for (int s = 0; s < splits; ++s) {
    const float part = lses[s * rows + row];
    if (part != -CUDART_INF_F) l += expf(part - m);
  }
  for (int c = threadIdx.x; c < Dv; c += 32) {
    float o = 0.f;
    for (int s = 0; s < splits; ++s) {
      const float part = lses[s * rows + row];
      if (part != -CUDART_INF_F) o += expf(part - m) / l * outs[s * step + at + c];
    }
    narrow(o, &out[at + c]);
  }
  if (threadIdx.x == 0) lse[row] = log_of_sum(m, l);
}
