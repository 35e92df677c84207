// Keys and values of new tokens copied into the slots of a cache, in place, bit for bit.
//
//   k_cache[slots[t]] = k[t],   v_cache[slots[t]] = v[t]      for t = 0, 1, …, T - 1 in this order;  slot -1 skips its token
//
// k_cache (S, k_words), v_cache (S, v_words), k (T, k_words), v (T, v_words), in words of 16 or 32 bits whatever they stand for, so
// that no bit of a NaN changes; slots (T) int64 in -1 .. S - 1. A slot given twice holds the last of its tokens, without an order of
// the blocks: claim_slots leaves the largest t that names a slot in owner (S), -1 at first, and only that token is written.
// grid (ceil(T / 128)), then (T)   block (128)   shared none   budget: 40 registers, 0 spills
// instances: write_kv<unsigned short|unsigned>
// Source: reshape_and_cache of vLLM (Kwon et al. 2023, arXiv 2309.06180, section 5.1).

extern "C" __global__ void __launch_bounds__(128) claim_slots(const long long* __restrict__ slots, int* owner, int T) {
  const int t = blockIdx.x * 128 + threadIdx.x;
  if (t < T && slots[t] >= 0) atomicMax(&owner[slots[t]], t);      // the largest, in whatever order the tokens come
}

template <typename Word>
__global__ void __launch_bounds__(128)
write_kv(Word* __restrict__ k_cache, Word* __restrict__ v_cache, const Word* __restrict__ k, const Word* __restrict__ v,
         const long long* __restrict__ slots, const int* __restrict__ owner, int k_words, int v_words) {
  const long long t = blockIdx.x, slot = slots[t];
  if (slot < 0 || owner[slot] != t) return;
  for (int c = threadIdx.x; c < k_words; c += 128) k_cache[slot * k_words + c] = k[t * k_words + c];
  for (int c = threadIdx.x; c < v_words; c += 128) v_cache[slot * v_words + c] = v[t * v_words + c];
}
