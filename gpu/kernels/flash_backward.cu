// The gradient of tiled attention from out and lse of the forward pass, in five kernels without atomics: the same bits each time.
//
//   delta = rowsum(dout out),  p = e^(s - lse),  ds = p ((dout v^T) kept / (1 - dropout_p) - delta) (1 - tanh^2)
//   dv = (p kept / (1 - dropout_p))^T dout,  dk = scale ds^T q,  dq = scale ds k,  dsink = -sum e^(sink - lse) delta
//   dbias = the sum of ds, without the last factor, over the axes along which the bias repeats
//
// Shapes and the packed form as in flash_forward.cu; dq, dk, dv like q, k, v; dout like out; delta like lse, float32.
//   row_delta      a warp a row; a row that saw only its sink has delta 0, whatever its dout
//                  grid (ceil(rows / 4))   block (32, 4)   shared none
//   sink_gradient  a block a head, over all rows of the head in a fixed order
//                  grid (Hq)   block (32, 4)   shared 4 floats, static
//   key_gradient   a block takes 32 keys of one kv head and passes over the queries of its group in tiles of 16
//                  grid (ceil(Lk / 32), Hkv, B)   block (32, 4)
//                  shared 32 C + 64 (C + 1) + 1088 floats: 28.9 KB at C = 64, 53.5 KB at 128, 102.5 KB at 256 (opt in above 48)
//   query_gradient a block takes 16 queries of one head and passes over the keys in tiles of 32
//                  grid (ceil(Lq / 16), Hq, B)   block (32, 4)
//                  shared 32 C + 64 (C + 1) + 512 floats: 26.6 KB at C = 64, 51.3 KB at 128, 100.3 KB at 256 (opt in above 48)
//   bias_gradient  a block takes 16 x 32 elements of the bias, float32, and passes over all scores they were added to: the batch, the
//                  heads and the tiles of the axes along which it repeats, in order; (nB, nH, nQ, nK) its own shape, each 1 or whole
//                  grid (ceil(nK / 32), ceil(nQ / 16), nB nH)   block (32, 4)
//                  shared 32 C + 64 (C + 1) + 128 floats: 25.1 KB at C = 64, 49.8 KB at 128, 98.8 KB at 256 (opt in above 48)
// What a query does not see is not multiplied: NaN and inf behind a mask never matter.   budget: 255 registers, 0 spills
// instances: row_delta<float|__half|__nv_bfloat16>, key_gradient<float|__half|__nv_bfloat16, 64|128|256>,
//   query_gradient<float|__half|__nv_bfloat16, 64|128|256>, bias_gradient<float|__half|__nv_bfloat16, 64|128|256>
// Source: Dao 2023 (arXiv 2307.08691), algorithm 2; one pass for each of dK, dV and dQ instead of atomics on dQ.
#include "attention.cuh"

template <typename T>
__global__ void __launch_bounds__(THREADS)
row_delta(const T* __restrict__ out, const T* __restrict__ dout, const float* __restrict__ lse, const float* __restrict__ sinks,
          float* __restrict__ delta, long long rows, int Hq, int Lq, int Dv, int packed) {
  const long long row = (long long)blockIdx.x * WARPS + threadIdx.y;
  if (row >= rows) return;
  const long long at = out_row(row, Hq, Lq, packed) * Dv;
  float sum = 0.f, largest = 0.f;
  for (int c = threadIdx.x; c < Dv; c += 32) {
    const float o = widen(out[at + c]);
    sum = fmaf(o, widen(dout[at + c]), sum);
    largest = o == 0.f ? largest : 1.f;
  }
  sum = warp_sum(sum);
  const bool only_sink = sinks != nullptr && lse[row] == sinks[row / Lq % Hq] && warp_max(largest) == 0.f;
  if (threadIdx.x == 0) delta[row] = only_sink ? 0.f : sum;
}

extern "C" __global__ void __launch_bounds__(128)
sink_gradient(const float* __restrict__ lse, const float* __restrict__ delta, const float* __restrict__ sinks, float* __restrict__ dsinks,
              int B, int Hq, int Lq) {
  __shared__ float sums[WARPS];
  const int h = blockIdx.x, lane = threadIdx.x, warp = threadIdx.y;
  const float sink = sinks[h];
  float sum = 0.f;
  for (long long row = warp * 32 + lane; row < (long long)B * Lq && sink != -CUDART_INF_F; row += THREADS) {
    const long long at = (row / Lq * Hq + h) * Lq + row % Lq;
    sum -= expf(sink - lse[at]) * delta[at];
  }
  sum = warp_sum(sum);
  if (lane == 0) sums[warp] = sum;
  __syncthreads();
  if (warp == 0 && lane == 0) dsinks[h] = sums[0] + sums[1] + sums[2] + sums[3];
}

