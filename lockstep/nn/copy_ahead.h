// Input on its way to a device while the device still computes.
#pragma once

#include <memory>

#include <torch/types.h>

namespace lockstep::nn {

// Belongs to one thread. On the CPU there is nothing to copy.
class CopyAhead {
 public:
  explicit CopyAhead(torch::Device device);
  ~CopyAhead();

  // Starts copying `host`, which should be in page-locked memory, on a stream of its own and returns at once.
  torch::Tensor start(const torch::Tensor& host);
  // What this thread queues on the device from now on waits for the copies that were started.
  void join();

 private:
  struct Lane;
  torch::Device device_;
  std::unique_ptr<Lane> lane_;  // null: CPU
};

}  // namespace lockstep::nn
