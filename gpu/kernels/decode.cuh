// Attention of few queries over a long cache, one block for all rows (query i, head g) that read the same keys: what the paged and the
// latent kernel share. Row r of a group of G heads is query r / G of head r % G, so that a tile of rows sees nearly the same keys.
#pragma once
#include "attention.cuh"

// A share of the key tiles from .. stop of `splits`, split s the s-th.
struct Share {
  int from, stop;
};

__device__ __forceinline__ Share share_of(int begin, int end, int split, int splits) {
  const int first = begin / BN * BN, tiles = max(0, (end - first + BN - 1) / BN), share = (tiles + splits - 1) / splits;
  const int from = first + split * share * BN;
  return {from, min(end, from + share * BN)};
}

// Running maximum, this lane's share of the row sum, and the output of the rows warp, warp + 4, … of a tile; lane c, c + 32, … of v.
template <int COLUMNS>
struct Running {
  float m[ROWS_A_WARP], l[ROWS_A_WARP], o[ROWS_A_WARP][COLUMNS];

  // A sink enters as the first m, with l = 1 and o = 0; -inf: none.
  __device__ __forceinline__ void start(int r, float sink, int lane) {
    m[r] = sink, l[r] = lane == 0 && sink != -CUDART_INF_F ? expf(sink - sink) : 0.f;      // 1, or NaN
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) o[r][c] = 0.f;
  }

  // One tile of BN keys, a lane a key: dots of `columns` terms, hidden(r, s) says s or -inf, then the product with the values.
  template <typename Hidden>
  __device__ __forceinline__ void step(const float* sQ, int ld_q, const float* sK, int ld_k, int columns, const float* sV, int ld_v,
                                       float* sP, int lane, int warp, Hidden hidden) {
    float s[ROWS_A_WARP] = {};
    for (int c = 0; c < columns; ++c) {
      const float key = sK[lane * ld_k + c];
#pragma unroll
      for (int r = 0; r < ROWS_A_WARP; ++r) s[r] = fmaf(sQ[(warp + r * WARPS) * ld_q + c], key, s[r]);
    }
    unsigned seen[ROWS_A_WARP];                       // bit j: key j of the tile is seen by row r
#pragma unroll
    for (int r = 0; r < ROWS_A_WARP; ++r) {
      s[r] = hidden(r, s[r]);
      seen[r] = __ballot_sync(FULL_WARP, s[r] != -CUDART_INF_F);     // NaN is seen
      const bool sees = seen[r] >> lane & 1;
      const float m_new = fmaxf(m[r], warp_max(s[r])), p = sees ? expf(s[r] - m_new) : 0.f, alpha = rescaling(m[r], m_new);
      m[r] = m_new, l[r] = l[r] * alpha + p;
      sP[(warp + r * WARPS) * BN + lane] = p;
#pragma unroll
      for (int c = 0; c < COLUMNS; ++c) o[r][c] *= alpha;
    }
    __syncwarp();                                     // a row of P is written and read by one warp
    for (int j = 0; j < BN; ++j) {
#pragma unroll
      for (int r = 0; r < ROWS_A_WARP; ++r) {
        if (!(seen[r] >> j & 1)) continue;            // a hidden value never matters, NaN and inf included
        const float p = sP[(warp + r * WARPS) * BN + j];
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c) o[r][c] = fmaf(p, sV[j * ld_v + c * 32 + lane], o[r][c]);
      }
    }
  }

  // out (columns) and lse of row r; every lane has to come.
  __device__ __forceinline__ void write(int r, float* out, float* lse, int columns, int lane, bool is_a_row) const {
    const float sum = warp_sum(l[r]);
    if (!is_a_row) return;
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c)
      if (c * 32 + lane < columns) out[c * 32 + lane] = o[r][c] / (sum == 0.f ? 1.f : sum);
    if (lane == 0) *lse = log_of_sum(m[r], sum);
  }
};
