// What GCC's -fsanitize=thread,bounds,shift-exponent calls for every load and store of a kernel. Linked instead of its libraries.
#include "checker.h"
#include "findings.h"
#include "watch.h"

using emu::Access;
using emu::Order;

static void accessed(const void* address, size_t bytes, Access access, Order order, const void* instruction, bool must_align = true) {
  emu::InRuntime runtime;
  if (emu::time_is_up()) emu::fail_at(emu::Kind::time_limit, instruction, "still running at the time limit");
  emu::check_access(address, bytes, access, order, instruction, must_align);
}

#define CALLER __builtin_return_address(0)
#define ACCESSES(N)                                                                                                               \
  extern "C" void __tsan_read##N(void* p) { accessed(p, N, Access::read, Order::plain, CALLER); }                                 \
  extern "C" void __tsan_write##N(void* p) { accessed(p, N, Access::write, Order::plain, CALLER); }                               \
  extern "C" void __tsan_volatile_read##N(void* p) { accessed(p, N, Access::read, Order::plain, CALLER); }                        \
  extern "C" void __tsan_volatile_write##N(void* p) { accessed(p, N, Access::write, Order::plain, CALLER); }                      \
  extern "C" void __tsan_unaligned_read##N(void* p) { accessed(p, N, Access::read, Order::plain, CALLER, false); }                \
  extern "C" void __tsan_unaligned_write##N(void* p) { accessed(p, N, Access::write, Order::plain, CALLER, false); }
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)

#define ATOMICS(BITS, T)                                                                                          \
  extern "C" T __tsan_atomic##BITS##_load(const T* p, int) {                                                      \
    accessed(p, sizeof(T), Access::read, Order::atomic, CALLER);                                                  \
    return *p;                                                                                                    \
  }                                                                                                               \
  extern "C" void __tsan_atomic##BITS##_store(T* p, T value, int) {                                               \
    accessed(p, sizeof(T), Access::write, Order::atomic, CALLER);                                                 \
    *p = value;                                                                                                   \
  }                                                                                                               \
  extern "C" int __tsan_atomic##BITS##_compare_exchange_strong(T* p, T* expected, T value, int, int) {            \
    accessed(p, sizeof(T), Access::write, Order::atomic, CALLER);                                                 \
    if (*p == *expected) {                                                                                        \
      *p = value;                                                                                                 \
      return 1;                                                                                                   \
    }                                                                                                             \
    *expected = *p;                                                                                               \
    return 0;                                                                                                     \
  }
ATOMICS(16, unsigned short)
ATOMICS(32, unsigned)
ATOMICS(64, unsigned long long)

extern "C" {
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
void __tsan_read_range(void* p, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) accessed(static_cast<char*>(p) + i, 1, Access::read, Order::plain, CALLER);
}
void __tsan_write_range(void* p, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) accessed(static_cast<char*>(p) + i, 1, Access::write, Order::plain, CALLER);
}

struct Place {
  const char* file;
  uint32_t line, column;
};
void __ubsan_handle_out_of_bounds(Place* place, unsigned long index) {
  emu::fail(emu::Kind::out_of_bounds, place->file, static_cast<int>(place->line), "array index %ld is out of bounds", static_cast<long>(index));
}
void __ubsan_handle_shift_out_of_bounds(Place* place, unsigned long, unsigned long by) {
  emu::fail(emu::Kind::undefined, place->file, static_cast<int>(place->line), "shift by %ld bits", static_cast<long>(by));
}
}