// Of the rows of this warp and the key of this lane: q k^T and dout v^T. Up to C columns the tiles are padded with 0.
template <int C>
__device__ __forceinline__ void dot_products(const float* sQ, const float* sO, const float* sK, const float* sV, int columns,
                                             float (&s)[ROWS_A_WARP], float (&dp)[ROWS_A_WARP]) {
  const int lane = threadIdx.x, warp = threadIdx.y;
#pragma unroll
  for (int r = 0; r < ROWS_A_WARP; ++r) s[r] = 0.f, dp[r] = 0.f;
  for (int c = 0; c < columns; ++c) {
    const float key = sK[lane * (C + 1) + c], value = sV[lane * (C + 1) + c];
#pragma unroll
    for (int r = 0; r < ROWS_A_WARP; ++r) {
      s[r] = fmaf(sQ[(warp + r * WARPS) * C + c], key, s[r]);
      dp[r] = fmaf(sO[(warp + r * WARPS) * C + c], value, dp[r]);
    }
  }
}

// Of row i and the key of this lane: p with dropout, ds without scale, and what reaches a bias; `seen` says for 32 keys which ones
// the row sees.
struct Pair {
  float p, ds, d_bias;
  unsigned seen;
};

__device__ __forceinline__ Pair gradient_of_score(const Scores& scores, float dot, float dp, float lse, float delta, int i, int j) {
  const float capped = scores.capped(dot), s = scores.added_and_hidden(capped, i, j);
  const bool sees = s != -CUDART_INF_F;
  const float p = sees ? expf(s - lse) : 0.f, kept = sees ? scores.kept_factor(i, j) : 0.f;
  const float d_bias = sees ? p * (dp * kept - delta) : 0.f;
  return {p * kept, sees ? d_bias * scores.slope_of_cap(capped) : 0.f, d_bias, __ballot_sync(FULL_WARP, sees)};
}

