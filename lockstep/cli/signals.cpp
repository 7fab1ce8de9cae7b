#include "lockstep/cli/signals.h"

#include <poll.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <initializer_list>

namespace lockstep::cli {
namespace {

volatile std::sig_atomic_t interrupts = 0;    // SIGINT
volatile std::sig_atomic_t terminations = 0;  // SIGTERM
volatile std::sig_atomic_t others = 0;        // 1 when any of the others came
volatile std::sig_atomic_t requeue = 0;
volatile std::sig_atomic_t second_exits = 0;
volatile std::sig_atomic_t first_signal = 0;

void on_signal(int number) {
  if (first_signal == 0) first_signal = number;
  if (number == SIGUSR1) requeue = 1;
  if (number != SIGINT && number != SIGTERM) {
    others = 1;
    return;
  }
  volatile std::sig_atomic_t& count = number == SIGINT ? interrupts : terminations;
  count = count + 1;
  if (count > 1 && second_exits != 0) _exit(130);
}

bool is_ignored(int number) {
  struct sigaction now {};
  return sigaction(number, nullptr, &now) == 0 && now.sa_handler == SIG_IGN;
}

}  // namespace

void count_stop_signals(SecondSignal second) {
  second_exits = second == SecondSignal::kExits ? 1 : 0;
  struct sigaction action {};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  for (const int number : {SIGINT, SIGTERM, SIGQUIT, SIGUSR1}) sigaction(number, &action, nullptr);
  if (!is_ignored(SIGHUP)) sigaction(SIGHUP, &action, nullptr);
}

int stop_signals() {
  const int insistent = interrupts > terminations ? interrupts : terminations;
  return insistent > 0 ? insistent : others;
}

int stop_signal() { return first_signal; }

bool requeue_was_asked() { return requeue != 0; }

void survive_closed_pipes() {
  struct sigaction action {};
  action.sa_handler = SIG_IGN;
  sigemptyset(&action.sa_mask);
  sigaction(SIGPIPE, &action, nullptr);
}

void end_with_parent() {
  const char* const parent = std::getenv("LOCKSTEP_PARENT");
  if (parent == nullptr) return;
  const long number = std::atol(parent);
  unsetenv("LOCKSTEP_PARENT");  // it is about this process, not about those that it starts
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (number != getppid()) raise(SIGTERM);  // it went before we asked
}

bool nobody_reads_stdout() {
  pollfd out{STDOUT_FILENO, POLLOUT, 0};
  return poll(&out, 1, 0) > 0 && (out.revents & (POLLERR | POLLHUP)) != 0;
}

}  // namespace lockstep::cli
