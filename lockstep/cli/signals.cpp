#include "lockstep/cli/signals.h"

#include <csignal>

namespace lockstep::cli {
namespace {

volatile std::sig_atomic_t received = 0;

void on_signal(int) { received = received + 1; }

}  // namespace

void count_stop_signals() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

int stop_signals() { return received; }

}  // namespace lockstep::cli
