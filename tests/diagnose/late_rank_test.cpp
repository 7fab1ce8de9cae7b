// Traces of many ranks: all steps take equally long, and yet the rank that makes them long is named.
#include <gtest/gtest.h>

#include "lockstep/diagnose/foreign/kineto.h"
#include "lockstep/diagnose/foreign/trace_findings.h"
#include "tests/diagnose/trace_builder.h"

namespace lockstep::diagnose::test {
namespace {

// What one rank does in a step before the collective, microseconds.
struct RankShape {
  double kernel_us = 400.0;
  double loader_us = 50.0;
  double pause_us = 0.0;
};

// Ranks that reduce three times a step and wait for each other there. Each node has a clock of its own.
std::vector<Trace> ranks(const std::vector<RankShape>& shapes, bool metadata) {
  std::vector<TraceBuilder> builders(shapes.size());
  for (std::size_t r = 0; r < shapes.size(); ++r) {
    builders[r].rank = static_cast<int>(r);
    builders[r].world = static_cast<int>(shapes.size());
    builders[r].clock_offset = 1e6 * static_cast<double>(r / 2);
  }
  int sequence = 0;
  for (int step = 0; step < 6; ++step) {
    std::vector<double> begins;
    for (std::size_t r = 0; r < shapes.size(); ++r) {
      TraceBuilder& one = builders[r];
      begins.push_back(one.now);
      one.range("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", one.now,
                one.now + shapes[r].loader_us);
      one.now += shapes[r].loader_us;
    }
    for (int bucket = 0; bucket < 3; ++bucket, ++sequence) {
      std::vector<double> arrive;
      for (std::size_t r = 0; r < shapes.size(); ++r) {
        builders[r].now += shapes[r].pause_us;
        for (int k = 0; k < 10; ++k) builders[r].kernel("gemm", shapes[r].kernel_us);
        arrive.push_back(std::max(builders[r].free_at(7), builders[r].now + 8.0));
      }
      const double end = *std::max_element(arrive.begin(), arrive.end()) + 500.0;
      for (std::size_t r = 0; r < shapes.size(); ++r) {
        const std::string args =
            metadata ? fmt::format(R"("Collective name": "allreduce", "Process Group Name": "0", "Seq": {})", sequence)
                     : "";
        builders[r].kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage)", end - arrive[r], 7,
                           arrive[r], args);
      }
    }
    for (std::size_t r = 0; r < shapes.size(); ++r) {
      builders[r].synchronize();
      builders[r].range(fmt::format("ProfilerStep#{}", step), begins[r], builders[r].now - 1.0);
    }
  }
  std::vector<Trace> traces;
  for (const TraceBuilder& builder : builders) {
    const std::string json = builder.json();
    traces.push_back(read_kineto(*memory_source(json), "test.json"));
  }
  return traces;
}

Finding slow_rank(const std::vector<RankShape>& shapes, bool metadata) {
  for (const Finding& finding : trace_findings(ranks(shapes, metadata))) {
    if (finding.cause == Cause::kSlowRank) return finding;
  }
  return {};
}

TEST(LateRank, that_computes_longer_is_named) {
  std::vector<RankShape> shapes(4);
  shapes[2].kernel_us = 520.0;
  for (const bool metadata : {false, true}) {
    const Finding finding = slow_rank(shapes, metadata);
    EXPECT_EQ(finding.ranks, std::vector<int>{2});
    EXPECT_NE(finding.evidence.find("computes longer"), std::string::npos) << finding.evidence;
    // 3 x 10 x 120 us of 3 x (5200 + 500) us and some.
    EXPECT_NEAR(finding.cost_percent, 20.0, 2.0);
  }
}

TEST(LateRank, that_waits_for_data_is_named_with_its_loader) {
  std::vector<RankShape> shapes(8);
  shapes[5].loader_us = 6'000.0;
  const Finding finding = slow_rank(shapes, true);
  EXPECT_EQ(finding.ranks, std::vector<int>{5});
  EXPECT_NE(finding.evidence.find("data"), std::string::npos) << finding.evidence;
}

TEST(LateRank, whose_program_is_slow_is_named_with_its_host) {
  std::vector<RankShape> shapes(2);
  shapes[1].pause_us = 2'500.0;
  const Finding finding = slow_rank(shapes, false);
  EXPECT_EQ(finding.ranks, std::vector<int>{1});
  EXPECT_NE(finding.evidence.find("program"), std::string::npos) << finding.evidence;
}

TEST(LateRank, equal_ranks_get_no_finding) {
  std::vector<RankShape> shapes(4);
  shapes[1].kernel_us = 404.0;  // they always differ a little
  EXPECT_TRUE(slow_rank(shapes, true).ranks.empty());
  EXPECT_TRUE(slow_rank(shapes, false).ranks.empty());
}

}  // namespace
}  // namespace lockstep::diagnose::test
