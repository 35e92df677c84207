// Multi-head latent attention in its absorbed form: no head's keys or values are ever built, all heads read one latent a token.
//
//   absorb_queries   q_h = q_nope_h w_uk[h]^T                              (C), w_uk joins the queries
//   mla_decode       s = scale (q_h latent^T + q_rope_h k_rope^T),  o_h = softmax(s) latent,  lse     online, as flash_forward.cu
//   expand_values    out_h = o_h w_uv[h]                                   (Dv), w_uv comes after the sum
//
// q_nope (B, H, Lq, Dn), q_rope (B, H, Lq, Dr), latent (B, Lk, C), k_rope (B, Lk, Dr), w_uk (H, C, Dn), w_uv (H, C, Dv); q, o and all
// that is between are float32, rows = B H Lq. C <= CP, Dr <= 64. kv_lengths (B) or null; mask of steps (4) along B, H, Lq, Lk, or null.
// The tile of keys is the tile of values: its first C columns. One block takes BM = 16 rows (query, head) of a sequence; split s takes
// the s-th share of the keys and writes outs (splits, rows, C), lses (splits, rows) for merge_splits. Nothing visible: 0 and -inf.
// grid: mla_decode (ceil(H Lq / 16), 1, B splits), the others (rows)     block (32, 4), a lane a key, then a lane a column
// shared 16 (CP + 64) + 32 (CP + 65) + 512 floats: 38.1 KB at CP = 128, 112.8 KB at 512 (opt in); expand and absorb none
// budget: 224 registers, 0 spills
// instances: absorb_queries<float|__half|__nv_bfloat16>, mla_decode<float|__half|__nv_bfloat16, 128|512>,
//   expand_values<float|__half|__nv_bfloat16>
// Source: DeepSeek-AI 2024 (arXiv 2405.04434), section 2.1.2 and appendix C.
#include "decode.cuh"

constexpr int ROTARY = 64;

template <typename T>
__global__ void __launch_bounds__(THREADS)
absorb_queries(const T* __restrict__ q_nope, const T* __restrict__ w_uk, float* __restrict__ q, int H, int Lq, int Dn, int C) {
  const long long row = blockIdx.x, h = row / Lq % H;
  for (int c = threadIdx.y; c < C; c += WARPS) {      // a warp a channel: a row of w_uk is read by neighbouring lanes
    float sum = 0.f;
    for (int d = threadIdx.x; d < Dn; d += 32) sum = fmaf(widen(q_nope[row * Dn + d]), widen(w_uk[(h * C + c) * Dn + d]), sum);
    sum = warp_sum(sum);
    if (threadIdx.x == 0) q[row * C + c] = sum;
  }
}

template <typename T, int CP>
__global__ void __launch_bounds__(THREADS, 1)                              // without the 1, ptxas aims for occupancy and spills
mla_decode(const float* __restrict__ q, const T* __restrict__ q_rope, const T* __restrict__ latent, const T* __restrict__ k_rope,
           float* __restrict__ outs, float* __restrict__ lses, const int* __restrict__ kv_lengths, const unsigned char* __restrict__ mask,
           const long long* __restrict__ steps, int splits, int B, int H, int Lq, int Lk, int C, int Dr, int causal, float scale) {
  constexpr int LD_Q = CP + ROTARY, LD_K = LD_Q + 1;
  extern __shared__ float shared[];
  float* sQ = shared;                                 // [BM][CP + 64]: C absorbed columns, then Dr turned ones
  float* sK = sQ + BM * LD_Q;                         // [BN][CP + 65], the same; its first CP columns are the values
  float* sP = sK + BN * LD_K;                         // [BM][BN]
  const int lane = threadIdx.x, warp = threadIdx.y, thread = warp * 32 + lane, D = C + Dr;
  const int b = blockIdx.z / splits, split = blockIdx.z % splits, r0 = blockIdx.x * BM;
  const Scores scores = scores_of(b, 0, kv_lengths, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, Lq, Lk, causal, -1, -1,
                                  scale, 0.f, 1.f);
  for (int at = thread; at < BM * LD_Q; at += THREADS) {
    const int r = r0 + at / LD_Q, c = at % LD_Q, i = r / H;
    const long long row = ((long long)b * H + r % H) * Lq + i;
    sQ[at] = i >= Lq || c >= D ? 0.f : c < C ? q[row * C + c] : widen(q_rope[row * Dr + c - C]);
  }
  Running<CP / 32> row;
#pragma unroll
  for (int r = 0; r < ROWS_A_WARP; ++r) row.start(r, -CUDART_INF_F, lane);
  const Share keys = share_of(0, scores.stop_key(min((r0 + BM - 1) / H + 1, Lq)), split, splits);
  for (int j0 = keys.from; j0 < keys.stop; j0 += BN) {
    __syncthreads();                                  // the last tile has been used
    for (int at = thread; at < BN * LD_Q; at += THREADS) {
      const int r = at / LD_Q, c = at % LD_Q, j = j0 + r;
      const long long token = (long long)b * Lk + j;
      sK[r * LD_K + c] = j >= keys.stop || c >= D ? 0.f : c < C ? widen(latent[token * C + c]) : widen(k_rope[token * Dr + c - C]);
    }
    __syncthreads();
    if ((r0 + warp) / H >= Lq) continue;              // the whole warp: it only helps to load
    row.step(sQ, LD_Q, sK, LD_K, D, sK, LD_K, sP, lane, warp, [&](int r, float dot) {
      const int at = r0 + warp + r * WARPS, i = at / H, j = j0 + lane;
      const float s = scores.added_and_hidden(scores.capped(dot), i, j);
      if (mask == nullptr || s == -CUDART_INF_F) return s;
      return mask[b * steps[0] + at % H * steps[1] + i * steps[2] + j * steps[3]] != 0 ? s : -CUDART_INF_F;
    });
  }
#pragma unroll
  for (int r = 0; r < ROWS_A_WARP; ++r) {
    const int at = r0 + warp + r * WARPS, i = at / H;
    const long long to = (((long long)split * B + b) * H + at % H) * Lq + i;
    row.write(r, outs + to * C, lses + to, C, lane, i < Lq);
  }
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
expand_values(const float* __restrict__ o, const T* __restrict__ w_uv, T* __restrict__ out, int H, int Lq, int C, int Dv) {
  const long long row = blockIdx.x, h = row / Lq % H;
  for (int d = threadIdx.y * 32 + threadIdx.x; d < Dv; d += THREADS) {     // a thread a column, the channels in order
    float sum = 0.f;
    for (int c = 0; c < C; ++c) sum = fmaf(o[row * C + c], widen(w_uv[(h * C + c) * Dv + d]), sum);
    narrow(sum, &out[row * Dv + d]);
  }
}
