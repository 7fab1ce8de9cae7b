// SoundPin: the newest checkpoint that proved sound is pinned, so that later ones, which may not be, do not rotate it
// out. In the background: a step does not wait for the disk. Whoever rotates calls settle() first.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "lockstep/checkpoint/file_layer.h"

namespace lockstep::engine {

// Belongs to one thread, but for settle().
class SoundPin {
 public:
  // `files` must live as long as the process.
  SoundPin(std::filesystem::path folder, const checkpoint::FileLayer* files);
  // Waits a few seconds for the disk.
  ~SoundPin();
  SoundPin(const SoundPin&) = delete;
  SoundPin& operator=(const SoundPin&) = delete;

  // The pin moves to the checkpoint of this step.
  void move_to(std::int64_t step);
  // Why the last move failed, told once; "": it did not.
  std::string take_problem();
  // From any thread: until the pin is where it was last moved to, or could not be moved there.
  void settle() const;

 private:
  struct State;
  std::shared_ptr<State> state_;  // shared with a thread that may outlive this when the file system hangs
};

}  // namespace lockstep::engine
