// A kernel that spins is ended by a timer's signal wherever it stands; one that touches an address outside every mapping, by SIGSEGV;
// one that divides a whole number by zero, by SIGFPE (x86-64; on aarch64, as on a device, it just gets a number).
// A thread that spins inside the runtime (on an atomic) is ended at its next call there.
#include "watch.h"

#include <csignal>
#include <ctime>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include "runtime.h"

namespace emu {

volatile bool in_kernel = false;
static volatile bool up = false;
static volatile int rung = 0;
static timer_t timer;
static bool watching = false;
static struct sigaction old_timer_action, old_segv_action, old_bus_action, old_division_action;
static stack_t old_stack;
static char signal_stack[64 << 10];

static int timer_signal() { return SIGRTMIN + 7; }

static const void* interrupted(void* context) {
#if defined(__x86_64__)
  return reinterpret_cast<const void*>(static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP]);
#elif defined(__aarch64__)
  return reinterpret_cast<const void*>(static_cast<ucontext_t*>(context)->uc_mcontext.pc);
#else
  return nullptr;
#endif
}

static void on_timer(int, siginfo_t*, void* context) {
  up = true;
  // At the first ring only the flag is set: a thread that passes an instrumented access or a barrier ends there, at its own line.
  // In those calls' first and last instructions the signal would find a line of ours.
  if ((rung = rung + 1) > 1 && in_kernel) fail_at(Kind::time_limit, interrupted(context), "still running at the time limit");
}

static void on_bad_address(int number, siginfo_t* info, void* context) {
  if (in_kernel) {
    fail_at(Kind::memory, interrupted(context), "access to the address %p, which is no memory of the kernel", info->si_addr);
  }
  struct sigaction& before = number == SIGBUS ? old_bus_action : old_segv_action;
  sigaction(number, &before, nullptr);  // not the kernel's: happens again, and is handled as without us
}

static void on_division(int number, siginfo_t*, void* context) {
  if (in_kernel) fail_at(Kind::undefined, interrupted(context), "a whole number divided by zero");
  sigaction(number, &old_division_action, nullptr);
}

static void handle(int number, struct sigaction& before, void (*handler)(int, siginfo_t*, void*)) {
  struct sigaction action = {};
  action.sa_sigaction = handler;
  action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK | SA_RESTART;  // not blocked afterwards: the handler may never return
  sigaction(number, &action, &before);
}

void watch(double seconds) {
  up = false;
  rung = 0;
  stack_t own = {};
  own.ss_sp = signal_stack;
  own.ss_size = sizeof signal_stack;
  sigaltstack(&own, &old_stack);  // a fiber that overflows its stack has none left for the handler
  handle(timer_signal(), old_timer_action, on_timer);
  handle(SIGSEGV, old_segv_action, on_bad_address);
  handle(SIGBUS, old_bus_action, on_bad_address);
  handle(SIGFPE, old_division_action, on_division);
  sigevent event = {};
  event.sigev_notify = SIGEV_THREAD_ID;  // to the system thread that runs the kernel, not to any of Python's
  event.sigev_signo = timer_signal();
  event._sigev_un._tid = static_cast<pid_t>(syscall(SYS_gettid));
  watching = timer_create(CLOCK_MONOTONIC, &event, &timer) == 0;
  itimerspec limit = {};
  limit.it_value.tv_sec = static_cast<time_t>(seconds);
  limit.it_value.tv_nsec = static_cast<long>((seconds - static_cast<double>(limit.it_value.tv_sec)) * 1e9) + 1;
  limit.it_interval.tv_nsec = 50 * 1000 * 1000;  // again and again: the first may come while the runtime is at work
  if (watching) timer_settime(timer, 0, &limit, nullptr);
}

void stop_watching() {
  if (watching) timer_delete(timer);
  watching = false;
  sigaction(timer_signal(), &old_timer_action, nullptr);
  sigaction(SIGSEGV, &old_segv_action, nullptr);
  sigaction(SIGBUS, &old_bus_action, nullptr);
  sigaction(SIGFPE, &old_division_action, nullptr);
  sigaltstack(&old_stack, nullptr);
}

bool time_is_up() { return up; }

}  // namespace emu
