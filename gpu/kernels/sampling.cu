// Filters on the logits of a row, and the draw of a token: one block a row, no sorting, sums of whole numbers.
//
//   filter_probabilities   w_i = e^((z_i - m) / T),  m = max z;  keep the k largest z; of these the shortest prefix in descending order
//                          whose w come to top_p of theirs; of these w_i >= min_p;  p_i = w_i / sum of the kept w.   Ties: lowest index
//   sample                 the first i with u S < p_0 + … + p_i,  S the sum of all
//
// logits, probabilities, p: (rows, V) in T; temperature, top_p, min_p (rows) float64, top_k (rows) int64 in 1 .. V, each or null;
// u (rows) float64. Temperature 0: one at the first of the largest logits. valid (rows): 0 for a row with a NaN, a +inf or nothing but
// -inf, whose p is not written. tokens (rows) int64: -1 for a row that holds what is no weight, or nothing above 0.
// What is kept is all keys above a border and the first few equal to it: the border is found digit by digit, from a histogram of what
// each of 256 digits weighs, top-k with 1 for each logit, top-p with w_i in units of 2^-shift.
// grid (rows)   block (32, WARPS)   shared 2.2 KB at most, static   budget: 80 registers, 0 spills
// instances: filter_probabilities<float|__half|__nv_bfloat16, 1|8>, sample<float|__half|__nv_bfloat16, 1|8>
// Source: Fan et al. 2018 (arXiv 1805.04833), Holtzman et al. 2020 (arXiv 1904.09751), Nguyen et al. 2024 (arXiv 2407.01082); the
// draw: Devroye 1986, section III.2.
#include "masses.cuh"

constexpr float LEAST_NORMAL = 1.17549435e-38f;

