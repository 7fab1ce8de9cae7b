#include "lockstep/engine/sound_pin.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/checkpoint/manifest.h"

namespace lockstep::engine {

namespace fs = std::filesystem;

constexpr auto kEndPatience = std::chrono::seconds(5);

struct SoundPin::State {
  fs::path folder;
  const checkpoint::FileLayer* files;
  std::mutex mutex;
  std::condition_variable changed;
  std::optional<std::int64_t> wanted, tried;
  bool working = false;
  std::string problem;

  void pin(std::int64_t step, bool on) const {
    const fs::path path = folder / checkpoint::step_folder_name(step);
    std::error_code ignored;
    if (fs::exists(path, ignored)) checkpoint::pin_checkpoint(path, on, *files);
  }

  // Those of earlier generations and starts of the run too.
  void unpin_others(std::int64_t step) const {
    for (const checkpoint::CheckpointInfo& info : checkpoint::list_checkpoints(folder)) {
      if (info.step != step && checkpoint::is_pinned_by_run(info.path)) pin(info.step, false);
    }
  }

  // Until nothing else is wanted any more.
  void work() {
    std::unique_lock lock(mutex);
    while (wanted != tried) {
      const std::int64_t step = *wanted;
      tried = step;
      lock.unlock();
      std::string failure;
      try {
        pin(step, true);
        unpin_others(step);
      } catch (const std::exception& error) {
        failure = error.what();  // the former pin stays; the next step that proves sound is the next try
      }
      lock.lock();
      if (!failure.empty()) problem = failure;
    }
    working = false;
    changed.notify_all();
  }
};

SoundPin::SoundPin(fs::path folder, const checkpoint::FileLayer* files) : state_(std::make_shared<State>()) {
  state_->folder = std::move(folder);
  state_->files = files;
}

SoundPin::~SoundPin() {
  std::unique_lock lock(state_->mutex);
  state_->changed.wait_for(lock, kEndPatience, [this] { return !state_->working; });
}

void SoundPin::move_to(std::int64_t step) {
  const std::lock_guard lock(state_->mutex);
  state_->wanted = step;
  if (state_->wanted == state_->tried || std::exchange(state_->working, true)) return;
  std::thread([state = state_] { state->work(); }).detach();
}

std::string SoundPin::take_problem() {
  const std::lock_guard lock(state_->mutex);
  return std::exchange(state_->problem, "");
}

void SoundPin::settle() const {
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(lock, [this] { return !state_->working; });
}

}  // namespace lockstep::engine
