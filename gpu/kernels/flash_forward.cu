// Tiled attention forward: one block computes BM = 16 query rows of one head; K and V pass through shared memory in tiles of BN = 32.
//
//   m' = max(m, rowmax s),  p = e^(s - m'),  l = e^(m - m') l + rowsum p,  o = e^(m - m') o + (p kept / (1 - dropout_p)) v,  m = m'
//   and at the end out = o / l, lse = m + ln l;   s as in attention.cuh
//
// q (B, Hq, Lq, D), k (B, Hkv, Lk, D), v (B, Hkv, Lk, Dv), out (B, Hq, Lq, Dv), lse (B, Hq, Lq); with cu_q, cu_k (n + 1,) packed:
// q (Tq, Hq, D), k (Tk, Hkv, D), v (Tk, Hkv, Dv), out (Tq, Hq, Dv), lse (Hq, Tq), Lq = Tq, Lk = Tk. D, Dv <= C.
// A sink enters as the first m, with l = 1 and o = 0. Nothing visible: out 0, lse -inf (the sink). A key that a query does not see is
// not multiplied, so that NaN and inf in its value never matter. splits > 1: split s takes the s-th share of a row's key tiles and
// writes float32 parts (splits, ...) for merge_splits; the sink goes to the first.
// grid (ceil(Lq / 16), Hq, B splits)   block (32, 4), a lane a key, then a lane a column   budget: 168 registers, 0 spills
// shared 16 C + 32 (C + 1) + 32 C + 512 floats: 22.6 KB at C = 64, 43.2 KB at 128, 84.2 KB at 256 (opt in above 48)
// instances: flash_forward<float, float, 64|128|256>, flash_forward<__half, __half|float, 64|128|256>,
//   flash_forward<__nv_bfloat16, __nv_bfloat16|float, 64|128|256>
// Source: Dao 2023 (arXiv 2307.08691), algorithm 1; splits: Dao et al. 2023, Flash-Decoding.
#include "attention.cuh"

