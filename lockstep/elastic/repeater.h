// Repeater: work that is done again and again on a thread of its own, and that nobody has to wait for.
#pragma once

#include <functional>
#include <memory>
#include <thread>

namespace lockstep::elastic {

class Repeater {
 public:
  // Calls `round` at once, and again `seconds` after each call returned. `round` must own what it uses: a call that
  // hangs (a dead file system, a dead driver) is left behind when the object goes.
  Repeater(double seconds, std::function<void()> round);
  // Waits a moment for a call that is under way.
  ~Repeater();
  Repeater(Repeater&&) noexcept = default;
  Repeater& operator=(Repeater&&) = delete;

 private:
  struct State;
  std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace lockstep::elastic
