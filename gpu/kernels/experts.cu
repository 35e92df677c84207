// A mixture of experts: who goes where, the tokens at their places, one product an expert, and the weighted sum back at the tokens.
//
//   ids   = the k largest of p + bias, of equals the lowest index,   p = softmax(logits)
//   gates = p[ids],   or where normalized e^(z - m) / sum over the chosen, m their largest: no quotient of vanishing numbers
//   slots = the first choices of all tokens in their order, then the second ones: the next place of the expert; -1 from `capacity` on
//   buffer[ids, slots] = x,   y = buffer w of each expert,   out_t = sum_j gates_tj y[ids_tj, slots_tj]
//
// logits (T, E), bias (E) or null, ids, slots and gates (T, k), counts (E): places taken; buffer (E, C, D), zeros at first; y (E, C, F).
// No place is reached by two threads, and every sum has one order: the same bits in any order of blocks. Logits hold no NaN and no +inf.
// route: a warp a token, grid (ceil(T / 4)), block (32, 4), shared 4 E floats;   slots: a warp an expert, grid (E), block (32)
// dispatch: grid (T k), block (128);   expert_matmul: grid (ceil(F / 16), ceil(C / 16), E), block (16, 16), shared 2 x 16 x 17 floats
// combine: grid (T, ceil(F / 128)), block (128)   budget: 64 registers, 0 spills
// instances: route<float|__half|__nv_bfloat16>, dispatch<float|__half|__nv_bfloat16>, expert_matmul<float|__half|__nv_bfloat16>,
//   combine<float|__half|__nv_bfloat16>
// Source: Shazeer et al. 2017 (arXiv 1701.06538), equation 1; Lepikhin et al. 2020 (arXiv 2006.16668), algorithm 1.
#include "common.cuh"

constexpr int WARPS = 4, COLUMNS = 128, TILE = 16;
constexpr int NOBODY = 0x7fffffff;

template <typename T>
__global__ void __launch_bounds__(32 * WARPS, 8)           // 8 blocks at once: left alone, ptxas spills at 32 registers
route(const T* __restrict__ logits, const float* __restrict__ bias, long long* __restrict__ ids, float* __restrict__ gates,
      long long tokens, int E, int k, bool normalize) {
  extern __shared__ float all_scores[];
  const int lane = threadIdx.x;
  const long long t = (long long)blockIdx.x * WARPS + threadIdx.y;
  if (t >= tokens) return;                            // the whole warp; no barrier of the block follows
  const T* z = logits + t * E;
  float* scores = all_scores + threadIdx.y * E;       // read and written by the lane that owns the expert
  float m = -CUDART_INF_F, l = 0.f;
  for (int e = lane; e < E; e += 32) m = fmaxf(m, widen(z[e]));
  m = warp_max(m);
  const float shift = m == -CUDART_INF_F ? 0.f : m;
  for (int e = lane; e < E; e += 32) l += expf(widen(z[e]) - shift);
  l = warp_sum(l);
  const float whole = l == 0.f ? 1.f : l;
  for (int e = lane; e < E; e += 32) scores[e] = expf(widen(z[e]) - shift) / whole + (bias == nullptr ? 0.f : bias[e]);
  for (int j = 0; j < k; ++j) {
    float best = -CUDART_INF_F;
    int own = NOBODY;
    for (int e = lane; e < E; e += 32)
      if (scores[e] > best || (own == NOBODY && scores[e] == best)) best = scores[e], own = e;
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      const float other = __shfl_xor_sync(FULL_WARP, best, step);
      const int index = __shfl_xor_sync(FULL_WARP, own, step);
      if (other > best || (other == best && index < own)) best = other, own = index;
    }
    if (lane == own % 32) scores[own] = CUDART_NAN_F; // taken: compares with nothing
    if (lane == 0) ids[t * k + j] = own;
  }
  __syncwarp();                                       // the ids of lane 0 are read by all
  float top = -CUDART_INF_F, sum = 0.f;
  for (int j = 0; j < k; ++j) top = fmaxf(top, widen(z[ids[t * k + j]]));
  const float of_chosen = top == -CUDART_INF_F ? 0.f : top;
  for (int j = 0; j < k; ++j) sum += expf(widen(z[ids[t * k + j]]) - of_chosen);
  const float base = normalize ? of_chosen : shift, over = normalize ? (sum == 0.f ? 1.f : sum) : whole;
  for (int j = lane; j < k; j += 32) gates[t * k + j] = expf(widen(z[ids[t * k + j]]) - base) / over;
}

