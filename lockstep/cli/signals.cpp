#include "lockstep/cli/signals.h"

#include <unistd.h>

#include <csignal>

namespace lockstep::cli {
namespace {

volatile std::sig_atomic_t received = 0;

volatile std::sig_atomic_t second_exits = 0;

void on_signal(int) {
  received = received + 1;
  if (received > 1 && second_exits != 0) _exit(130);
}

}  // namespace

void count_stop_signals(SecondSignal second) {
  second_exits = second == SecondSignal::kExits ? 1 : 0;
  struct sigaction action {};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

int stop_signals() { return received; }

}  // namespace lockstep::cli
