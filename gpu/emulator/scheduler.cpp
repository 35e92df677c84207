// The scheduler: blocks one after another, the threads of a block in turns that end at barriers, warp collectives and atomics.
#include <dlfcn.h>

#include <cstdarg>

#include "checker.h"
#include "fibers.h"
#include "findings.h"
#include "watch.h"

namespace emu {

Launch launch;
Fiber* current;

// What the lanes of a warp brought to one collective: kept until each of them has gone on to the next.
struct Exchange {
  int readers;
  unsigned present;
  unsigned char brought[WARP][EXCHANGED];
};
static Exchange exchanges[MAX_WARPS][WARP + 1];
static Exchange* held[MAX_THREADS];

struct Schedule {
  bool reversed, strict;
  uint64_t random;  // 0: no random order
  unsigned queue[2 * MAX_THREADS], head, end, exited, at_barrier;
};
static Schedule schedule;
static void (*kernel_body)(void*);
static void* kernel_argument;
static std::vector<Finding> findings;
static bool failed;
static std::vector<std::pair<char*, size_t>> static_shared;

static uint64_t next_random() {
  uint64_t& x = schedule.random;
  x ^= x << 13, x ^= x >> 7, x ^= x << 17;
  return x;
}

// ---- findings ---------------------------------------------------------------------------------------------------------

constexpr size_t MOST_FINDINGS = 64;

void report(const Finding& finding) {
  for (const Finding& f : findings) {
    const bool same = f.code[0] == finding.code[0] && f.code[1] == finding.code[1];
    const bool swapped = f.code[0] == finding.code[1] && f.code[1] == finding.code[0];
    if (f.kind == finding.kind && f.line == finding.line && (same || swapped)) return;
  }
  if (findings.size() < MOST_FINDINGS) findings.push_back(finding);
}

Finding finding_here(Kind kind) {
  Finding finding = {};
  finding.kind = static_cast<int>(kind);
  finding.thread[0] = current ? static_cast<int>(current->linear) : -1;
  finding.thread[1] = -1;
  finding.block[0] = launch.block_index.x, finding.block[1] = launch.block_index.y, finding.block[2] = launch.block_index.z;
  return finding;
}

bool any_findings() { return !findings.empty(); }
void clear_findings() { findings.clear(); }

static void to_scheduler() {
  in_kernel = false;
  switch_to_scheduler(*current);
}

void end_with_finding(const Finding& finding) {
  in_kernel = false;
  report(finding);
  failed = true;
  to_scheduler();
  abort();  // the fiber is never resumed
}

void fail(Kind kind, const char* file, int line, const char* format, ...) {
  Finding finding = finding_here(kind);
  finding.file = file, finding.line = line;
  va_list values;
  va_start(values, format);
  vsnprintf(finding.message, sizeof finding.message, format, values);
  va_end(values);
  end_with_finding(finding);
}

void fail_at(Kind kind, const void* instruction, const char* format, ...) {
  Finding finding = finding_here(kind);
  finding.code[0] = instruction ? relative_code(instruction) : 0;  // null: a signal, on a machine whose registers are unknown
  va_list values;
  va_start(values, format);
  vsnprintf(finding.message, sizeof finding.message, format, values);
  va_end(values);
  end_with_finding(finding);
}

unsigned long long relative_code(const void* instruction) {
  static const char* library = nullptr;
  if (!library) {
    Dl_info info;
    dladdr(reinterpret_cast<const void*>(&relative_code), &info);
    library = static_cast<const char*>(info.dli_fbase);
  }
  return static_cast<unsigned long long>(static_cast<const char*>(instruction) - library);
}

// ---- turns --------------------------------------------------------------------------------------------------------------

static void make_ready(Fiber& fiber) {
  fiber.state = State::ready;
  schedule.queue[schedule.end++] = fiber.linear;
}

static void fiber_main() {
  in_kernel = true;
  kernel_body(kernel_argument);
  in_kernel = false;
  for (const auto& group : current->copies) {
    if (!group.empty() && schedule.strict) {
      fail_at(Kind::async_copy, group.front().instruction, "exits with asynchronous copies it never waited for");
    }
  }
  current->state = State::exited;
  ++schedule.exited;
  to_scheduler();
  abort();
}

void may_yield() {
  InRuntime runtime;
  if (time_is_up()) fail_at(Kind::time_limit, __builtin_return_address(0), "still running at the time limit");
  if (schedule.random && next_random() % 4 == 0) {
    make_ready(*current);
    to_scheduler();
  }
}

void wait_for_block(Op op, int predicate, const char* file, int line) {
  InRuntime runtime;
  Fiber& fiber = *current;
  fiber.state = State::at_barrier;
  fiber.op = op, fiber.file = file, fiber.line = line, fiber.predicate = predicate;
  ++schedule.at_barrier;
  to_scheduler();
}

static void let_go(Fiber& fiber) {
  if (held[fiber.linear]) --held[fiber.linear]->readers;
  held[fiber.linear] = nullptr;
}

static unsigned lanes_of(unsigned warp) { return launch.threads - warp * WARP < WARP ? launch.threads - warp * WARP : WARP; }

static bool all_arrived(const Fiber& last) {
  for (unsigned lane = 0; lane < lanes_of(last.warp); ++lane) {
    if (!((last.mask >> lane) & 1)) continue;
    const Fiber& other = fibers[last.warp * WARP + lane];
    if (other.state == State::exited && !schedule.strict) continue;
    if (other.state != State::at_warp || other.mask != last.mask || other.op != last.op) return false;
    if (schedule.strict && other.line != last.line) return false;
  }
  return true;
}

static void exchange(const Fiber& last, size_t bytes) {
  Exchange* free = exchanges[last.warp];
  while (free->readers) ++free;
  free->present = 0;
  for (unsigned lane = 0; lane < lanes_of(last.warp); ++lane) {
    Fiber& fiber = fibers[last.warp * WARP + lane];
    if (!((last.mask >> lane) & 1) || fiber.state == State::exited) continue;
    free->present |= 1u << lane;
    ++free->readers;
    held[fiber.linear] = free;
    memcpy(free->brought[lane], fiber.offered, bytes);
    make_ready(fiber);
  }
  if (checking && last.op == Op::syncwarp) check_warp_waited(last.warp, free->present);
}

void wait_for_warp(unsigned mask, Op op, const void* brought, size_t bytes, const char* file, int line) {
  InRuntime runtime;
  Fiber& fiber = *current;
  if (!((mask >> fiber.lane) & 1)) {
    fail(Kind::divergence, file, line, "lane %u calls a warp operation whose mask %08x leaves it out", fiber.lane, mask);
  }
  let_go(fiber);
  if (bytes) memcpy(fiber.offered, brought, bytes);
  fiber.state = State::at_warp;
  fiber.mask = mask, fiber.op = op, fiber.file = file, fiber.line = line;
  if (all_arrived(fiber)) exchange(fiber, bytes);
  to_scheduler();
}

const void* brought_by(unsigned lane, bool must_exist, const char* file, int line) {
  const Exchange* exchange = held[current->linear];
  if ((exchange->present >> lane) & 1) return exchange->brought[lane];
  if (must_exist) fail(Kind::divergence, file, line, "reads a value from lane %u, which has exited or does not exist", lane);
  return nullptr;
}

void fence() {
  if (checking) check_fence();
}
void atomic_access(void* address, size_t) {
  if (checking) check_synchronises(address);
}

// ---- asynchronous copies: they land as late as they may, at the wait; until then their target holds NaN ---------------------

void start_copy(void* to, const void* from, size_t bytes) {
  InRuntime runtime;
  const void* instruction = __builtin_return_address(0);
  auto& groups = current->copies;
  if (groups.empty()) groups.emplace_back();
  if (checking) check_copy_starts(to, from, bytes, instruction);
  memset(to, 0xff, bytes);
  groups.back().push_back({to, from, bytes, instruction});
}

void commit_copies() {
  InRuntime runtime;
  auto& groups = current->copies;
  if (groups.empty()) groups.emplace_back();
  groups.emplace_back();
}

void wait_for_copies(int still_running) {
  InRuntime runtime;
  auto& groups = current->copies;
  while (static_cast<int>(groups.size()) - 1 > still_running) {
    for (const Copy& copy : groups.front()) {
      if (checking) check_copy_lands(copy.to, copy.bytes, __builtin_return_address(0));
      if (copy.from) memcpy(copy.to, copy.from, copy.bytes);
      else memset(copy.to, 0, copy.bytes);
    }
    groups.erase(groups.begin());
  }
}

// ---- blocks ----------------------------------------------------------------------------------------------------------------

static const char* op_name(Op op) {
  static const char* names[] = {"nothing", "__syncthreads", "__syncthreads_*", "__syncwarp", "__shfl_*_sync", "a vote",
                                "__match_*_sync", "__reduce_*_sync", "mma", "ldmatrix"};
  return names[static_cast<int>(op)];
}

// Nobody can go on, and not all wait at one barrier: who waits where.
static void report_divergence() {
  Finding finding = finding_here(Kind::divergence);
  size_t used = snprintf(finding.message, sizeof finding.message, "threads wait for each other:");
  int named = 0;
  for (unsigned i = 0; i < launch.threads && named < 6; ++i) {
    const Fiber& f = fibers[i];
    if (i && f.state == fibers[i - 1].state && f.line == fibers[i - 1].line && f.op == fibers[i - 1].op) continue;
    if (used >= sizeof finding.message - 80) break;
    char* rest = finding.message + used;
    const size_t room = sizeof finding.message - used;
    if (f.state == State::exited) used += snprintf(rest, room, " from thread %u on: exited;", i);
    else used += snprintf(rest, room, " from thread %u on: in %s at line %d;", i, op_name(f.op), f.line);
    if (f.state != State::exited && !finding.file) finding.file = f.file, finding.line = f.line, finding.thread[0] = static_cast<int>(i);
    ++named;
  }
  report(finding);
}

// Lets the block go on if all its threads wait at the same barrier.
static bool open_barrier() {
  Schedule& s = schedule;
  if (!s.at_barrier || s.at_barrier + s.exited != launch.threads || (s.strict && s.exited)) return false;
  const Fiber* first = nullptr;
  launch.any = 0, launch.all = 1, launch.count = 0;
  for (unsigned i = 0; i < launch.threads; ++i) {
    const Fiber& fiber = fibers[i];
    if (fiber.state == State::exited) continue;
    if (!first) first = &fiber;
    if (fiber.op != first->op || (s.strict && fiber.line != first->line)) return false;
    launch.any |= fiber.predicate != 0, launch.all &= fiber.predicate != 0, launch.count += fiber.predicate != 0;
  }
  s.at_barrier = 0;
  if (checking) check_block_waited();
  for (unsigned i = 0; i < launch.threads; ++i) {
    Fiber& fiber = fibers[s.reversed ? launch.threads - 1 - i : i];
    if (fiber.state == State::at_barrier) make_ready(fiber);
  }
  return true;
}

static void start_block() {
  Schedule& s = schedule;
  s.head = s.end = s.exited = s.at_barrier = 0;
  if (launch.shared_bytes) memset(launch.shared, 0xff, launch.shared_bytes);  // NaN, -1: what nobody wrote shows
  for (const auto& variable : static_shared) memset(variable.first, 0xff, variable.second);
  for (auto& of_warp : exchanges) {
    for (auto& exchange : of_warp) exchange.readers = 0;
  }
  if (checking) check_block_starts();
  for (unsigned i = 0; i < launch.threads; ++i) {
    Fiber& fiber = fibers[s.reversed ? launch.threads - 1 - i : i];
    fiber.op = Op::none, fiber.line = 0, fiber.file = nullptr;
    fiber.copies.clear();
    held[fiber.linear] = nullptr;
    prepare_fiber(fiber, fiber_main);
    make_ready(fiber);
  }
}

static bool run_block() {
  start_block();
  Schedule& s = schedule;
  for (;;) {
    if (s.head == s.end) {
      s.head = s.end = 0;
      if (s.exited == launch.threads) return true;
      if (!open_barrier()) {
        report_divergence();
        return false;
      }
    }
    if (s.random) std::swap(s.queue[s.head], s.queue[s.head + next_random() % (s.end - s.head)]);
    Fiber& fiber = fibers[s.queue[s.head++]];
    if (s.head > MAX_THREADS / 2) {  // room for those made ready later
      memmove(s.queue, s.queue + s.head, (s.end - s.head) * sizeof *s.queue);
      s.end -= s.head, s.head = 0;
    }
    current = &fiber;
    switch_to_fiber(fiber);
    if (!failed && time_is_up()) {
      Finding finding = finding_here(Kind::time_limit);
      snprintf(finding.message, sizeof finding.message, "still running at the time limit");
      finding.file = fiber.file, finding.line = fiber.line;
      report(finding);
      failed = true;
    }
    current = nullptr;
    if (failed) return false;
  }
}

int run(const Configuration* c, void (*body)(void*), void* argument) {
  launch = Launch{};
  launch.grid = dim3(c->grid[0], c->grid[1], c->grid[2]);
  launch.block = dim3(c->block[0], c->block[1], c->block[2]);
  launch.threads = c->block[0] * c->block[1] * c->block[2];
  kernel_body = body, kernel_argument = argument, failed = false;
  schedule.reversed = c->reversed, schedule.strict = c->strict;
  schedule.random = c->seed ? c->seed * 0x9E3779B97F4A7C15ull | 1 : 0;
  for (unsigned i = 0; i < launch.threads; ++i) {
    Fiber& fiber = fibers[i];
    fiber.linear = i, fiber.warp = i / WARP, fiber.lane = i % WARP;
    fiber.thread_index = {i % c->block[0], i / c->block[0] % c->block[1], i / (c->block[0] * c->block[1])};
  }
  launch.shared_bytes = c->shared_bytes;
  launch.shared = c->shared_bytes ? static_cast<char*>(aligned_alloc(128, (c->shared_bytes + 127) / 128 * 128)) : nullptr;
  if (checking) check_launch_starts();
  watch(c->seconds);
  const size_t blocks = static_cast<size_t>(c->grid[0]) * c->grid[1] * c->grid[2];
  for (size_t i = 0; i < blocks; ++i) {
    const size_t b = c->reversed ? blocks - 1 - i : i;
    launch.block_index.x = static_cast<unsigned>(b % c->grid[0]);
    launch.block_index.y = static_cast<unsigned>(b / c->grid[0] % c->grid[1]);
    launch.block_index.z = static_cast<unsigned>(b / (static_cast<size_t>(c->grid[0]) * c->grid[1]));
    if (!run_block()) break;
  }
  stop_watching();
  free(launch.shared);
  current = nullptr;
  return static_cast<int>(findings.size());
}

EMU_EXPORT void emulator_add_static_shared(void* address, size_t bytes) {
  static_shared.emplace_back(static_cast<char*>(address), bytes);
}
EMU_EXPORT void emulator_reset() {
  static_shared.clear();
  clear_findings();
}
EMU_EXPORT const Finding* emulator_finding(int i) { return &findings[static_cast<size_t>(i)]; }

}  // namespace emu
