// What calibration must get right whatever the machine is doing meanwhile; how accurate it is belongs to bench/.
#include "lockstep/engine/calibrate/calibration.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/local.h"
#include "lockstep/cost/fused/memory.h"
#include "lockstep/cost/pricer/pricer.h"
#include "lockstep/cost/profile/constants_from_tables.h"
#include "lockstep/engine/calibrate/fused.h"
#include "lockstep/nn/torch_compat.h"
#include "lockstep/plan/executor.h"

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

std::vector<cost::Profile> calibrate_threads(int ranks, const std::vector<cost::Workload>& workloads,
                                             CalibrationDevice device = CalibrationDevice::kCpu) {
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
        options.device = device;
        options.threads = 1;
        options.workloads = workloads;
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
  const std::vector<cost::Profile> profiles = calibrate_threads(2, {tiny_workload()});
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
  for (const cost::CalibrationCheck& check : profile.checks) {
    ASSERT_TRUE(check.workload.has_value());
    EXPECT_EQ(check.workload->ranks, 2);
  }

  // The workload's own products are in the table: its price needs no interpolation.
  bool found = false;
  for (const cost::MatmulPoint& point : profile.matmuls) found |= point.m == 64 && point.n == 144 && point.k == 48;
  EXPECT_TRUE(found);

  plan::Layout layout;
  layout.dp = 2;
  const cost::StepPrediction predicted = cost::predict_step(profile, tiny_workload(), layout);
  EXPECT_GT(predicted.prediction.step_seconds.low, 0);
}

TEST(Calibration, of_one_rank_has_no_collectives_and_still_prices_one_rank) {
  const cost::Profile profile = calibrate_threads(1, {tiny_workload()})[0];
  EXPECT_TRUE(profile.collectives.empty());
  EXPECT_GT(cost::predict_step(profile, tiny_workload(), {}).prediction.tokens_per_second.expected, 0);
}

cost::Workload small_gpt(std::int64_t layers, std::int64_t hidden, std::int64_t micro) {
  cost::Workload workload = tiny_workload();
  workload.model.layers = layers;
  workload.model.hidden = hidden;
  workload.model.head_dim = 32;
  workload.model.heads = workload.model.kv_heads = hidden / 32;
  workload.model.ffn_hidden = 4 * hidden;
  workload.model.vocab = 256;
  workload.model.max_sequence = 128;
  workload.batch = {.micro = micro, .accumulation = 2, .global_sequences = 4 * micro, .sequence_length = 128};
  return workload;
}

// Largest distance from 1 of what constants make of the tables of a fresh calibration, over what the tables make of it.
double worst_distance_of_constants(const std::vector<cost::Workload>& workloads) {
  cost::Profile profile = calibrate_threads(2, workloads)[0];
  const spec::Cluster cluster = cost::with_measured_speeds(spec::load_cluster("1x2xcpu"), profile);
  plan::Layout layout;
  layout.dp = 2;
  profile.fitted = cost::Fitted{.constants = cost::constants_from_tables(profile, cluster.groups.front())};
  double worst = 0;
  for (const cost::Workload& workload : workloads) {
    const double tables = cost::price_step(profile, workload, layout).total();
    const cost::Pricer pricer(workload.model, cluster, profile, {.sequence_length = 128});
    worst = std::max(worst, std::abs(pricer.price(layout, workload.batch).step_seconds() / tables - 1.0));
  }
  return worst;
}

// The tables of a real machine, as constants, still price what the tables themselves price. Something else that starts
// in the middle of a calibration makes tables that contradict each other, so a second and third one may be asked for.
TEST(CalibrationTiming, constants_of_the_tables_price_data_parallel_steps_as_the_tables_do) {
  const std::vector<cost::Workload> workloads{small_gpt(4, 192, 4), small_gpt(2, 256, 4)};
  double worst = worst_distance_of_constants(workloads);
  for (int again = 0; again < 2 && worst > 0.25; ++again)
    worst = std::min(worst, worst_distance_of_constants(workloads));
  EXPECT_LT(worst, 0.25);
}

TEST(Calibration, measures_steps_that_the_fused_step_runs_and_that_tell_its_parts_apart) {
  const std::vector<cost::FusedPoint> points = fused_calibration_points(false), quick = fused_calibration_points(true);
  EXPECT_LT(quick.size(), points.size());
  EXPECT_GE(quick.size(), 3u);  // what the constants need at least
  std::set<plan::Recompute> recomputes;
  std::set<std::int64_t> widths, head_dims, sequences;
  for (const cost::FusedPoint& point : points) {
    EXPECT_EQ(plan::why_model_is_not_fused(point.model, point.precision), std::nullopt) << point.name();
    EXPECT_LT(cost::fused_memory(point.run()).total(), 120e9) << point.name();
    recomputes.insert(point.recompute);
    widths.insert(point.model.hidden);
    head_dims.insert(point.model.head_dim);
    sequences.insert(point.sequence_length);
  }
  EXPECT_EQ(recomputes.size(), 3u);
  EXPECT_GE(widths.size(), 5u);
  EXPECT_GE(head_dims.size(), 2u);
  EXPECT_GE(sequences.size(), 2u);
  if (!nn::compat::built_with_cuda()) {
    EXPECT_TRUE(measure_fused_points(points).empty());
  }
}

TEST(Calibration, a_build_without_cuda_says_so) {
  if (nn::compat::has_cuda()) GTEST_SKIP() << "this machine has a GPU";
  try {
    calibrate_threads(1, {}, CalibrationDevice::kCuda);
    FAIL() << "no error";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::kEnvironment);
    EXPECT_NE(std::string(error.what()).find("CUDA"), std::string::npos);
  }
}

}  // namespace
}  // namespace lockstep::engine
