// Verification of one draft a row: a prefix of it is kept and one token added, so that what comes out has the law of the target.
//
//   accept x_j while u_j q_j(x_j) < p_j(x_j);  first rejection, at j: one token from [p_j - q_j]+, from p_j where that is 0 everywhere;
//   all n accepted: one token from p_n.   A draw is the first i with u S < w_0 + … + w_i, S the sum of the weights
//
// draft_tokens (B, K) int64, q = draft_probs (B, K, V), p = target_probs (B, K + 1, V) float32, accept_u (B, K), sample_u (B) float64,
// draft_lengths (B); a draft token of -1 ends a row's draft. tokens (B, K + 1) int64, -1 behind the token that was drawn; n_accepted (B)
// int64, -1 for a row that reads what is no probability. A decision costs two numbers; only the row that is drawn from is read whole:
// rows are not divided by their sum, which is 1 within roundings. Products u q are exact in float64, sums are of whole numbers.
// grid (B)   block (32, WARPS)   shared 8 WARPS + 4 bytes, static   budget: 64 registers, 0 spills
// instances: speculative_verify<1|8>
// Source: Leviathan, Kalman and Matias 2023 (arXiv 2211.17192), algorithm 1; Chen et al. 2023 (arXiv 2302.01318), algorithm 2.
#include "masses.cuh"

// No probability is above 1 but for rounding.
__device__ __forceinline__ bool is_probability(float p) { return p >= 0.f && p < 2.f; }

template <int WARPS>
__global__ void __launch_bounds__(32 * WARPS)
speculative_verify(const long long* __restrict__ draft_tokens, const float* __restrict__ draft_probs, const float* __restrict__ target_probs,
                   const double* __restrict__ accept_u, const double* __restrict__ sample_u, const int* __restrict__ draft_lengths,
                   long long* __restrict__ tokens, long long* __restrict__ n_accepted, int K, int V, int shift) {
  __shared__ Mass totals[WARPS];
  __shared__ int found;
  const int lane = threadIdx.x, warp = threadIdx.y, thread = warp * 32 + lane;
  const long long b = blockIdx.x;
  const long long* x = draft_tokens + b * K;
  const int n = draft_lengths[b];
  int j = 0;
  bool is_rejected = false, is_valid = true;
  for (; j < n && x[j] >= 0; ++j) {                   // every thread by itself: the same for all
    const float q = draft_probs[(b * K + j) * V + x[j]], p = target_probs[(b * (K + 1) + j) * V + x[j]];
    is_valid = is_probability(q) && is_probability(p);
    is_rejected = !(accept_u[b * K + j] * (double)q < (double)p);             // strict: u = 0 rejects p = 0
    if (is_rejected || !is_valid) break;
  }
  const float *q = draft_probs + (b * K + j) * V, *p = target_probs + (b * (K + 1) + j) * V;   // q: only where one is rejected
  const auto target = [&](int i) { return is_probability(p[i]) ? mass_of(p[i], shift) : NO_MASS; };
  const auto residual = [&](int i) {
    return is_probability(p[i]) && is_probability(q[i]) ? mass_of(fmaxf(p[i] - q[i], 0.f), shift) : NO_MASS;
  };
  int token = -1;
  Sums sums = {0, 0, 0, 0, 0};
  if (is_rejected && is_valid) {
    sums = sums_of<WARPS>(V, totals, lane, warp, residual);
    if (sums.all == NO_MASS) is_valid = false;
    else if (sums.all != 0) token = drawn(sums, sample_u[b], &found, lane, residual);
  }
  if (token < 0 && is_valid) {                        // the bonus, or nothing was left
    sums = sums_of<WARPS>(V, totals, lane, warp, target);
    is_valid = sums.all != NO_MASS && sums.all != 0;
    if (is_valid) token = drawn(sums, sample_u[b], &found, lane, target);
  }
  for (int c = thread; c <= K; c += 32 * WARPS) tokens[b * (K + 1) + c] = c < j ? x[c] : c == j ? token : -1;
  if (thread == 0) n_accepted[b] = is_valid ? j : -1;
}
