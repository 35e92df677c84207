// Attention of few queries a sequence over keys and values in pages: one block takes BM = 16 rows (query, head) of one key/value head,
// whose keys pass through shared memory in tiles of BN = 32, each fetched through the block table.
//
//   k_b[j] = k_pages[block_tables[b, j / S], j % S],  v_b alike;  the online softmax of flash_forward.cu;  s as in attention.cuh
//
// q (B, Hq, Lq, D), k_pages (N, S, Hkv, D), v_pages (N, S, Hkv, Dv), block_tables (B, max_blocks), kv_lengths, query_lengths (B),
// sinks (Hq) or null. D, Dv <= C. Split s takes the s-th share of a tile's keys and writes float32 parts outs (splits, B, Hq, Lq, Dv),
// lses (splits, B, Hq, Lq) for merge_splits of merge_attention.cu, the sink in the first. Queries from query_lengths[b] on and what sees
// nothing: 0 and -inf (the sink of a query that is none does not count). No slot is read past a sequence's length; what a query does not
// see is not multiplied.
// grid (ceil(G Lq / 16), Hkv, B splits), G = Hq / Hkv   block (32, 4), a lane a key, then a lane a column
// shared 16 C + 32 (C + 1) + 32 C + 512 floats: 22.6 KB at C = 64, 43.2 KB at 128, 84.2 KB at 256 (opt in above 48)
// budget: 144 registers, 0 spills
// instances: paged_decode<float|__half|__nv_bfloat16, 64|128|256>
// Source: Kwon et al. 2023 (arXiv 2309.06180), section 4.3; splits: Dao et al. 2023, Flash-Decoding.
#include "decode.cuh"

// Tokens j0 .. j0 + BN - 1 of a sequence into shared memory as float32, a warp a token; 0 past `stop` and from column `columns` to C.
template <int C, typename T>
__device__ __forceinline__ void load_tokens(float* tile, int ld, const T* pages, const int* table, int S, int Hkv, int head, int j0, int stop,
                                            int columns, int lane, int warp) {
  for (int r = warp; r < BN; r += WARPS) {
    const int j = j0 + r;
    const T* token = j < stop ? pages + (((long long)table[j / S] * S + j % S) * Hkv + head) * columns : nullptr;
    for (int c = lane; c < C; c += 32) tile[r * ld + c] = token != nullptr && c < columns ? widen(token[c]) : 0.f;
  }
}

template <typename T, int C>
__global__ void __launch_bounds__(THREADS, 1)                              // without the 1, ptxas aims for occupancy and spills
paged_decode(const T* __restrict__ q, const T* __restrict__ k_pages, const T* __restrict__ v_pages, float* __restrict__ outs,
             float* __restrict__ lses, const int* __restrict__ block_tables, const int* __restrict__ kv_lengths,
             const int* __restrict__ query_lengths, const float* __restrict__ sinks, int splits, int B, int max_blocks, int S, int Hq,
             int Hkv, int Lq, int D, int Dv, int causal, int left, int right, float scale, float softcap) {
  extern __shared__ float shared[];
  float* sQ = shared;                                 // [BM][C]
  float* sK = sQ + BM * C;                            // [BN][C + 1]: lanes read down a column without bank conflicts
  float* sV = sK + BN * (C + 1);                      // [BN][C]
  float* sP = sV + BN * C;                            // [BM][BN]
  const int lane = threadIdx.x, warp = threadIdx.y;
  const int b = blockIdx.z / splits, split = blockIdx.z % splits, hkv = blockIdx.y, G = Hq / Hkv, r0 = blockIdx.x * BM;
  Scores scores = scores_of(b, 0, kv_lengths, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, Lq, 0, causal, left, right,
                            scale, softcap, 1.f);
  scores.n_q = query_lengths[b];
  if (causal != TOP_LEFT) scores.shift = scores.n_k - scores.n_q;          // of the queries there are
  const int* table = block_tables + (long long)b * max_blocks;
  for (int at = warp * 32 + lane; at < BM * C; at += THREADS) {
    const int r = r0 + at / C, c = at % C, i = r / G, h = hkv * G + r % G;
    sQ[at] = i < scores.n_q && c < D ? widen(q[(((long long)b * Hq + h) * Lq + i) * D + c]) : 0.f;
  }
  Running<C / 32> row;
#pragma unroll
  for (int r = 0; r < ROWS_A_WARP; ++r) {
    const int at = r0 + warp + r * WARPS;
    row.start(r, sinks == nullptr || split > 0 || at / G >= scores.n_q ? -CUDART_INF_F : sinks[hkv * G + at % G], lane);
  }
  const int i0 = r0 / G, i1 = min((r0 + BM - 1) / G + 1, scores.n_q);      // the queries of this tile
  const Share keys = share_of(scores.first_key(i0), i0 < i1 ? scores.stop_key(i1) : 0, split, splits);
  for (int j0 = keys.from; j0 < keys.stop; j0 += BN) {
    __syncthreads();                                  // the last tile has been used
    load_tokens<C>(sK, C + 1, k_pages, table, S, Hkv, hkv, j0, keys.stop, D, lane, warp);
    load_tokens<C>(sV, C, v_pages, table, S, Hkv, hkv, j0, keys.stop, Dv, lane, warp);
    __syncthreads();
    if ((r0 + warp) / G >= scores.n_q) continue;      // the whole warp: it only helps to load
    row.step(sQ, C, sK, C + 1, D, sV, C, sP, lane, warp, [&](int r, float dot) {
      return scores.added_and_hidden(scores.capped(dot), (r0 + warp + r * WARPS) / G, j0 + lane);
    });
  }
#pragma unroll
  for (int r = 0; r < ROWS_A_WARP; ++r) {
    const int at = r0 + warp + r * WARPS, i = at / G, h = hkv * G + at % G;
    const long long to = (((long long)split * B + b) * Hq + h) * Lq + i;
    row.write(r, outs + to * Dv, lses + to, Dv, lane, i < Lq);
  }
}