template <typename T, typename Out, int C>
__global__ void __launch_bounds__(THREADS, 1)                              // without the 1, ptxas aims for occupancy and spills
flash_forward(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v, Out* __restrict__ out, float* __restrict__ lse,
              const float* __restrict__ sinks, const int* __restrict__ kv_lengths, const int* __restrict__ cu_q,
              const int* __restrict__ cu_k, const float* __restrict__ bias, const unsigned char* __restrict__ mask,
              const unsigned char* __restrict__ kept, const float* __restrict__ slopes, const long long* __restrict__ steps, int splits,
              long long split_rows, int Hq, int Hkv, int Lq, int Lk, int D, int Dv, int causal, int left, int right, float scale,
              float softcap, float factor) {
  constexpr int COLUMNS = C / 32;
  extern __shared__ float shared[];
  float* sQ = shared;                                 // [BM][C]
  float* sK = sQ + BM * C;                            // [BN][C + 1]: lanes read down a column without bank conflicts
  float* sV = sK + BN * (C + 1);                      // [BN][C]
  float* sP = sV + BN * C;                            // [BM][BN]
  const int lane = threadIdx.x, warp = threadIdx.y, thread = warp * 32 + lane;
  const int b = blockIdx.z / splits, split = blockIdx.z % splits, h = blockIdx.y, hkv = h / (Hq / Hkv), i0 = blockIdx.x * BM;
  const Scores scores = scores_of(b, h, kv_lengths, cu_q, cu_k, bias, mask, kept, slopes, steps, Lq, Lk, causal, left, right, scale,
                                  softcap, factor);
  if (i0 >= scores.n_q) return;                       // a packed sequence shorter than the longest
  const Rows q_rows = rows_of(cu_q, b, h, Hq, Lq, D), k_rows = rows_of(cu_k, b, hkv, Hkv, Lk, D), v_rows = rows_of(cu_k, b, hkv, Hkv, Lk, Dv);
  load_tile<BM, C, THREADS>(sQ, C, q, q_rows, i0, scores.n_q, D, thread);

  const float sink = sinks == nullptr || split > 0 ? -CUDART_INF_F : sinks[h];
  float m[ROWS_A_WARP], l[ROWS_A_WARP], o[ROWS_A_WARP][COLUMNS];     // rows warp, warp + 4, ...; l is this lane's share
#pragma unroll
  for (int r = 0; r < ROWS_A_WARP; ++r) {
    m[r] = sink, l[r] = lane == 0 && sink != -CUDART_INF_F ? expf(sink - sink) : 0.f;   // 1, or NaN
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) o[r][c] = 0.f;
  }
  const int begin = scores.first_key(i0) / BN * BN, end = scores.stop_key(min(i0 + BM, scores.n_q));
  const int tiles = max(0, (end - begin + BN - 1) / BN), share = (tiles + splits - 1) / splits;
  const int from = begin + split * share * BN, stop = min(end, from + share * BN);
  for (int j0 = from; j0 < stop; j0 += BN) {
    __syncthreads();                                  // the last tile has been used
    load_tile<BN, C, THREADS>(sK, C + 1, k, k_rows, j0, stop, D, thread);
    load_tile<BN, C, THREADS>(sV, C, v, v_rows, j0, stop, Dv, thread);
    __syncthreads();
    if (i0 + warp >= scores.n_q) continue;            // the whole warp: it only helps to load
    float s[ROWS_A_WARP] = {};
    for (int c = 0; c < D; ++c) {
      const float key = sK[lane * (C + 1) + c];
#pragma unroll
      for (int r = 0; r < ROWS_A_WARP; ++r) s[r] = fmaf(sQ[(warp + r * WARPS) * C + c], key, s[r]);
    }
    unsigned seen[ROWS_A_WARP];                       // bit j: key j0 + j is seen by row r
#pragma unroll
    for (int r = 0; r < ROWS_A_WARP; ++r) {
      const int i = i0 + warp + r * WARPS, j = j0 + lane;
      s[r] = scores.added_and_hidden(scores.capped(s[r]), i, j);
      seen[r] = __ballot_sync(FULL_WARP, s[r] != -CUDART_INF_F);     // NaN is seen
      const bool sees = seen[r] >> lane & 1;
      const float m_new = fmaxf(m[r], warp_max(s[r])), p = sees ? expf(s[r] - m_new) : 0.f, alpha = rescaling(m[r], m_new);
      m[r] = m_new, l[r] = l[r] * alpha + p;
      sP[(warp + r * WARPS) * BN + lane] = sees ? p * scores.kept_factor(i, j) : 0.f;
#pragma unroll
      for (int c = 0; c < COLUMNS; ++c) o[r][c] *= alpha;
    }
    __syncwarp();                                     // a row of P is written and read by one warp
    for (int j = 0; j < BN; ++j) {
#pragma unroll
      for (int r = 0; r < ROWS_A_WARP; ++r) {
        if (!(seen[r] >> j & 1)) continue;
        const float p = sP[(warp + r * WARPS) * BN + j];
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c) o[r][c] = fmaf(p, sV[j * C + c * 32 + lane], o[r][c]);
      }
    }
  }
  const Rows out_rows = rows_of(cu_q, b, h, Hq, Lq, Dv);
  const long long lse_first = scalars_of(cu_q, b, h, Hq, Lq);
#pragma unroll
  for (int r = 0; r < ROWS_A_WARP; ++r) {
    const int i = i0 + warp + r * WARPS;
    const float sum = warp_sum(l[r]);
    if (i >= scores.n_q) continue;
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c)
      if (c * 32 + lane < Dv)
        narrow(o[r][c] / (sum == 0.f ? 1.f : sum), &out[split * split_rows * Dv + out_rows.first + i * out_rows.step + c * 32 + lane]);
    if (lane == 0) lse[split * split_rows + lse_first + i] = log_of_sum(m[r], sum);
  }
}
