// Own switches for x86-64 and aarch64 (they save what the calling convention asks a function to save); ucontext elsewhere, which
// is about six times slower, because each of its switches asks the system for the signal mask.
#include "fibers.h"

#include <sys/mman.h>

#if !defined(__x86_64__) && !defined(__aarch64__)
#define EMU_UCONTEXT
#endif
#ifdef EMU_UCONTEXT
#include <ucontext.h>
#endif

namespace emu {

Fiber fibers[MAX_THREADS];
static constexpr size_t GUARD_BYTES = 4096;

static void use_stacks(char* stacks) {
  for (unsigned i = 0; i < MAX_THREADS; ++i) fibers[i].stack = stacks + i * STACK_BYTES;
}

// All loaded kernels share the stacks of the first: their guards are 2,048 mappings, of which a process may have some 65,000.
EMU_EXPORT void* emulator_stacks(void* of_another) {
  if (of_another) {
    use_stacks(static_cast<char*>(of_another));
  } else if (!fibers[0].stack) {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void* stacks = mmap(nullptr, STACK_BYTES * MAX_THREADS, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (stacks == MAP_FAILED) return nullptr;
    use_stacks(static_cast<char*>(stacks));
    for (const Fiber& fiber : fibers) mprotect(fiber.stack, GUARD_BYTES, PROT_NONE);  // overflow must not reach the neighbour
  }
  return fibers[0].stack;
}

#ifdef EMU_UCONTEXT

static ucontext_t contexts[MAX_THREADS], scheduler;

void prepare_fiber(Fiber& fiber, void (*entry)()) {
  ucontext_t& context = contexts[fiber.linear];
  getcontext(&context);
  context.uc_stack.ss_sp = fiber.stack + GUARD_BYTES;
  context.uc_stack.ss_size = STACK_BYTES - GUARD_BYTES;
  context.uc_link = nullptr;
  makecontext(&context, entry, 0);
}
void switch_to_fiber(Fiber& fiber) { swapcontext(&scheduler, &contexts[fiber.linear]); }
void switch_to_scheduler(Fiber& fiber) { swapcontext(&contexts[fiber.linear], &scheduler); }

#else

// Pushes the registers that a callee saves, stores the stack pointer in *from, continues at `to`.
extern "C" void emulator_switch(void** from, void* to);
static void* scheduler_stack_pointer;

#if defined(__x86_64__)
constexpr int SAVED = 6;  // rbp rbx r12 r13 r14 r15, then the return address
asm(R"(
  .text
  .hidden emulator_switch
  .globl emulator_switch
emulator_switch:
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  ret
)");

void prepare_fiber(Fiber& fiber, void (*entry)()) {
  void** top = reinterpret_cast<void**>(fiber.stack + STACK_BYTES - 64);
  *--top = nullptr;                                // entry sees the alignment of a called function
  *--top = reinterpret_cast<void*>(entry);
  for (int i = 0; i < SAVED; ++i) *--top = nullptr;
  fiber.stack_pointer = top;
}
#else
constexpr int SAVED = 20, LINK_REGISTER = 11;  // x19 to x30, d8 to d15
asm(R"(
  .text
  .hidden emulator_switch
  .globl emulator_switch
emulator_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
)");

void prepare_fiber(Fiber& fiber, void (*entry)()) {
  void** top = reinterpret_cast<void**>(fiber.stack + STACK_BYTES - 64) - SAVED;
  for (int i = 0; i < SAVED; ++i) top[i] = nullptr;
  top[LINK_REGISTER] = reinterpret_cast<void*>(entry);
  fiber.stack_pointer = top;
}
#endif

void switch_to_fiber(Fiber& fiber) { emulator_switch(&scheduler_stack_pointer, fiber.stack_pointer); }
void switch_to_scheduler(Fiber& fiber) { emulator_switch(&fiber.stack_pointer, scheduler_stack_pointer); }

#endif

}  // namespace emu
