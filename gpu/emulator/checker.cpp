// Races, bounds, alignment, reads of memory nobody wrote, writes through const.
//
// Which accesses are ordered is known exactly, whatever the order in which they happened to run here: __syncthreads orders all
// threads of a block (a count of barriers, `epoch`), __syncwarp the lanes that take part (a clock for each lane, of each lane),
// shuffles order nothing, blocks are unordered but for the pattern of the CUDA Programming Guide (B.5, memory fences): a thread
// that has called __threadfence and then does an atomic on an address orders what it and, by the last barrier, its block did
// before with what follows an atomic on the same address in a later block, in the thread that did it and after its next barrier.
//
// Of each cell (1 to 4 bytes) the last write and two reads since are kept: of three readers that race with one write, two are seen.
//
// What a cp.async writes is nobody's from its start until its thread has waited for its group: any access is a fault, whatever
// barriers lie between. For others it is a write of that thread at its start, and again at its wait.
#include "checker.h"

#include <link.h>
#include <sys/mman.h>

#include <map>

#include "fibers.h"
#include "findings.h"
#include "watch.h"

namespace emu {

struct Past {                // one access
  uint32_t epoch, own_clock;  // epoch 0: none
  uint16_t thread;
  uint16_t atomic;
  uint32_t code;
};
struct Cell {
  Past write, read[2];
  Past copy;  // a cp.async that its thread has not waited for; epoch before block_start: none
};
struct Region {
  char* start;
  size_t bytes;
  bool shared, read_only, written_before;  // written_before: holds values at the launch
  size_t cell_bytes;
  Cell* cells;
  char name[64];
};

static std::vector<Region> regions;
static size_t last_region;
static const char DYNAMIC[] = "dynamic shared memory";
static char* library_start;
static char* library_end;

static uint32_t epoch = 1, block_start, launch_start;
static uint32_t clocks[MAX_WARPS][WARP][WARP];  // [warp][lane][other]: what lane knows of other, by __syncwarp

// ---- ordering of blocks through a fence and an atomic --------------------------------------------------------------------

struct Release {
  uint32_t block_start, epoch;  // in that block, everything before epoch is released, and all of `thread`
  uint16_t thread;
};
struct Acquired {
  Release release;
  uint32_t epoch;  // in our block, by `thread`; by all after epoch
  uint16_t thread;
};
static std::map<const void*, std::vector<Release>> released;  // by the address of the atomic
static std::map<uint32_t, std::vector<Acquired>> acquired;    // in this block, by block_start of the other
static bool fenced[MAX_THREADS];

void check_fence() { fenced[current->linear] = true; }

void check_synchronises(const void* address) {
  InRuntime runtime;
  const auto thread = static_cast<uint16_t>(current->linear);
  std::vector<Release>& releases = released[address];
  for (const Release& release : releases) {
    if (release.block_start != block_start) acquired[release.block_start].push_back({release, epoch, thread});
  }
  if (fenced[thread]) releases.push_back({block_start, epoch, thread});
}

static bool ordered_by_fence(const Past& past, uint16_t thread) {
  auto other = acquired.upper_bound(past.epoch);
  if (other == acquired.begin()) return false;
  for (const Acquired& a : (--other)->second) {
    const bool let_go = past.epoch < a.release.epoch || (past.epoch == a.release.epoch && past.thread == a.release.thread);
    if (let_go && (a.epoch < epoch || a.thread == thread)) return true;
  }
  return false;
}

static bool ordered(const Past& past, const Region& region, uint16_t thread) {
  if (past.epoch < (region.shared ? block_start : launch_start)) return true;  // shared memory is new for each block
  if (past.epoch < block_start) return ordered_by_fence(past, thread);
  if (past.thread == thread || past.epoch != epoch) return true;
  const unsigned warp = thread / WARP;
  return past.thread / WARP == warp && past.own_clock < clocks[warp][thread % WARP][past.thread % WARP];
}

void check_block_waited() { ++epoch; }

void check_warp_waited(unsigned warp, unsigned participants) {
  uint32_t merged[WARP] = {};
  for (unsigned lane = 0; lane < WARP; ++lane) {
    if (!((participants >> lane) & 1)) continue;
    for (unsigned other = 0; other < WARP; ++other) merged[other] = std::max(merged[other], clocks[warp][lane][other]);
  }
  for (unsigned lane = 0; lane < WARP; ++lane) merged[lane] += (participants >> lane) & 1;  // what comes later is not ordered
  for (unsigned lane = 0; lane < WARP; ++lane) {
    if ((participants >> lane) & 1) memcpy(clocks[warp][lane], merged, sizeof merged);
  }
}

// ---- regions ----------------------------------------------------------------------------------------------------------------

static size_t shadow_bytes(const Region& r) { return (r.bytes + r.cell_bytes - 1) / r.cell_bytes * sizeof(Cell) + 1; }

EMU_EXPORT void emulator_add_region(const char* name, void* start, size_t bytes, int shared, size_t cell_bytes, int read_only,
                                    int written) {
  Region region = {static_cast<char*>(start), bytes, shared != 0, read_only != 0, written != 0, cell_bytes, nullptr, {0}};
  snprintf(region.name, sizeof region.name, "%s", name);
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  region.cells = static_cast<Cell*>(mmap(nullptr, shadow_bytes(region), PROT_READ | PROT_WRITE, flags, -1, 0));
  regions.push_back(region);
}

EMU_EXPORT void emulator_clear_regions() {
  for (const Region& region : regions) munmap(region.cells, shadow_bytes(region));
  regions.clear();
  last_region = 0;
}

static int find_library(dl_phdr_info* info, size_t, void*) {
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& segment = info->dlpi_phdr[i];
    if (segment.p_type != PT_LOAD || reinterpret_cast<char*>(info->dlpi_addr) != library_start) continue;
    library_end = std::max(library_end, library_start + segment.p_vaddr + segment.p_memsz);
  }
  return 0;
}