extern "C" __global__ void __launch_bounds__(32)
slots_of(const long long* __restrict__ ids, long long* __restrict__ slots, int* __restrict__ counts, long long tokens, int k,
         long long capacity) {
  const int lane = threadIdx.x;
  long long count = 0;
  for (int j = 0; j < k; ++j)
    for (long long t0 = 0; t0 < tokens; t0 += 32) {
      const long long t = t0 + lane;
      const bool mine = t < tokens && ids[t * k + j] == blockIdx.x;
      const unsigned all = __ballot_sync(FULL_WARP, mine);
      const long long place = count + __popc(all & ((1u << lane) - 1u));
      if (mine) slots[t * k + j] = place < capacity ? place : -1;
      count += __popc(all);
    }
  if (lane == 0) counts[blockIdx.x] = (int)min(count, capacity);
}

template <typename T>
__global__ void __launch_bounds__(COLUMNS)
dispatch(const T* __restrict__ x, const long long* __restrict__ ids, const long long* __restrict__ slots, T* __restrict__ buffer, int k,
         long long C, int D) {
  const long long assignment = blockIdx.x, slot = slots[assignment];
  if (slot < 0) return;
  const T* from = x + assignment / k * D;
  T* to = buffer + (ids[assignment] * C + slot) * D;
  for (int d = threadIdx.x; d < D; d += COLUMNS) to[d] = from[d];
}

template <typename T>
__global__ void __launch_bounds__(TILE * TILE)
expert_matmul(const T* __restrict__ buffer, const T* __restrict__ w, const int* __restrict__ counts, float* __restrict__ y, int C, int D,
              int F) {
  __shared__ float rows[TILE][TILE + 1], columns[TILE][TILE + 1];
  const int e = blockIdx.z, c0 = blockIdx.y * TILE, f = blockIdx.x * TILE + threadIdx.x, c = c0 + threadIdx.y;
  if (c0 >= counts[e]) return;                        // the whole block: nobody is there
  float sum = 0.f;
  for (int d0 = 0; d0 < D; d0 += TILE) {
    const int across = d0 + threadIdx.x, down = d0 + threadIdx.y;
    rows[threadIdx.y][threadIdx.x] = c < C && across < D ? widen(buffer[((long long)e * C + c) * D + across]) : 0.f;
    columns[threadIdx.y][threadIdx.x] = down < D && f < F ? widen(w[((long long)e * D + down) * F + f]) : 0.f;
    __syncthreads();
#pragma unroll
    for (int d = 0; d < TILE; ++d) sum = fmaf(rows[threadIdx.y][d], columns[d][threadIdx.x], sum);
    __syncthreads();
  }
  if (c < C && f < F) y[((long long)e * C + c) * F + f] = sum;
}

template <typename T>
__global__ void __launch_bounds__(COLUMNS)
combine(const float* __restrict__ y, const long long* __restrict__ ids, const long long* __restrict__ slots,
        const float* __restrict__ gates, T* __restrict__ out, int k, long long C, int F) {
  const long long t = blockIdx.x;
  const int f = blockIdx.y * COLUMNS + threadIdx.x;
  if (f >= F) return;
  float sum = 0.f;
  for (int j = 0; j < k; ++j) {
    const long long slot = slots[t * k + j];
    if (slot >= 0) sum += gates[t * k + j] * y[(ids[t * k + j] * C + slot) * F + f];
  }
  narrow(sum, &out[t * F + f]);
}
