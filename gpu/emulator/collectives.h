// Barriers of a block, and what the lanes of a warp do together.
#pragma once
#include "runtime.h"

inline void __syncthreads(EMU_CALLER) { emu::wait_for_block(emu::Op::syncthreads, 0, file, line); }
inline int __syncthreads_or(int predicate, EMU_CALLER) {
  emu::wait_for_block(emu::Op::syncthreads_reduce, predicate, file, line);
  return emu::launch.any;
}
inline int __syncthreads_and(int predicate, EMU_CALLER) {
  emu::wait_for_block(emu::Op::syncthreads_reduce, predicate, file, line);
  return emu::launch.all;
}
inline int __syncthreads_count(int predicate, EMU_CALLER) {
  emu::wait_for_block(emu::Op::syncthreads_reduce, predicate, file, line);
  return emu::launch.count;
}
inline void __syncwarp(unsigned mask = 0xffffffffu, EMU_CALLER) {
  emu::wait_for_warp(mask, emu::Op::syncwarp, nullptr, 0, file, line);
}
inline unsigned __activemask() { return 0xffffffffu; }  // lanes are never converged by chance here
inline void __threadfence() { emu::fence(); }
inline void __threadfence_system() { emu::fence(); }
inline void __threadfence_block() {}
inline void __nanosleep(unsigned) { emu::may_yield(); }

namespace emu {

// The value that lane `source` brought, or the own one where the source lies outside the segment (source < 0).
template <class T>
T shuffle(unsigned mask, T value, int source, const char* file, int line) {
  static_assert(sizeof(T) <= EXCHANGED, "a shuffled value of this size");
  wait_for_warp(mask, Op::shuffle, &value, sizeof value, file, line);
  if (source < 0) return value;
  if (!((mask >> source) & 1)) fail(Kind::divergence, file, line, "shuffle reads lane %d, which mask %08x leaves out", source, mask);
  T result;
  memcpy(static_cast<void*>(&result), brought_by(source, true, file, line), sizeof result);
  return result;
}

inline int segment_start(int width) { return static_cast<int>(current->lane) & ~(width - 1); }

// Bits of the lanes whose value satisfies the condition.
template <class T, class Condition>
unsigned ballot(unsigned mask, T value, Op op, const char* file, int line, Condition holds) {
  wait_for_warp(mask, op, &value, sizeof value, file, line);
  unsigned bits = 0;
  for (unsigned lane = 0; lane < WARP; ++lane) {
    const void* theirs = (mask >> lane) & 1 ? brought_by(lane, false, file, line) : nullptr;
    if (!theirs) continue;
    T other;
    memcpy(&other, theirs, sizeof other);
    if (holds(other)) bits |= 1u << lane;
  }
  return bits;
}

template <class T, class Combine>
T reduce(unsigned mask, T value, const char* file, int line, Combine combine) {
  wait_for_warp(mask, Op::reduce, &value, sizeof value, file, line);
  T result = value;
  bool first = true;
  for (unsigned lane = 0; lane < WARP; ++lane) {
    const void* theirs = (mask >> lane) & 1 ? brought_by(lane, false, file, line) : nullptr;
    if (!theirs) continue;
    T other;
    memcpy(&other, theirs, sizeof other);
    result = first ? other : combine(result, other);
    first = false;
  }
  return result;
}

}  // namespace emu

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, EMU_CALLER) {
  return emu::shuffle(mask, value, emu::segment_start(width) + (source & (width - 1)), file, line);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32, EMU_CALLER) {
  const int source = static_cast<int>(emu::current->lane) ^ lanes;
  return emu::shuffle(mask, value, source < emu::segment_start(width) + width ? source : -1, file, line);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, EMU_CALLER) {
  const int source = static_cast<int>(emu::current->lane + delta);
  return emu::shuffle(mask, value, source < emu::segment_start(width) + width ? source : -1, file, line);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, EMU_CALLER) {
  const int source = static_cast<int>(emu::current->lane) - static_cast<int>(delta);
  return emu::shuffle(mask, value, source >= emu::segment_start(width) ? source : -1, file, line);
}

inline unsigned __ballot_sync(unsigned mask, int predicate, EMU_CALLER) {
  return emu::ballot(mask, predicate, emu::Op::vote, file, line, [](int other) { return other != 0; });
}
inline int __any_sync(unsigned mask, int predicate, EMU_CALLER) {
  return emu::ballot(mask, predicate, emu::Op::vote, file, line, [](int other) { return other != 0; }) != 0;
}
inline int __all_sync(unsigned mask, int predicate, EMU_CALLER) {
  return emu::ballot(mask, predicate, emu::Op::vote, file, line, [](int other) { return other == 0; }) == 0;
}
template <class T>
unsigned __match_any_sync(unsigned mask, T value, EMU_CALLER) {
  return emu::ballot(mask, value, emu::Op::match, file, line, [value](T other) { return memcmp(&other, &value, sizeof value) == 0; });
}
template <class T>
unsigned __match_all_sync(unsigned mask, T value, int* all_equal, EMU_CALLER) {
  const unsigned differ =
      emu::ballot(mask, value, emu::Op::match, file, line, [value](T other) { return memcmp(&other, &value, sizeof value) != 0; });
  *all_equal = differ == 0;
  return differ == 0 ? mask : 0u;
}

#define EMU_REDUCE(NAME, EXPRESSION)                                                                     \
  template <class T>                                                                                     \
  T NAME(unsigned mask, T value, EMU_CALLER) {                                                           \
    return emu::reduce(mask, value, file, line, [](T a, T b) { return static_cast<T>(EXPRESSION); });    \
  }
EMU_REDUCE(__reduce_add_sync, a + b)
EMU_REDUCE(__reduce_max_sync, a > b ? a : b)
EMU_REDUCE(__reduce_min_sync, a < b ? a : b)
EMU_REDUCE(__reduce_and_sync, a & b)
EMU_REDUCE(__reduce_or_sync, a | b)
EMU_REDUCE(__reduce_xor_sync, a ^ b)
#undef EMU_REDUCE
