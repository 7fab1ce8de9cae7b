// The thread that reads and writes the sockets of a process.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "lockstep/comm/plugins/tcp/door.h"

namespace lockstep::comm {

class Loop {
 public:
  // Told when its socket is ready; kept alive while it is told.
  class Handler {
   public:
    virtual ~Handler() = default;
    virtual void ready(std::uint32_t events) = 0;  // of epoll
  };

  Loop();
  ~Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  // From now on `handler` is told of `events` of `fd`. Returns the handle for the calls below.
  std::uint64_t add(int fd, std::uint32_t events, std::weak_ptr<Handler> handler);
  void watch(int fd, std::uint64_t handle, std::uint32_t events);
  // Before the socket is closed.
  void remove(int fd, std::uint64_t handle);

 private:
  void run();

  Socket epoll_, wake_;
  std::mutex mutex_;
  std::unordered_map<std::uint64_t, std::weak_ptr<Handler>> handlers_;
  std::uint64_t next_ = 1;
  std::thread thread_;
};

}  // namespace lockstep::comm
