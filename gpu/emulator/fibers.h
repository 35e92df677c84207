// Fibers: one stack for each CUDA thread, and the switch between them and the scheduler.
#pragma once
#include "runtime.h"

namespace emu {

constexpr size_t STACK_BYTES = 128 << 10;
extern Fiber fibers[MAX_THREADS];

void prepare_fiber(Fiber& fiber, void (*entry)());  // its next turn starts at entry, on an empty stack
void switch_to_fiber(Fiber& fiber);                 // from the scheduler
void switch_to_scheduler(Fiber& fiber);             // from that fiber

}  // namespace emu
