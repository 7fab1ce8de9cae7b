// A small checkpoint whose values follow from its step, and what tests do to its files.
#pragma once

#include <gtest/gtest.h>
#include <torch/types.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/checkpoint/saver.h"

namespace lockstep::checkpoint {

inline CheckpointContents contents_at(std::int64_t step, int rank = 0, std::int64_t numbers = 1000) {
  CheckpointContents contents;
  contents.facts.step = step;
  contents.model["layer.weight"] = torch::arange(numbers, torch::kFloat32) + double(step);
  contents.model["layer.counter"] = torch::tensor(step);
  contents.optimizer["layer.weight.m"] = torch::full({numbers}, double(step), torch::kFloat64);
  contents.facts.loader = {{"epoch", 1}, {"consumed", step * 8}};
  contents.facts.job_yaml = "model: x\nsteps: 5\n";
  contents.facts.extra = {{"run", "abc"}};
  contents.facts.rank_state = {{"rank", rank}, {"seed", 17 + rank}};
  contents.rank_tensors["generator"] = torch::full({16}, rank, torch::kUInt8);
  return contents;
}

inline void expect_step(const CheckpointContents& got, std::int64_t step, int rank = 0) {
  const CheckpointContents wanted = contents_at(step, rank, got.model.at("layer.weight").numel());
  EXPECT_EQ(got.facts.step, step);
  for (const TensorKind kind : kTensorKinds) {
    for (const auto& [name, tensor] : wanted.of(kind)) EXPECT_TRUE(torch::equal(got.of(kind).at(name), tensor)) << name;
  }
  EXPECT_EQ(got.facts.loader, wanted.facts.loader);
  EXPECT_EQ(got.facts.job_yaml, wanted.facts.job_yaml);
  EXPECT_EQ(got.facts.extra, wanted.facts.extra);
  EXPECT_EQ(got.facts.rank_state, wanted.facts.rank_state);
}

inline void flip_bit(const std::filesystem::path& path, std::uint64_t offset) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(offset));
  const int byte = file.get();
  file.seekp(static_cast<std::streamoff>(offset));
  file.put(static_cast<char>(byte ^ 0x10));
}

inline std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

// Sums progress over ranks that are threads.
class SumOfThreads {
 public:
  explicit SumOfThreads(int world) : all_(world), meeting_(world) {}
  SaveProgress operator()(int rank, const SaveProgress& own) {
    all_[static_cast<std::size_t>(rank)] = own;
    meeting_.arrive_and_wait();
    std::array<double, SaveProgress::kFields> sum = {};
    for (const SaveProgress& one : all_) {
      const auto numbers = one.numbers();
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += numbers[i];
    }
    meeting_.arrive_and_wait();
    return SaveProgress::of(sum.data());
  }

 private:
  std::vector<SaveProgress> all_;
  std::barrier<> meeting_;
};

}  // namespace lockstep::checkpoint
