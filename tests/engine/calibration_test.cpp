// What calibration must get right whatever the machine is doing meanwhile; how accurate it is belongs to bench/.
#include "lockstep/engine/calibration.h"

#include <gtest/gtest.h>

#include <exception>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/comm/local.h"

namespace lockstep::engine {
namespace {

cost::Workload tiny_workload() {
  cost::Workload workload;
  workload.model.arch = spec::Arch::kGpt;
  workload.model.layers = 1;
  workload.model.hidden = 48;
  workload.model.heads = workload.model.kv_heads = 3;
  workload.model.head_dim = 16;
  workload.model.ffn_hidden = 192;
  workload.model.vocab = 64;
  workload.model.max_sequence = 32;
  workload.model.tied_embeddings = true;
  workload.batch = {.micro = 2, .accumulation = 1, .global_sequences = 4, .sequence_length = 32};
  return workload;
}

std::vector<cost::Profile> calibrate_threads(int ranks) {
  comm::LocalWorld world(ranks);
  std::vector<cost::Profile> profiles(static_cast<std::size_t>(ranks));
  std::vector<std::exception_ptr> thrown(profiles.size());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        comm::Communicator communicator = world.communicator(rank);
        CalibrationOptions options;
        options.quick = true;
        options.threads = 1;
        options.workloads = {tiny_workload()};
        options.backend = "local";
        options.lockstep_version = "test";
        profiles[static_cast<std::size_t>(rank)] = measure_profile(communicator, options);
        communicator.barrier().wait();
      } catch (...) {
        thrown[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : thrown) {
    if (error) std::rethrow_exception(error);
  }
  return profiles;
}

TEST(Calibration, gives_every_rank_the_same_complete_and_readable_profile) {
  const std::vector<cost::Profile> profiles = calibrate_threads(2);
  const cost::Profile& profile = profiles[0];
  nlohmann::json first = cost::to_json(profiles[0]), second = cost::to_json(profiles[1]);
  first["provenance"].erase("date");
  second["provenance"].erase("date");
  EXPECT_EQ(first, second);
  EXPECT_NO_THROW(cost::read_profile(cost::to_json(profile), "measured"));
  EXPECT_EQ(profile.provenance.ranks, 2);
  EXPECT_EQ(profile.provenance.threads, 1);
  EXPECT_FALSE(profile.collectives.empty());
  EXPECT_GE(profile.checks.size(), 3u);
  EXPECT_GT(profile.framework_bytes, 1e7);

  // The workload's own products are in the table: its price needs no interpolation.
  bool found = false;
  for (const cost::MatmulPoint& point : profile.matmuls) found |= point.m == 64 && point.n == 144 && point.k == 48;
  EXPECT_TRUE(found);

  plan::Layout layout;
  layout.dp = 2;
  const cost::StepPrediction predicted = cost::predict_step(profile, tiny_workload(), layout);
  EXPECT_GT(predicted.prediction.step_seconds.low, 0);
  EXPECT_LT(predicted.prediction.step_seconds.expected, 10);
}

TEST(Calibration, of_one_rank_has_no_collectives_and_still_prices_one_rank) {
  const cost::Profile profile = calibrate_threads(1)[0];
  EXPECT_TRUE(profile.collectives.empty());
  EXPECT_GT(cost::predict_step(profile, tiny_workload(), {}).prediction.tokens_per_second.expected, 0);
}

}  // namespace
}  // namespace lockstep::engine