template <typename T, int C>
__global__ void __launch_bounds__(THREADS, 1)
key_gradient(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v, const T* __restrict__ dout,
             const float* __restrict__ lse, const float* __restrict__ delta, T* __restrict__ dk, T* __restrict__ dv,
             const int* __restrict__ kv_lengths, const int* __restrict__ cu_q, const int* __restrict__ cu_k, const float* __restrict__ bias,
             const unsigned char* __restrict__ mask, const unsigned char* __restrict__ kept, const float* __restrict__ slopes,
             const long long* __restrict__ steps, int Hq, int Hkv, int Lq, int Lk, int D, int Dv, int causal, int left, int right,
             float scale, float softcap, float factor) {
  constexpr int COLUMNS = C / 32, KEYS_A_WARP = BN / WARPS;
  extern __shared__ float shared[];
  float* sQ = shared;                                 // [BM][C]
  float* sO = sQ + BM * C;                            // [BM][C]: dout
  float* sK = sO + BM * C;                            // [BN][C + 1]
  float* sV = sK + BN * (C + 1);                      // [BN][C + 1]
  float* sP = sV + BN * (C + 1);                      // [BM][BN]
  float* sS = sP + BM * BN;                           // [BM][BN]: ds
  unsigned* sSeen = reinterpret_cast<unsigned*>(sS + BM * BN);       // [BM]
  const int lane = threadIdx.x, warp = threadIdx.y, thread = warp * 32 + lane;
  const int b = blockIdx.z, hkv = blockIdx.y, G = Hq / Hkv, j0 = blockIdx.x * BN;
  const Rows k_rows = rows_of(cu_k, b, hkv, Hkv, Lk, D), v_rows = rows_of(cu_k, b, hkv, Hkv, Lk, Dv);
  const int keys = cu_k == nullptr ? Lk : cu_k[b + 1] - cu_k[b];     // all get a gradient, those past kv_lengths 0
  if (j0 >= keys) return;
  float k_sum[KEYS_A_WARP][COLUMNS] = {}, v_sum[KEYS_A_WARP][COLUMNS] = {};
  for (int h = hkv * G; h < (hkv + 1) * G; ++h) {
    const Scores scores = scores_of(b, h, kv_lengths, cu_q, cu_k, bias, mask, kept, slopes, steps, Lq, Lk, causal, left, right, scale,
                                    softcap, factor);
    const Rows q_rows = rows_of(cu_q, b, h, Hq, Lq, D), o_rows = rows_of(cu_q, b, h, Hq, Lq, Dv);
    const long long scalars = scalars_of(cu_q, b, h, Hq, Lq);
    if (h == hkv * G) {
      load_tile<BN, C, THREADS>(sK, C + 1, k, k_rows, j0, scores.n_k, D, thread);
      load_tile<BN, C, THREADS>(sV, C + 1, v, v_rows, j0, scores.n_k, Dv, thread);
    }
    const int stop = j0 < scores.n_k ? scores.stop_query(min(j0 + BN, scores.n_k)) : 0;
    for (int i0 = scores.first_query(j0) / BM * BM; i0 < stop; i0 += BM) {
      __syncthreads();                                // the last tile has been used
      load_tile<BM, C, THREADS>(sQ, C, q, q_rows, i0, stop, D, thread);
      load_tile<BM, C, THREADS>(sO, C, dout, o_rows, i0, stop, Dv, thread);
      __syncthreads();
      float s[ROWS_A_WARP], dp[ROWS_A_WARP];
      dot_products<C>(sQ, sO, sK, sV, max(D, Dv), s, dp);
#pragma unroll
      for (int r = 0; r < ROWS_A_WARP; ++r) {
        const int row = warp + r * WARPS, i = i0 + row;
        const bool inside = i < stop;
        const Pair pair = gradient_of_score(scores, s[r], dp[r], inside ? lse[scalars + i] : 0.f, inside ? delta[scalars + i] : 0.f, i,
                                            j0 + lane);
        sP[row * BN + lane] = pair.p, sS[row * BN + lane] = pair.ds;
        if (lane == 0) sSeen[row] = inside ? pair.seen : 0u;
      }
      __syncthreads();
      for (int row = 0; row < BM; ++row) {
#pragma unroll
        for (int n = 0; n < KEYS_A_WARP; ++n) {
          const int j = warp * KEYS_A_WARP + n;
          if (!(sSeen[row] >> j & 1)) continue;
          const float p = sP[row * BN + j], ds = sS[row * BN + j];
#pragma unroll
          for (int c = 0; c < COLUMNS; ++c) {
            v_sum[n][c] = fmaf(p, sO[row * C + c * 32 + lane], v_sum[n][c]);
            k_sum[n][c] = fmaf(ds, sQ[row * C + c * 32 + lane], k_sum[n][c]);
          }
        }
      }
    }
  }
#pragma unroll
  for (int n = 0; n < KEYS_A_WARP; ++n) {
    const int j = j0 + warp * KEYS_A_WARP + n;
    if (j >= keys) continue;
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) {
      const int column = c * 32 + lane;
      if (column < D) narrow(scale * k_sum[n][c], &dk[k_rows.first + j * k_rows.step + column]);
      if (column < Dv) narrow(v_sum[n][c], &dv[v_rows.first + j * v_rows.step + column]);
    }
  }
}