// Bits in the order of the numbers, and back; -0 is 0.
__device__ __forceinline__ unsigned key_of(float z) {
  const unsigned bits = __float_as_uint(z + 0.f);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float of_key(unsigned key) { return __uint_as_float(key >> 31 ? key & 0x7fffffffu : ~key); }

// The key at which weights, added in descending order of their keys, first reach a goal; what they come to before it, and at it.
struct Border {
  unsigned key;
  Mass before, at;
};

// 0 < goal <= the sum of all weights.
template <int WARPS, typename Key, typename Weight>
__device__ __forceinline__ Border border_of(int V, Mass goal, Mass* bins, Border* chosen, int lane, int warp, Key key, Weight weight) {
  Border border = {0, 0, 0};
  for (int low = 24; low >= 0; low -= 8) {
    for (int digit = warp * 32 + lane; digit < 256; digit += 32 * WARPS) bins[digit] = 0;
    __syncthreads();
    for (int i = warp * 32 + lane; i < V; i += 32 * WARPS) {
      const unsigned own = key(i);
      if (low < 24 && (own ^ border.key) >> (low + 8) != 0) continue;         // another beginning
      const Mass w = weight(i);
      if (w != 0) atomicAdd(&bins[own >> low & 255], w);                      // whole numbers: no order to mind
    }
    __syncthreads();
    if (warp == 0) {                                  // lane l: the digits 255 - 8 l and the seven below
      Mass eight = 0;
      for (int d = 0; d < 8; ++d) eight += bins[255 - 8 * lane - d];
      Mass sum = border.before + warp_prefix(eight, lane);
      const unsigned reached = __ballot_sync(FULL_WARP, sum >= goal);
      if (lane == __ffs(reached) - 1) {
        sum -= eight;
        int digit = 255 - 8 * lane;
        while (sum + bins[digit] < goal) sum += bins[digit--];
        *chosen = {border.key | (unsigned)digit << low, sum, bins[digit]};
      }
    }
    __syncthreads();
    border = {chosen->key, chosen->before, chosen->at};
  }
  return border;
}

template <typename T, int WARPS>
__global__ void __launch_bounds__(32 * WARPS, 1)                          // without the 1, ptxas aims for occupancy and spills
filter_probabilities(const T* __restrict__ logits, const double* __restrict__ temperature, const long long* __restrict__ top_k,
                     const double* __restrict__ top_p, const double* __restrict__ min_p, T* __restrict__ p, int* __restrict__ valid, int V,
                     int shift) {
  __shared__ Mass bins[256], totals[WARPS];
  __shared__ float maxima[WARPS];
  __shared__ Border chosen;
  __shared__ int found;
  const int lane = threadIdx.x, warp = threadIdx.y, thread = warp * 32 + lane;
  const long long row = blockIdx.x;
  const T* z = logits + row * V;
  float m = -CUDART_INF_F;
  for (int i = thread; i < V; i += 32 * WARPS) {
    const float own = widen(z[i]);
    m = own != own ? CUDART_INF_F : fmaxf(m, own);    // a NaN is told from no number by +inf, which is none either
  }
  m = block_max<WARPS>(m, maxima, lane, warp);
  const bool is_valid = fabsf(m) != CUDART_INF_F;
  if (thread == 0) valid[row] = is_valid;
  if (!is_valid) return;

  const double given = temperature == nullptr ? 1. : temperature[row];
  const bool cold = given == 0.;
  const float degrees = cold ? 1.f : fmaxf((float)given, LEAST_NORMAL);
  const auto key = [&](int i) { return key_of(widen(z[i])); };
  const auto weigh = [&](float own) { return own == -CUDART_INF_F ? 0.f : expf((own - m) / degrees); };

  // Kept: keys above `border`, and those equal to it up to index `last`.
  unsigned border = 0;
  int last = V - 1;
  const auto kept = [&](int i) {
    const unsigned own = key(i);
    return own > border || (own == border && i <= last);
  };
  const auto mass = [&](int i) { return kept(i) ? mass_of(weigh(widen(z[i])), shift) : 0; };
  const auto keep = [&](unsigned at, Mass ties) {     // the first `ties` of the logits with this key, and all above
    const auto equal = [&](int i) { return (Mass)(key(i) == at); };
    const int until = first_past(sums_of<WARPS>(V, totals, lane, warp, equal), ties - 1, &found, lane, equal);
    border = at, last = until;
  };
  const Mass k = cold ? 1 : top_k == nullptr ? V : top_k[row];
  if (k < V) {
    const Border found_k = border_of<WARPS>(V, k, bins, &chosen, lane, warp, key, [](int) { return (Mass)1; });
    keep(found_k.key, k - found_k.before);
  }
  if (!cold && top_p != nullptr && top_p[row] < 1.) {
    const Mass all = sums_of<WARPS>(V, totals, lane, warp, mass).all;
    const Mass goal = max((Mass)1, min((Mass)ceil(top_p[row] * (double)all), all));
    const Border found_p = border_of<WARPS>(V, goal, bins, &chosen, lane, warp, key, mass);
    const Mass each = mass_of(weigh(of_key(found_p.key)), shift);
    keep(found_p.key, (goal - found_p.before + each - 1) / each);
  }
  const float least = cold || min_p == nullptr ? 0.f : (float)min_p[row];
  const auto left = [&](int i) {
    const float w = kept(i) ? weigh(widen(z[i])) : 0.f;
    return w >= least ? w : 0.f;
  };
  const Mass all = sums_of<WARPS>(V, totals, lane, warp, [&](int i) { return mass_of(left(i), shift); }).all;
  const float sum = (float)ldexp((double)all, -shift);
  for (int i = thread; i < V; i += 32 * WARPS) narrow(left(i) / sum, &p[row * V + i]);
}

template <typename T, int WARPS>
__global__ void __launch_bounds__(32 * WARPS)
sample(const T* __restrict__ probabilities, const double* __restrict__ u, long long* __restrict__ tokens, int V, int shift) {
  __shared__ Mass totals[WARPS];
  __shared__ float maxima[WARPS];
  __shared__ int found;
  const int lane = threadIdx.x, warp = threadIdx.y, thread = warp * 32 + lane;
  const long long row = blockIdx.x;
  const T* p = probabilities + row * V;
  float most = 0.f;
  for (int i = thread; i < V; i += 32 * WARPS) most = fmaxf(most, widen(p[i]));
  most = block_max<WARPS>(most, maxima, lane, warp);
  int exponent = 0;                                   // the largest weight is below 2^exponent
  if (most < CUDART_INF_F) frexpf(most, &exponent);
  const auto mass = [&](int i) {
    const float w = widen(p[i]);
    return w >= 0.f && w < CUDART_INF_F ? mass_of(w, shift - exponent) : NO_MASS;
  };
  const Sums sums = sums_of<WARPS>(V, totals, lane, warp, mass);
  const bool is_valid = sums.all != NO_MASS && sums.all != 0;
  const int token = is_valid ? drawn(sums, u[row], &found, lane, mass) : -1;
  if (thread == 0) tokens[row] = token;
}