void check_launch_starts() {
  library_start = reinterpret_cast<char*>(&find_library) - relative_code(reinterpret_cast<const void*>(&find_library));
  dl_iterate_phdr(find_library, nullptr);
  if (launch.shared) emulator_add_region(DYNAMIC, launch.shared, launch.shared_bytes, 1, 1, 0, 0);
  released.clear();
  launch_start = ++epoch;
}

void check_block_starts() {
  block_start = ++epoch;
  acquired.clear();
  memset(fenced, 0, sizeof fenced);
  memset(clocks, 0, sizeof clocks);
}

// ---- accesses -----------------------------------------------------------------------------------------------------------------

static Finding finding_of(Kind kind, const Region& region, const char* at, uint32_t code) {
  Finding finding = finding_here(kind);
  finding.code[0] = code;
  finding.offset = at - region.start;
  snprintf(finding.array, sizeof finding.array, "%s", region.name);
  return finding;
}

static void report_race(const Region& region, const char* at, const Past& past, const char* what, uint32_t code, uint16_t thread) {
  Finding finding = finding_of(Kind::race, region, at, past.code);
  finding.code[1] = code;
  finding.thread[0] = past.thread, finding.thread[1] = thread;
  const bool other_block = past.epoch < block_start;
  const unsigned x = launch.block_index.x, y = launch.block_index.y, z = launch.block_index.z;
  snprintf(finding.message, sizeof finding.message, "race, %s on '%s' + %lld bytes: block (%u,%u,%u) thread %u, after thread %u%s", what,
           region.name, finding.offset, x, y, z, thread, past.thread, other_block ? " of another block" : "");
  report(finding);
}

static void report_in_flight(const Region& region, const char* at, const Cell& cell, const Past& now, bool write) {
  Finding finding = finding_of(Kind::async_copy, region, at, cell.copy.code);
  finding.code[1] = now.code;
  finding.thread[0] = cell.copy.thread, finding.thread[1] = now.thread;
  const unsigned x = launch.block_index.x, y = launch.block_index.y, z = launch.block_index.z;
  snprintf(finding.message, sizeof finding.message,
           "%s of '%s' + %lld bytes, which a cp.async is still writing: block (%u,%u,%u) thread %u, and thread %u has not waited for its "
           "copy", write ? "write" : "read", region.name, finding.offset, x, y, z, now.thread, cell.copy.thread);
  report(finding);
}

// The region that holds the access, or null where it is none of the kernel's memory. Ends the launch where it is out of bounds.
static Region* region_of(const char* p, size_t bytes, bool write, uint32_t code) {
  const auto holds = [&](const Region& r) { return p >= r.start && p + bytes <= r.start + r.bytes; };
  if (last_region < regions.size() && holds(regions[last_region])) return &regions[last_region];
  for (size_t i = 0; i < regions.size(); ++i) {
    if (holds(regions[i])) return &regions[last_region = i];
  }
  const bool in_library = p >= library_start && p < library_end;       // tables, the runtime's own state
  if (in_library) return nullptr;
  const Region* nearest = nullptr;
  ptrdiff_t distance = 0;
  for (const Region& r : regions) {
    const ptrdiff_t d = p < r.start ? r.start - p : p + bytes - (r.start + r.bytes);
    if (!nearest || d < distance) nearest = &r, distance = d;
  }
  Finding finding = finding_here(Kind::out_of_bounds);
  finding.code[0] = code;
  const char* name = nearest ? nearest->name : "?";
  snprintf(finding.array, sizeof finding.array, "%s", name);
  finding.offset = nearest ? p - nearest->start : 0;
  snprintf(finding.message, sizeof finding.message, "out of bounds: %s of %zu bytes, %td bytes %s '%s' of %zu bytes", write ? "write" : "read",
           bytes, distance, nearest && p < nearest->start ? "before" : "past the end of", name, nearest ? nearest->bytes : 0);
  end_with_finding(finding);
}

