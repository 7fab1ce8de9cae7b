// Poller: what one loop waits for, as descriptors and what to do when something comes. Filled anew for every round.
#pragma once

#include <poll.h>

#include <functional>
#include <utility>
#include <vector>

namespace lockstep::elastic {

class Poller {
 public:
  void watch(int fd, short events, std::function<void()> then) {
    polled_.push_back({fd, events, 0});
    then_.push_back(std::move(then));
  }

  // Waits until something comes or the time is over, and calls what belongs to it. What is called may close
  // descriptors that belong to itself, and no others.
  void run(int timeout_milliseconds) {
    if (poll(polled_.data(), polled_.size(), timeout_milliseconds) <= 0) return;
    for (std::size_t i = 0; i < polled_.size(); ++i) {
      if (polled_[i].revents != 0) then_[i]();
    }
  }

 private:
  std::vector<pollfd> polled_;
  std::vector<std::function<void()>> then_;
};

}  // namespace lockstep::elastic
