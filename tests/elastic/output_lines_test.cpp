#include "lockstep/elastic/output_lines.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <vector>

#include "lockstep/elastic/usage.h"

namespace lockstep::elastic {
namespace {

using Lines = std::vector<std::string>;

TEST(OutputLines, come_whole_however_the_bytes_come) {
  OutputLines lines;
  Lines seen;
  const auto take = [&](const std::string& line) { seen.push_back(line); };
  lines.add("one\ntw", 0.0, take);
  lines.add("o\n\nthr", 0.0, take);
  EXPECT_EQ(seen, (Lines{"one", "two", ""}));
  lines.add("ee", 0.0, take);
  lines.finish(take);
  EXPECT_EQ(seen.back(), "three");
}

TEST(OutputLines, of_a_progress_bar_show_what_a_terminal_would_once_a_second) {
  OutputLines lines;
  Lines seen;
  const auto take = [&](const std::string& line) { seen.push_back(line); };
  for (int i = 0; i < 40; ++i) lines.add("\r" + std::to_string(i) + "%", 10.0 + 0.1 * i, take);
  EXPECT_GE(seen.size(), 3u);
  EXPECT_LE(seen.size(), 5u);
  seen.clear();
  lines.add("\r100%\n", 14.1, take);
  EXPECT_EQ(seen, Lines{"100%"});
}

TEST(OutputLines, without_an_end_are_not_kept_for_ever) {
  OutputLines lines;
  std::size_t taken = 0;
  for (int i = 0; i < 100; ++i) {
    lines.add(std::string(10'000, 'x'), 0.0, [&](const std::string& line) { taken += line.size(); });
  }
  EXPECT_GT(taken, 900'000u);
}

TEST(UsageSampler, tells_memory_and_processor_time_of_a_process) {
  UsageSampler sampler({.root = "/", .open_gpus = [] { return std::unique_ptr<Gpus>(); }});
  sampler.sample({{3, ::getpid()}});
  const nlohmann::json used = sampler.sample({{3, ::getpid()}, {4, 999'999'999}});
  EXPECT_GT(used.at("ranks").at("3").at("resident_bytes").get<double>(), 1e6);
  EXPECT_GE(used.at("ranks").at("3").at("cpu_percent").get<double>(), 0.0);
  EXPECT_FALSE(used.at("ranks").contains("4")) << "it has ended";
  EXPECT_GT(used.at("available_bytes").get<double>(), 0.0);
}

struct OneGpu : Gpus {
  std::vector<GpuState> look() override {
    GpuState gpu;
    gpu.busy_percent = 80;
    gpu.used_bytes = 1 << 20;
    return {gpu};
  }
  std::vector<GpuXid> xids() override { return {}; }
};

TEST(UsageSampler, tells_what_the_gpu_of_a_rank_does) {
  UsageSampler sampler({.root = "/", .open_gpus = [] { return std::make_unique<OneGpu>(); }});
  nlohmann::json used;
  for (int tries = 0; tries < 1000 && !used.contains("gpu_percent"); ++tries) {
    used = sampler.sample({{7, ::getpid()}}).at("ranks").at("7");
    ::usleep(10'000);
  }
  EXPECT_EQ(used.value("gpu_percent", 0), 80);
  EXPECT_EQ(used.value("gpu_memory_bytes", 0), 1 << 20);
}

}  // namespace
}  // namespace lockstep::elastic