static void remember_read(Cell& cell, const Past& now) {
  Past* slots = cell.read;
  const bool first_is_free = slots[0].epoch != epoch || slots[0].thread == now.thread;
  // Keep readers of two warps where there are two: __syncwarp may order one of them with the next write.
  const bool second_is_elsewhere = slots[1].epoch == epoch && slots[1].thread / WARP != now.thread / WARP;
  const bool first_is_near = slots[0].thread / WARP == now.thread / WARP;
  slots[first_is_free || (first_is_near && second_is_elsewhere) ? 0 : 1] = now;
}

static void check_cell(Region& region, size_t index, const Past& now, bool write) {
  Cell& cell = region.cells[index];
  const char* at = region.start + index * region.cell_bytes;
  if (cell.copy.epoch >= block_start) return report_in_flight(region, at, cell, now, write);
  const auto collides = [&](const Past& past) {
    return past.epoch && !(past.atomic && now.atomic) && !ordered(past, region, now.thread);
  };
  if (collides(cell.write)) report_race(region, at, cell.write, write ? "write and write" : "write and read", now.code, now.thread);
  if (write) {
    for (const Past& read : cell.read) {
      if (collides(read)) report_race(region, at, read, "read and write", now.code, now.thread);
    }
    cell.write = now;
    return;
  }
  if (!region.written_before && cell.write.epoch < (region.shared ? block_start : launch_start)) {
    Finding finding = finding_of(Kind::uninitialised, region, at, now.code);
    snprintf(finding.message, sizeof finding.message, "read of '%s' + %lld bytes, which nobody wrote", region.name, finding.offset);
    report(finding);
  }
  remember_read(cell, now);
}

struct Span {
  size_t first, last;  // cells
};

static Span cells_of(const Region& region, const char* p, size_t bytes) {
  const auto offset = static_cast<size_t>(p - region.start);
  return {offset / region.cell_bytes, (offset + bytes - 1) / region.cell_bytes};
}

void check_access(const void* address, size_t bytes, Access access, Order order, const void* instruction, bool must_align) {
  const Fiber* fiber = current;
  if (!fiber) return;
  const char* p = static_cast<const char*>(address);
  if (p >= fiber->stack && p < fiber->stack + STACK_BYTES) return;  // registers and local variables
  const bool write = access == Access::write;
  const auto code = static_cast<uint32_t>(relative_code(instruction));
  Region* region = region_of(p, bytes, write, code);
  if (!region) return;
  if (must_align && reinterpret_cast<uintptr_t>(p) % bytes) {
    Finding finding = finding_of(Kind::misaligned, *region, p, code);
    snprintf(finding.message, sizeof finding.message, "misaligned access of %zu bytes to '%s' + %lld bytes", bytes, region->name, finding.offset);
    end_with_finding(finding);
  }
  if (write && region->read_only) {
    Finding finding = finding_of(Kind::write_to_const, *region, p, code);
    snprintf(finding.message, sizeof finding.message, "write to the const argument '%s' + %lld bytes", region->name, finding.offset);
    report(finding);
  }
  const auto thread = static_cast<uint16_t>(fiber->linear);
  const Past now = {epoch, clocks[fiber->warp][fiber->lane][fiber->lane], thread, order == Order::atomic, code};
  const Span span = cells_of(*region, p, bytes);
  for (size_t i = span.first; i <= span.last; ++i) check_cell(*region, i, now, write);
}

// ---- asynchronous copies ------------------------------------------------------------------------------------------------------

static Region* shared_region_of(const void* address, size_t bytes, bool write, const void* instruction) {
  const char* p = static_cast<const char*>(address);
  if (p >= current->stack && p < current->stack + STACK_BYTES) return nullptr;
  Region* region = region_of(p, bytes, write, static_cast<uint32_t>(relative_code(instruction)));
  return region && region->shared ? region : nullptr;
}

void check_copy_starts(const void* to, const void* from, size_t bytes, const void* instruction) {
  if (from && shared_region_of(from, bytes, false, instruction)) {
    fail_at(Kind::async_copy, instruction, "cp.async reads from shared memory; want a source in global memory");
  }
  const Region* region = shared_region_of(to, bytes, true, instruction);
  if (!region) fail_at(Kind::async_copy, instruction, "cp.async writes to memory that is not shared; want a target in shared memory");
  if (from) check_access(from, bytes, Access::read, Order::plain, instruction, true);
  check_access(to, bytes, Access::write, Order::plain, instruction, true);
  const Span span = cells_of(*region, static_cast<const char*>(to), bytes);
  for (size_t i = span.first; i <= span.last; ++i) region->cells[i].copy = region->cells[i].write;
}

void check_copy_lands(const void* to, size_t bytes, const void* instruction) {
  const Region* region = shared_region_of(to, bytes, true, instruction);
  const Span span = cells_of(*region, static_cast<const char*>(to), bytes);
  for (size_t i = span.first; i <= span.last; ++i) region->cells[i].copy.epoch = 0;
  check_access(to, bytes, Access::write, Order::plain, instruction, true);
}

}  // namespace emu
