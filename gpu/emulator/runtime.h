// What the kernel's side needs of the runtime: the state of one launch, and the calls at which a fiber may be suspended.
#pragma once
#include <vector_types.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#define EMU_EXPORT extern "C" __attribute__((visibility("default")))
// Last parameters of everything that a report should place at its caller.
#define EMU_CALLER const char *file = __builtin_FILE(), int line = __builtin_LINE()
// What reads or writes the kernel's memory for it: inlined, so that the access lies at a line of the kernel.
#define EMU_INLINE inline __attribute__((always_inline))

namespace emu {

enum class State { ready, at_barrier, at_warp, exited };
enum class Op { none, syncthreads, syncthreads_reduce, syncwarp, shuffle, vote, match, reduce, mma, ldmatrix };
// In the order of KINDS in faults.py.
enum class Kind {
  async_copy, race, out_of_bounds, misaligned, uninitialised, write_to_const, divergence, launch, time_limit, undefined, memory
};

constexpr unsigned WARP = 32, MAX_THREADS = 1024, MAX_WARPS = MAX_THREADS / WARP;
constexpr size_t EXCHANGED = 64;  // most bytes that a lane brings to a warp collective

struct Copy {
  void* to;
  const void* from;  // null: zeros
  size_t bytes;
  const void* instruction;  // that sent it off
};

struct Fiber {
  void* stack_pointer;
  char* stack;
  uint3 thread_index;
  unsigned linear, warp, lane;
  State state;
  Op op;  // what it waits in, and where
  const char* file;
  int line;
  int predicate;
  unsigned mask;
  alignas(16) unsigned char offered[EXCHANGED];
  std::vector<std::vector<Copy>> copies;  // groups of cp.async; the last one is not committed
};

struct Launch {
  dim3 grid, block;
  uint3 block_index;
  unsigned threads;
  char* shared;  // dynamic shared memory
  size_t shared_bytes;
  int any, all, count;  // of the predicates at the last __syncthreads_or, _and, _count
};

extern Launch launch;
extern Fiber* current;  // null outside kernel code

// Suspends until every thread of the block is here.
void wait_for_block(Op op, int predicate, const char* file, int line);
// Suspends until all lanes in the mask are here with the same operation; each then sees what the others brought.
void wait_for_warp(unsigned mask, Op op, const void* brought, size_t bytes, const char* file, int line);
// What a lane brought to the last collective of this thread; null if it had exited (a fault where must_exist).
const void* brought_by(unsigned lane, bool must_exist, const char* file, int line);
// A place where the schedule may turn to another thread, and where a spinning thread meets the time limit.
void may_yield();
void fence();                                   // __threadfence
void atomic_access(void* address, size_t bytes);  // before each atomic: orders blocks that synchronise through one

void start_copy(void* to, const void* from, size_t bytes);
void commit_copies();
void wait_for_copies(int still_running);  // of the thread's groups, the newest

// Reports and ends the launch: the fiber is never resumed.
[[noreturn]] void fail(Kind kind, const char* file, int line, const char* format, ...);
[[noreturn]] void fail_at(Kind kind, const void* instruction, const char* format, ...);  // placed by the address of the code

// One launch from Python: body runs the kernel once for each thread. Returns the number of findings.
struct Configuration {
  unsigned grid[3], block[3];
  unsigned long long shared_bytes, seed;  // seed 0: no random order
  int reversed, strict;
  double seconds;
};

int run(const Configuration* configuration, void (*body)(void*), void* argument);

inline void* dynamic_shared() { return launch.shared; }

}  // namespace emu
