// The time limit, and invalid addresses: signals that end the running fiber instead of the process.
#pragma once

namespace emu {

void watch(double seconds);  // from now on, in this system thread
void stop_watching();
bool time_is_up();

// True only while code of the kernel runs: then a signal may leave the fiber where it stands.
extern volatile bool in_kernel;

// The runtime at work for a fiber: signals wait.
struct InRuntime {
  InRuntime() { in_kernel = false; }
  ~InRuntime() { in_kernel = true; }
};

}  // namespace emu
