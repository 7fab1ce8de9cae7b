#include "lockstep/comm/plugins/tcp/loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "lockstep/comm/plugins/mesh/sigpipe_guard.h"

namespace lockstep::comm {

Loop::Loop() : epoll_(epoll_create1(EPOLL_CLOEXEC)), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!epoll_ || !wake_) throw environment_error("no file descriptor is left", "raise `ulimit -n`");
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = 0;
  epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.get(), &event);
  const SigpipeGuard guard;  // the thread inherits it
  thread_ = std::thread([this] { run(); });
}

Loop::~Loop() {
  const std::uint64_t one = 1;
  while (::write(wake_.get(), &one, sizeof(one)) < 0 && errno == EINTR) {
  }
  thread_.join();
}

std::uint64_t Loop::add(int fd, std::uint32_t events, std::weak_ptr<Handler> handler) {
  std::uint64_t handle = 0;
  {
    const std::lock_guard lock(mutex_);
    handle = next_++;
    handlers_[handle] = std::move(handler);
  }
  epoll_event event{};
  event.events = events;
  event.data.u64 = handle;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    throw BackendError(FaultKind::kAborted, -1, "a socket cannot be watched");
  }
  return handle;
}

void Loop::watch(int fd, std::uint64_t handle, std::uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = handle;
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event);
}

void Loop::remove(int fd, std::uint64_t handle) {
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  const std::lock_guard lock(mutex_);
  handlers_.erase(handle);
}

void Loop::run() {
  std::array<epoll_event, 64> events;
  while (true) {
    const int count = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), -1);
    if (count < 0 && errno != EINTR) return;
    for (int i = 0; i < count; ++i) {
      const epoll_event& event = events[static_cast<std::size_t>(i)];
      if (event.data.u64 == 0) return;
      std::shared_ptr<Handler> handler;
      {
        const std::lock_guard lock(mutex_);
        const auto found = handlers_.find(event.data.u64);
        if (found != handlers_.end()) handler = found->second.lock();
      }
      if (handler) handler->ready(event.events);
    }
  }
}

}  // namespace lockstep::comm