template <typename T, int C>
__global__ void __launch_bounds__(THREADS, 1)
query_gradient(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v, const T* __restrict__ dout,
               const float* __restrict__ lse, const float* __restrict__ delta, T* __restrict__ dq, const int* __restrict__ kv_lengths,
               const int* __restrict__ cu_q, const int* __restrict__ cu_k, const float* __restrict__ bias,
               const unsigned char* __restrict__ mask, const unsigned char* __restrict__ kept, const float* __restrict__ slopes,
               const long long* __restrict__ steps, int Hq, int Hkv, int Lq, int Lk, int D, int Dv, int causal, int left, int right,
               float scale, float softcap, float factor) {
  constexpr int COLUMNS = C / 32;
  extern __shared__ float shared[];
  float* sQ = shared;                                 // [BM][C]
  float* sO = sQ + BM * C;                            // [BM][C]: dout
  float* sK = sO + BM * C;                            // [BN][C + 1]
  float* sV = sK + BN * (C + 1);                      // [BN][C + 1]
  float* sS = sV + BN * (C + 1);                      // [BM][BN]: ds
  const int lane = threadIdx.x, warp = threadIdx.y, thread = warp * 32 + lane;
  const int b = blockIdx.z, h = blockIdx.y, hkv = h / (Hq / Hkv), i0 = blockIdx.x * BM;
  const Scores scores = scores_of(b, h, kv_lengths, cu_q, cu_k, bias, mask, kept, slopes, steps, Lq, Lk, causal, left, right, scale,
                                  softcap, factor);
  if (i0 >= scores.n_q) return;
  const Rows q_rows = rows_of(cu_q, b, h, Hq, Lq, D), o_rows = rows_of(cu_q, b, h, Hq, Lq, Dv);
  const Rows k_rows = rows_of(cu_k, b, hkv, Hkv, Lk, D), v_rows = rows_of(cu_k, b, hkv, Hkv, Lk, Dv);
  const long long scalars = scalars_of(cu_q, b, h, Hq, Lq);
  load_tile<BM, C, THREADS>(sQ, C, q, q_rows, i0, scores.n_q, D, thread);
  load_tile<BM, C, THREADS>(sO, C, dout, o_rows, i0, scores.n_q, Dv, thread);
  float q_sum[ROWS_A_WARP][COLUMNS] = {}, row_lse[ROWS_A_WARP], row_delta[ROWS_A_WARP];
#pragma unroll
  for (int r = 0; r < ROWS_A_WARP; ++r) {
    const int i = i0 + warp + r * WARPS;
    row_lse[r] = i < scores.n_q ? lse[scalars + i] : 0.f, row_delta[r] = i < scores.n_q ? delta[scalars + i] : 0.f;
  }
  const int stop = scores.stop_key(min(i0 + BM, scores.n_q));
  for (int j0 = scores.first_key(i0) / BN * BN; j0 < stop; j0 += BN) {
    __syncthreads();                                  // the last tile has been used
    load_tile<BN, C, THREADS>(sK, C + 1, k, k_rows, j0, stop, D, thread);
    load_tile<BN, C, THREADS>(sV, C + 1, v, v_rows, j0, stop, Dv, thread);
    __syncthreads();
    if (i0 + warp >= scores.n_q) continue;            // the whole warp: it only helps to load
    float s[ROWS_A_WARP], dp[ROWS_A_WARP];
    dot_products<C>(sQ, sO, sK, sV, max(D, Dv), s, dp);
    unsigned seen[ROWS_A_WARP];
#pragma unroll
    for (int r = 0; r < ROWS_A_WARP; ++r) {
      const int row = warp + r * WARPS;
      const Pair pair = gradient_of_score(scores, s[r], dp[r], row_lse[r], row_delta[r], i0 + row, j0 + lane);
      sS[row * BN + lane] = pair.ds, seen[r] = pair.seen;
    }
    __syncwarp();                                     // a row of ds is written and read by one warp
    for (int j = 0; j < BN; ++j) {
#pragma unroll
      for (int r = 0; r < ROWS_A_WARP; ++r) {
        if (!(seen[r] >> j & 1)) continue;
        const float ds = sS[(warp + r * WARPS) * BN + j];
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c) q_sum[r][c] = fmaf(ds, sK[j * (C + 1) + c * 32 + lane], q_sum[r][c]);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < ROWS_A_WARP; ++r) {
    const int i = i0 + warp + r * WARPS;
    if (i >= scores.n_q) continue;
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c)
      if (c * 32 + lane < D) narrow(scale * q_sum[r][c], &dq[q_rows.first + i * q_rows.step + c * 32 + lane]);
  }
}

// Which part of an axis an element, or a tile, of the bias stands for: all of it where the bias repeats (its step is 0).
struct Part {
  int from, stop;
};

__device__ __forceinline__ Part part_of(long long step, int from, int size, int whole) {
  return step == 0 ? Part{0, whole} : Part{from, min(from + size, whole)};
}

