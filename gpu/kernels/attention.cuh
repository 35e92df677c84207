// What a query sees and what its scores are, the same for the forward and the backward kernels.
#pragma once
#include "common.cuh"

enum Causal { NOT_CAUSAL = 0, BOTTOM_RIGHT = 1, TOP_LEFT = 2 };

// Tiles of every attention kernel: a block of 4 warps takes BM queries against BN keys, one key a lane.
constexpr int BM = 16, BN = 32, WARPS = 4, THREADS = 32 * WARPS, ROWS_A_WARP = BM / WARPS;

// The scores of one head of one sequence.
//
//   s = scale q k^T,  s = softcap tanh(s / softcap),  s += bias - slope |p - j|,  -inf where hidden;  p = i + shift
struct Scores {
  float scale, softcap, slope, factor;                // softcap 0: none; factor = 1 / (1 - dropout_p)
  const float* bias;                                  // each at (b, h, 0, 0); null: none
  const unsigned char *mask, *kept;
  const long long* steps;                             // [3][4]: elements between neighbours along B, Hq, Lq, Lk of bias, mask, kept
  int shift, behind, ahead, n_q, n_k;                 // keys p - behind .. p + ahead are not hidden by position; -1: no limit

  __device__ __forceinline__ long long at(int which, int i, int j) const { return i * steps[4 * which + 2] + j * steps[4 * which + 3]; }

  // Before bias and mask; `dot` = q k^T.
  __device__ __forceinline__ float capped(float dot) const {
    const float s = scale * dot;
    return softcap > 0.f ? softcap * tanhf(s / softcap) : s;
  }

  // The derivative of `capped` by scale * dot, from its value: 1 - tanh^2.
  __device__ __forceinline__ float slope_of_cap(float s) const { return softcap > 0.f ? (1.f - s / softcap) * (1.f + s / softcap) : 1.f; }

  __device__ __forceinline__ float added_and_hidden(float s, int i, int j) const {
    const int p = i + shift;
    bool seen = i < n_q && j < n_k && (ahead < 0 || j <= p + ahead) && (behind < 0 || p - j <= behind);
    if (seen && mask != nullptr) seen = mask[at(1, i, j)] != 0;
    if (seen && bias != nullptr) {
      const float b = bias[at(0, i, j)];
      seen = b != -CUDART_INF_F;                      // by itself: NaN + -inf is NaN
      s += b;
    }
    if (slope != 0.f) s -= slope * (float)abs(p - j);
    return seen ? s : -CUDART_INF_F;
  }

  // What dropout multiplies a probability with.
  __device__ __forceinline__ float kept_factor(int i, int j) const {
    return kept == nullptr ? 1.f : kept[at(2, i, j)] != 0 ? factor : 0.f;
  }

  // The first key that queries from i0 on may see, and the one past the last that queries up to i1 - 1 may see.
  __device__ __forceinline__ int first_key(int i0) const { return behind < 0 ? 0 : max(0, i0 + shift - behind); }
  __device__ __forceinline__ int stop_key(int i1) const { return ahead < 0 ? n_k : min(n_k, i1 + shift + ahead); }

  // The first query that may see a key from j0 on, and the one past the last that may see one up to j1 - 1.
  __device__ __forceinline__ int first_query(int j0) const { return ahead < 0 ? 0 : max(0, j0 - ahead - shift); }
  __device__ __forceinline__ int stop_query(int j1) const { return behind < 0 ? n_q : min(n_q, j1 + behind - shift); }
};

// Everything but the lengths and pointers of one head: the arguments all attention kernels share, in their order.
__device__ __forceinline__ Scores scores_of(int b, int h, const int* kv_lengths, const int* cu_q, const int* cu_k, const float* bias,
                                            const unsigned char* mask, const unsigned char* kept, const float* slopes, const long long* steps,
                                            int Lq, int Lk, int causal, int left, int right, float scale, float softcap, float factor) {
  Scores s;
  s.scale = scale, s.softcap = softcap, s.factor = factor, s.steps = steps;
  s.slope = slopes == nullptr ? 0.f : slopes[h];
  s.bias = bias == nullptr ? nullptr : bias + b * steps[0] + h * steps[1];
  s.mask = mask == nullptr ? nullptr : mask + b * steps[4] + h * steps[5];
  s.kept = kept == nullptr ? nullptr : kept + b * steps[8] + h * steps[9];
  s.n_q = cu_q == nullptr ? Lq : cu_q[b + 1] - cu_q[b];
  s.n_k = cu_k != nullptr ? cu_k[b + 1] - cu_k[b] : kv_lengths != nullptr ? kv_lengths[b] : Lk;
  s.shift = causal == TOP_LEFT ? 0 : s.n_k - s.n_q;
  s.behind = left;
  s.ahead = causal == NOT_CAUSAL ? right : 0;
  return s;
}
