// `train --tensorboard FOLDER`: a thread that writes what the run records as TensorBoard's event files.
#pragma once

#include <atomic>
#include <filesystem>
#include <string>
#include <thread>

namespace lockstep::cli {

// Reads the run store, like every other reader: the run does not wait for it, and what it cannot write is one warning.
class TensorBoardFollower {
 public:
  explicit TensorBoardFollower(std::filesystem::path folder) : folder_(std::move(folder)) {}
  ~TensorBoardFollower() { finish(); }
  TensorBoardFollower(const TensorBoardFollower&) = delete;
  TensorBoardFollower& operator=(const TensorBoardFollower&) = delete;

  void start(const std::string& run);  // once
  // Writes the rest; the run has ended.
  void finish();

 private:
  void work(const std::string& run);

  std::filesystem::path folder_;
  std::atomic<bool> ended_{false};
  std::thread thread_;
};

}  // namespace lockstep::cli
