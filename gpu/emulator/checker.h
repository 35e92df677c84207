// The checker of check mode. It is told of every access of the kernel (instrumentation.cpp) and of what orders accesses.
#pragma once
#include "runtime.h"

namespace emu {

enum class Access { read, write };
enum class Order { plain, atomic };

#ifdef EMU_CHECKS
constexpr bool checking = true;
#else
constexpr bool checking = false;
#endif

void check_access(const void* address, size_t bytes, Access access, Order order, const void* instruction, bool must_align);
void check_launch_starts();
void check_block_starts();
void check_block_waited();                                    // __syncthreads: everything before is ordered with all after
void check_warp_waited(unsigned warp, unsigned participants);  // __syncwarp: the same for those lanes
void check_copy_starts(const void* to, const void* from, size_t bytes, const void* instruction);  // from null: zeros
void check_copy_lands(const void* to, size_t bytes, const void* instruction);  // the wait of the thread that sent it off
void check_fence();
void check_synchronises(const void* address);

}  // namespace emu
