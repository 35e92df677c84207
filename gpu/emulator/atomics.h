// Atomics: places where another thread may take its turn, then compiler builtins that the checker knows to be atomic.
#pragma once
#include "runtime.h"

namespace emu {

template <size_t Bytes> struct Word;
template <> struct Word<2> { using type = unsigned short; };
template <> struct Word<4> { using type = unsigned; };
template <> struct Word<8> { using type = unsigned long long; };

// Replaces *address by change(*address) and returns what stood there.
template <class T, class Change>
EMU_INLINE T read_modify_write(T* address, Change change) {
  using Bits = typename Word<sizeof(T)>::type;
  Bits* bits = reinterpret_cast<Bits*>(address);
  may_yield();
  atomic_access(address, sizeof(T));
  Bits before = __atomic_load_n(bits, __ATOMIC_RELAXED);
  T old;
  for (;;) {
    memcpy(static_cast<void*>(&old), &before, sizeof old);
    const T changed = change(old);
    Bits after;
    memcpy(&after, static_cast<const void*>(&changed), sizeof after);
    if (__atomic_compare_exchange_n(bits, &before, after, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) return old;
  }
}

}  // namespace emu

#define EMU_ATOMIC(NAME, EXPRESSION)                                                       \
  template <class T, class V>                                                              \
  EMU_INLINE T NAME(T* address, V given) {                                                 \
    const T value = static_cast<T>(given);                                                 \
    return emu::read_modify_write(address, [value](T old) -> T { return EXPRESSION; });    \
  }                                                                                        \
  template <class T, class V>                                                              \
  EMU_INLINE T NAME##_block(T* address, V given) { return NAME(address, given); }
EMU_ATOMIC(atomicAdd, old + value)
EMU_ATOMIC(atomicSub, old - value)
EMU_ATOMIC(atomicExch, (static_cast<void>(old), value))
EMU_ATOMIC(atomicMax, old > value ? old : value)
EMU_ATOMIC(atomicMin, old < value ? old : value)
EMU_ATOMIC(atomicOr, old | value)
EMU_ATOMIC(atomicAnd, old & value)
EMU_ATOMIC(atomicXor, old ^ value)
#undef EMU_ATOMIC

template <class T>
EMU_INLINE T atomicCAS(T* address, T expected, T value) {
  return emu::read_modify_write(address, [=](T old) { return old == expected ? value : old; });
}
EMU_INLINE unsigned atomicInc(unsigned* address, unsigned limit) {
  return emu::read_modify_write(address, [limit](unsigned old) { return old >= limit ? 0u : old + 1; });
}
EMU_INLINE unsigned atomicDec(unsigned* address, unsigned limit) {
  return emu::read_modify_write(address, [limit](unsigned old) { return old == 0 || old > limit ? limit : old - 1; });
}