template <typename T, int C>
__global__ void __launch_bounds__(THREADS, 1)
bias_gradient(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v, const T* __restrict__ dout,
              const float* __restrict__ lse, const float* __restrict__ delta, float* __restrict__ dbias, int B,
              const int* __restrict__ kv_lengths, const int* __restrict__ cu_q, const int* __restrict__ cu_k, const float* __restrict__ bias,
              const unsigned char* __restrict__ mask, const unsigned char* __restrict__ kept, const float* __restrict__ slopes,
              const long long* __restrict__ steps, int Hq, int Hkv, int Lq, int Lk, int D, int Dv, int causal, int left, int right,
              float scale, float softcap, float factor) {
  extern __shared__ float shared[];
  float* sQ = shared;                                 // [BM][C]
  float* sO = sQ + BM * C;                            // [BM][C]: dout
  float* sK = sO + BM * C;                            // [BN][C + 1]
  float* sV = sK + BN * (C + 1);                      // [BN][C + 1]
  float* sums = sV + BN * (C + 1);                    // [WARPS][32]
  const int lane = threadIdx.x, warp = threadIdx.y, thread = warp * 32 + lane, heads = steps[1] == 0 ? 1 : Hq;
  const Part of_b = part_of(steps[0], blockIdx.z / heads, 1, B), of_h = part_of(steps[1], blockIdx.z % heads, 1, Hq);
  const Part of_i = part_of(steps[2], blockIdx.y * BM, BM, Lq), of_j = part_of(steps[3], blockIdx.x * BN, BN, Lk);
  float sum[ROWS_A_WARP] = {};                        // of rows warp, warp + 4, ... and the key of this lane
  for (int b = of_b.from; b < of_b.stop; ++b)
    for (int h = of_h.from; h < of_h.stop; ++h) {
      const int hkv = h / (Hq / Hkv);
      const Scores scores = scores_of(b, h, kv_lengths, cu_q, cu_k, bias, mask, kept, slopes, steps, Lq, Lk, causal, left, right, scale,
                                      softcap, factor);
      const Rows q_rows = rows_of(cu_q, b, h, Hq, Lq, D), o_rows = rows_of(cu_q, b, h, Hq, Lq, Dv);
      const Rows k_rows = rows_of(cu_k, b, hkv, Hkv, Lk, D), v_rows = rows_of(cu_k, b, hkv, Hkv, Lk, Dv);
      const long long scalars = scalars_of(cu_q, b, h, Hq, Lq);
      for (int i0 = of_i.from; i0 < of_i.stop; i0 += BM) {
        const int stop = min(of_j.stop, scores.stop_key(min(i0 + BM, scores.n_q)));
        for (int j0 = max(of_j.from, scores.first_key(i0) / BN * BN); j0 < stop; j0 += BN) {
          __syncthreads();                            // the last tiles have been used
          load_tile<BM, C, THREADS>(sQ, C, q, q_rows, i0, scores.n_q, D, thread);
          load_tile<BM, C, THREADS>(sO, C, dout, o_rows, i0, scores.n_q, Dv, thread);
          load_tile<BN, C, THREADS>(sK, C + 1, k, k_rows, j0, stop, D, thread);
          load_tile<BN, C, THREADS>(sV, C + 1, v, v_rows, j0, stop, Dv, thread);
          __syncthreads();
          float s[ROWS_A_WARP], dp[ROWS_A_WARP];
          dot_products<C>(sQ, sO, sK, sV, max(D, Dv), s, dp);
#pragma unroll
          for (int r = 0; r < ROWS_A_WARP; ++r) {
            const int i = i0 + warp + r * WARPS;
            const bool inside = i < scores.n_q;
            sum[r] += gradient_of_score(scores, s[r], dp[r], inside ? lse[scalars + i] : 0.f, inside ? delta[scalars + i] : 0.f, i,
                                        j0 + lane).d_bias;
          }
        }
      }
    }
  const bool one_i = steps[2] == 0, one_j = steps[3] == 0;
  if (one_i) {                                        // all rows into row 0 of warp 0
    sums[thread] = sum[0] + sum[1] + sum[2] + sum[3];
    __syncthreads();
    sum[0] = sums[lane] + sums[32 + lane] + sums[64 + lane] + sums[96 + lane];
  }
  const long long first = of_b.from * steps[0] + of_h.from * steps[1];
  const int j = one_j ? 0 : of_j.from + lane;
#pragma unroll
  for (int r = 0; r < ROWS_A_WARP; ++r) {
    const int i = one_i ? warp + r : of_i.from + warp + r * WARPS;
    const float all = one_j ? warp_sum(sum[r]) : sum[r];
    if (one_i ? i > 0 : i >= Lq) continue;
    if (one_j ? lane == 0 : j < Lk) dbias[first + i * steps[2] + j * steps[3]] = all;
  }
}
