// Gloo writes to sockets without MSG_NOSIGNAL, so a peer that closes its end would kill this process with SIGPIPE. The
// signal goes to the thread that writes: it is blocked there while Gloo works, and threads that Gloo starts meanwhile
// inherit that. The process's own handling of SIGPIPE stays as it is.
#pragma once

#include <signal.h>
#include <time.h>

namespace lockstep::comm {

class SigpipeGuard {
 public:
  SigpipeGuard() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }

  ~SigpipeGuard() {
    // One that came meanwhile is ours, and must not be delivered once the mask is lifted.
    if (!was_pending_) {
      const timespec now{0, 0};
      while (sigtimedwait(&pipe_, nullptr, &now) == SIGPIPE) {
      }
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

  SigpipeGuard(const SigpipeGuard&) = delete;
  SigpipeGuard& operator=(const SigpipeGuard&) = delete;

 private:
  sigset_t pipe_;
  sigset_t before_;
  bool was_pending_ = false;
};

}  // namespace lockstep::comm
