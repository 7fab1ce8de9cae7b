// OffloadArena: tensors that need not stay in the memory of the device that computes. For a GPU that is host memory;
// for ranks on the CPU, whose device memory is the host's, it is an unlinked file, mapped: pages that are not in use go
// back to the kernel at rest() and come back when touched.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include <torch/types.h>

namespace lockstep::parallel {

class OffloadArena {
 public:
  // Files are made in `folder` (removed at once, so that nothing is left behind); "": the folder for temporary files.
  explicit OffloadArena(torch::Device device, std::filesystem::path folder = {});
  ~OffloadArena();
  OffloadArena(const OffloadArena&) = delete;
  OffloadArena& operator=(const OffloadArena&) = delete;

  // A zeroed tensor in the far memory. The arena must outlive it. environment_error when the disk is full.
  torch::Tensor zeros(std::int64_t count, torch::ScalarType dtype);
  // Tells that nobody will touch `tensor` (one of zeros()) for a while: its pages may leave memory.
  void rest(const torch::Tensor& tensor) const;

  // An activation on its way out and back: put() copies, take() brings it back to the device. Far memory of what was
  // taken serves the next put() of its size.
  torch::Tensor put(const torch::Tensor& activation);
  torch::Tensor take(const torch::Tensor& far);

  std::int64_t bytes() const { return bytes_; }

 private:
  struct Mapping;
  torch::Device device_;
  std::filesystem::path folder_;
  std::vector<std::unique_ptr<Mapping>> mappings_;
  std::map<std::pair<std::int64_t, torch::ScalarType>, std::vector<torch::Tensor>> free_;  // by size
  std::int64_t bytes_ = 0;
};

}  // namespace lockstep::parallel
