#include "lockstep/elastic/repeater.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

namespace lockstep::elastic {
namespace {

constexpr std::chrono::milliseconds kGoodbye{500};

}  // namespace

struct Repeater::State {
  std::mutex mutex;
  std::condition_variable changed;
  bool closing = false;
  bool over = false;
};

Repeater::Repeater(double seconds, std::function<void()> round) : state_(std::make_shared<State>()) {
  thread_ = std::thread([state = state_, pause = std::chrono::duration<double>(seconds), work = std::move(round)] {
    std::unique_lock lock(state->mutex);
    while (!state->closing) {
      lock.unlock();
      work();
      lock.lock();
      state->changed.wait_for(lock, pause, [&] { return state->closing; });
    }
    state->over = true;
    state->changed.notify_all();
  });
}

Repeater::~Repeater() {
  if (!thread_.joinable()) return;
  bool over = false;
  {
    std::unique_lock lock(state_->mutex);
    state_->closing = true;
    state_->changed.notify_all();
    over = state_->changed.wait_for(lock, kGoodbye, [&] { return state_->over; });
  }
  if (over) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

}  // namespace lockstep::elastic
