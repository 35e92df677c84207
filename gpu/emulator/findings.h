// Findings: what the runtime and the checker report to Python, which reads this struct (launching.py).
#pragma once
#include "runtime.h"

namespace emu {

struct Finding {
  int kind;
  int thread[2];                  // linear, -1: none
  unsigned block[3];
  unsigned long long code[2];     // addresses of the instructions, relative to the library; 0: none
  const char* file;               // or the place itself
  int line;
  char array[64];
  long long offset;
  char message[400];
};

// Adds one, unless the same kind was found at the same places before. A report of two accesses gives both.
void report(const Finding& finding);
[[noreturn]] void end_with_finding(const Finding& finding);  // reports it, and ends the launch
Finding finding_here(Kind kind);  // block and thread of the current fiber filled in
bool any_findings();
void clear_findings();
unsigned long long relative_code(const void* instruction);

}  // namespace emu
