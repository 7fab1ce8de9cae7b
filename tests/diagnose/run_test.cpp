// Each cause alone on a made-up run: it is found first, with its ranks; and nothing is found on healthy ones.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "lockstep/diagnose/difference.h"
#include "tests/diagnose/synthetic.h"

namespace lockstep::diagnose {
namespace {

namespace metric = telemetry::metric;

void expect_first(const MadeRun& made, Cause cause, const std::vector<int>& ranks, double least_cost = 4.0) {
  const Diagnosis found = diagnose(made);
  ASSERT_FALSE(found.findings.empty()) << "expected " << to_string(cause);
  EXPECT_EQ(found.findings[0].cause, cause) << to_text(found);
  EXPECT_EQ(found.findings[0].ranks, ranks) << to_text(found);
  EXPECT_GE(found.findings[0].cost_percent, least_cost);
  EXPECT_FALSE(found.findings[0].fix.empty());
  EXPECT_FALSE(found.findings[0].evidence.empty());
}

telemetry::MetricBatch of_node(int rank, int second, std::string_view name, double value) {
  return {rank, second, 1000.0 + second, {{std::string(name), value}}};
}

telemetry::Event event_of(std::string_view kind, int rank, const std::string& message, nlohmann::json data) {
  return {.time = 1005.0,
          .level = telemetry::Level::kError,
          .kind = std::string(kind),
          .rank = rank,
          .step = 5,
          .message = message,
          .data = std::move(data)};
}

TEST(Healthy, RunsHaveNoFindings) {
  for (const char* layout : {"dp=4", "dp=1,shard=4,zero=3", "tp=4", "dp=2,tp=2", "pp=4", "pp=2,dp=2", "dp=1"}) {
    for (const double noise : {0.01, 0.05, 0.15}) {
      MadeRun made;
      made.layout = layout;
      made.noise = noise;
      made.accumulation = 16;
      const Diagnosis found = diagnose(made);
      EXPECT_TRUE(found.findings.empty()) << layout << " " << noise << "\n" << to_text(found);
    }
  }
}

TEST(Healthy, OneHiccupIsNoFinding) {
  MadeRun made;
  made.change = [](int rank, int step, MadeStep& one) {
    if (rank == 1 && step == 20) one.data = one.forward = one.checkpoint = one.cpu_wait = 1.0;
  };
  EXPECT_TRUE(diagnose(made).findings.empty()) << to_text(diagnose(made));
}

TEST(SlowRank, IsNamedInSpiteOfTheBarrier) {
  MadeRun made;
  made.change = [](int rank, int, MadeStep& one) {
    if (rank == 2) one.backward *= 1.5;
  };
  const Diagnosis found = diagnose(made);
  ASSERT_EQ(found.findings.size(), 1U) << to_text(found);
  EXPECT_EQ(found.findings[0].cause, Cause::kSlowRank);
  EXPECT_EQ(found.findings[0].ranks, std::vector<int>{2});
  EXPECT_NE(found.findings[0].evidence.find("backward"), std::string::npos) << found.findings[0].evidence;
  EXPECT_NEAR(found.findings[0].cost_percent, 100.0 * 0.030 / 0.133, 3.0);
}

TEST(SlowRank, IsNamedInForwardAndAmongTwo) {
  MadeRun made;
  made.layout = "dp=2";
  made.change = [](int rank, int, MadeStep& one) {
    if (rank == 0) one.forward *= 1.6;
  };
  expect_first(made, Cause::kSlowRank, {0});
  EXPECT_NE(diagnose(made).findings[0].evidence.find("forward"), std::string::npos);
}

TEST(SlowRank, OfAPipelineIsToldFromUnevenStages) {
  MadeRun made;
  made.layout = "pp=4";
  made.accumulation = 16;
  made.change = [](int rank, int, MadeStep& one) {
    if (rank == 1) one.backward *= 1.6, one.forward *= 1.6;
  };
  expect_first(made, Cause::kSlowRank, {1});
}

TEST(SlowRank, OfAPipelineThatIsSlowInBackwardAlone) {
  MadeRun made;
  made.layout = "pp=2";
  made.cluster = "1x2xcpu";
  made.hidden = 64;  // the head is a third of a layer
  made.layers = 4;
  made.accumulation = 8;
  made.change = [](int rank, int, MadeStep& one) {
    one.forward = 0.060;
    one.backward = rank == 1 ? 0.092 : 0.060;  // over both phases 27% more, which the head would nearly explain
  };
  expect_first(made, Cause::kSlowRank, {1});
  EXPECT_NE(to_text(diagnose(made)).find("in backward"), std::string::npos);
}

TEST(SlowRank, IsNotTheStageWhoseHeadIsComputedInForward) {
  MadeRun made;
  made.layout = "pp=2";
  made.cluster = "1x2xcpu";
  made.hidden = 64;
  made.layers = 4;
  made.accumulation = 8;
  made.change = [](int rank, int, MadeStep& one) {
    one.forward = rank == 1 ? 0.045 : 0.030;  // a third of a layer, forward and backward
    one.backward = rank == 1 ? 0.058 : 0.060;
  };
  const Diagnosis found = diagnose(made);
  EXPECT_TRUE(found.findings.empty()) << to_text(found);
}

TEST(StageImbalance, ProposesTheBalancedLayers) {
  MadeRun made;
  made.layout = "pp=2,stage_layers=6+2";
  made.cluster = "1x2xcpu";
  made.accumulation = 16;
  made.change = [](int rank, int, MadeStep& one) {
    const double layers = rank == 0 ? 6.0 : 2.1;
    one.forward = 0.010 * layers;
    one.backward = 0.020 * layers;
  };
  expect_first(made, Cause::kStageImbalance, {0}, 20.0);
  EXPECT_NE(diagnose(made).findings[0].fix.find("layout.stage_layers=[4,4]"), std::string::npos);
}

TEST(Bubble, OfTooFewMicroBatches) {
  MadeRun made;
  made.layout = "pp=4";
  made.accumulation = 2;
  made.micro = 8;
  made.change = [](int, int, MadeStep& one) { one.transfer = 0.12; };
  const Diagnosis found = diagnose(made);
  ASSERT_FALSE(found.findings.empty());
  EXPECT_EQ(found.findings[0].cause, Cause::kBubble) << to_text(found);
  EXPECT_NE(found.findings[0].fix.find("batch.micro=1 batch.accumulation=16"), std::string::npos) << to_text(found);
  EXPECT_GT(found.findings[0].gain_percent, 20.0);
}

TEST(Loader, NamesOneRankOrAll) {
  MadeRun made;
  made.change = [](int rank, int, MadeStep& one) {
    if (rank == 3) one.data = 0.040;
  };
  expect_first(made, Cause::kLoader, {3}, 20.0);
  made.change = [](int, int, MadeStep& one) { one.data = 0.040; };
  expect_first(made, Cause::kLoader, {}, 20.0);
}

TEST(CheckpointStall, IsFoundThoughMostStepsHaveNone) {
  MadeRun made;
  made.change = [](int, int step, MadeStep& one) {
    if (step % 5 == 0) one.checkpoint = 0.2;
  };
  expect_first(made, Cause::kCheckpointStall, {}, 20.0);
}

TEST(MemoryPressure, OfARankThatLeaks) {
  MadeRun made;
  made.change = [](int rank, int step, MadeStep& one) {
    if (rank == 1) one.allocated_bytes += 8e6 * step;
  };
  expect_first(made, Cause::kMemoryPressure, {1}, 50.0);
}

TEST(MemoryPressure, IsNotAPlateau) {
  MadeRun made;
  made.change = [](int, int step, MadeStep& one) { one.allocated_bytes += 5e7 * std::min(step, 10); };
  EXPECT_TRUE(diagnose(made).findings.empty());
}

TEST(Throttling, TakesTheSlowRankWithIt) {
  MadeRun made;
  made.change = [](int rank, int, MadeStep& one) {
    if (rank == 2) one.backward *= 1.6, one.forward *= 1.6;
  };
  for (int second = 0; second < 6; ++second) {
    for (int rank = 0; rank < 4; ++rank) {
      made.more.emplace_back(of_node(rank, second, metric::kGpuClockRatio, rank == 2 ? 0.6 : 0.99));
      made.more.emplace_back(of_node(rank, second, metric::kGpuThrottled, rank == 2 ? 1.0 : 0.0));
    }
  }
  const Diagnosis found = diagnose(made);
  ASSERT_EQ(found.findings.size(), 1U) << to_text(found);
  EXPECT_EQ(found.findings[0].cause, Cause::kThrottling);
  EXPECT_EQ(found.findings[0].ranks, std::vector<int>{2});
}

TEST(Oversubscription, TakesTheSlowRankWithIt) {
  MadeRun made;
  made.change = [](int rank, int, MadeStep& one) {
    if (rank == 0) one.backward += 0.05, one.cpu_wait = 0.05;
  };
  const Diagnosis found = diagnose(made);
  ASSERT_EQ(found.findings.size(), 1U) << to_text(found);
  EXPECT_EQ(found.findings[0].cause, Cause::kOversubscription);
}

TEST(DataImbalance, WhereTimeFollowsTargets) {
  MadeRun made;
  made.change = [](int rank, int step, MadeStep& one) {
    if ((step * 7 + rank * 3) % 4 == 0) one.targets = 2048, one.forward *= 1.8, one.backward *= 1.8;
  };
  expect_first(made, Cause::kDataImbalance, {});
}

TEST(ExpertImbalance, TakesTheSlowRankWithIt) {
  MadeRun made;
  made.experts = true;
  made.layout = "dp=4,ep=4";
  made.change = [](int rank, int, MadeStep& one) {
    one.expert_imbalance = 3.0;
    if (rank == 1) one.backward *= 2.0;
  };
  const Diagnosis found = diagnose(made);
  ASSERT_EQ(found.findings.size(), 1U) << to_text(found);
  EXPECT_EQ(found.findings[0].cause, Cause::kExpertImbalance);
  EXPECT_EQ(found.findings[0].ranks, std::vector<int>{1});
  EXPECT_NE(found.findings[0].evidence.find("3.0 times the mean"), std::string::npos) << to_text(found);
}

TEST(ExpertImbalance, OfOtherRanksInOtherLayers) {
  MadeRun made;
  made.experts = true;
  made.layout = "dp=2,ep=2";
  made.cluster = "1x2xcpu";
  made.change = [](int, int, MadeStep& one) { one.expert_imbalance = 3.0; };  // both compute equally long
  for (int step = 1; step <= made.steps; ++step) {
    for (int rank = 0; rank < 2; ++rank) {
      const float begin = rank == 0 ? 0.01F : 0.03F, other = rank == 0 ? 0.07F : 0.05F;
      made.more.emplace_back(made_spans(rank, step,
                                        {{.begin = begin, .seconds = 0.031F - begin, .group = "ep:0,1"},
                                         {.begin = other, .seconds = 0.071F - other, .group = "ep:0,1"}}));
    }
  }
  expect_first(made, Cause::kExpertImbalance, {0, 1}, 15.0);
}
TEST(ExpertImbalance, IsNoneWhereEveryRankHasAllExpertsOrTheyAreEven) {
  MadeRun made;
  made.experts = true;
  made.change = [](int rank, int, MadeStep& one) {
    one.expert_imbalance = 3.0;
    if (rank == 1) one.backward *= 2.0;
  };
  expect_first(made, Cause::kSlowRank, {1});  // layout dp=4: nobody waits for an expert
  made.layout = "dp=4,ep=4";
  made.change = [](int, int, MadeStep& one) { one.expert_imbalance = 1.3; };
  EXPECT_TRUE(diagnose(made).findings.empty()) << to_text(diagnose(made));
}

MadeRun run_of_tiny_pieces() {
  MadeRun made;
  made.hidden = 32;
  made.micro = 1;
  made.accumulation = 32;
  made.change = [](int, int, MadeStep& one) { one.forward = 0.010, one.backward = 0.020; };  // 0.94 ms a micro-batch
  return made;
}

TEST(LaunchBound, OfTooManyMicroBatches) {
  const MadeRun made = run_of_tiny_pieces();
  expect_first(made, Cause::kLaunchBound, {}, 20.0);
  const Finding first = diagnose(made).findings.at(0);
  EXPECT_NE(first.fix.find("batch.micro=8 batch.accumulation=4"), std::string::npos) << first.fix;
}

TEST(LaunchBound, IsNoneWhereItCouldNotBeOtherwise) {
  MadeRun few = run_of_tiny_pieces();
  few.accumulation = 4;
  EXPECT_TRUE(diagnose(few).findings.empty()) << to_text(diagnose(few));
  MadeRun large = run_of_tiny_pieces();
  large.hidden = 512;  // arithmetic alone takes most of it
  EXPECT_TRUE(diagnose(large).findings.empty()) << to_text(diagnose(large));
  MadeRun full = run_of_tiny_pieces();
  full.capacity_bytes = 1.05e6;  // the plan has 1e6 of it
  EXPECT_TRUE(diagnose(full).findings.empty()) << to_text(diagnose(full));
  MadeRun pipeline = run_of_tiny_pieces();
  pipeline.layout = "pp=4";
  pipeline.accumulation = 16;  // which it needs
  EXPECT_TRUE(diagnose(pipeline).findings.empty()) << to_text(diagnose(pipeline));
}

TEST(Recompute, ThoughThereIsRoom) {
  MadeRun made;
  made.layout = "dp=4,recompute=full";
  expect_first(made, Cause::kRecompute, {}, 20.0);
  made.capacity_bytes = 1.1e6;
  EXPECT_TRUE(diagnose(made).findings.empty()) << to_text(diagnose(made));
}

TEST(WrongPlacement, OfTensorGroupsOverNodes) {
  MadeRun made;
  made.layout = "dp=2,tp=2";
  made.cluster = "2x2xcpu";
  made.change = [](int, int, MadeStep& one) { one.transfer = 0.08; };
  made.more.emplace_back(event_of(telemetry::event_kind::kPlacement, -1, "", {{"nodes", {0, 1, 0, 1}}}));
  expect_first(made, Cause::kWrongPlacement, {}, 20.0);
}

TEST(ExposedCommunication, BeyondAQuarterOfTheStep) {
  MadeRun made;
  made.change = [](int, int, MadeStep& one) { one.transfer = 0.08; };
  expect_first(made, Cause::kExposedCommunication, {}, 20.0);
}

TEST(SlowLink, OfARankWhoseTransfersTakeLonger) {
  MadeRun made;
  made.change = [](int rank, int, MadeStep& one) {
    if (rank == 3) one.transfer = 0.06;
  };
  expect_first(made, Cause::kSlowLink, {3}, 20.0);
}

// tp=2, dp=2: each rank is in two pairs. Those of rank 1 are slow.
TEST(SlowLink, IsThatOfTheRankWhoseGroupsAreAllSlow) {
  const auto made_with = [](const std::function<bool(int, int)>& is_slow) {
    MadeRun made;
    made.layout = "dp=2,tp=2";
    made.change = [](int, int, MadeStep& one) { one.transfer = 0.06; };
    for (int step = 20; step < 30; ++step) {
      for (int rank = 0; rank < 4; ++rank) {
        std::vector<MadeExchange> exchanges;
        for (const bool tensor : {true, false}) {
          const int peer = tensor ? rank ^ 1 : rank ^ 2, a = std::min(rank, peer), b = std::max(rank, peer);
          for (int i = 0; i < 4; ++i) {
            exchanges.push_back({(tensor ? 0.0F : 0.06F) + 0.015F * static_cast<float>(i),
                                 is_slow(a, b) ? 0.012F : 0.002F, tensor ? 100'000 : 400'000,
                                 fmt::format("{}-{}", a, b)});
          }
        }
        made.more.emplace_back(made_spans(rank, step, exchanges));
      }
    }
    return made;
  };
  expect_first(made_with([](int a, int b) { return a == 1 || b == 1; }), Cause::kSlowLink, {1}, 20.0);
  expect_first(made_with([](int a, int b) { return a == 0 && b == 1; }), Cause::kSlowLink, {0, 1}, 10.0);
}

TEST(HostBound, BeyondWhatAProgramTakes) {
  MadeRun made;
  made.change = [](int, int, MadeStep& one) { one.host = 0.06; };
  expect_first(made, Cause::kHostBound, {}, 20.0);
}

TEST(Ended, HangNamesWhoIsMissing) {
  MadeRun made;
  made.status = telemetry::RunStatus::kFailed;
  made.more.emplace_back(event_of(telemetry::event_kind::kHang, -1,
                                  "all_reduce 17 of dp never ended: rank 3 is missing", {{"missing", {3}}}));
  made.more.emplace_back(event_of(telemetry::event_kind::kFailure, 0, "rank 0: timeout", nlohmann::json::object()));
  expect_first(made, Cause::kHang, {3}, 100.0);
}

TEST(Ended, CrashNamesTheFirstRank) {
  MadeRun made;
  made.status = telemetry::RunStatus::kFailed;
  made.more.emplace_back(event_of(telemetry::event_kind::kFailure, 2, "rank 2: SIGKILL", nlohmann::json::object()));
  expect_first(made, Cause::kCrash, {2}, 100.0);
}

TEST(Ended, BrokenNodeIsTheCauseOfTheCrash) {
  MadeRun made;
  made.layout = "dp=4";
  made.cluster = "2x2xcpu";
  made.status = telemetry::RunStatus::kFailed;
  made.more.emplace_back(event_of(telemetry::event_kind::kNodeHealth, 2, "gpu: Xid 79, the GPU fell off the bus",
                                  {{"node", "n1"}, {"severity", "fatal"}, {"check", "kernel"}, {"fix", "reset it"}}));
  made.more.emplace_back(event_of(telemetry::event_kind::kFailure, 2, "rank 2: SIGABRT", nlohmann::json::object()));
  expect_first(made, Cause::kHardwareError, {2, 3}, 100.0);
}

TEST(Price, IsThatOfTheCluster) {
  MadeRun made;
  made.price_per_device_hour = 10.0;
  made.change = [](int, int, MadeStep& one) { one.data = 0.05; };
  const Finding first = diagnose(made).findings.at(0);
  EXPECT_NEAR(first.cost_usd_per_hour, 40.0 * first.cost_percent / 100.0, 1e-9);
}

TEST(Difference, SaysWhichPhaseAndWhichSettingChanged) {
  std::string folder = (std::filesystem::temp_directory_path() / "lockstep-difference-XXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  MadeRun before, after;
  after.micro = 8;
  after.change = [](int, int, MadeStep& one) { one.data = 0.05; };
  const auto store = store_with({before, after}, folder);
  const Difference found = compare_runs(*store, id_of(0), id_of(1));
  EXPECT_EQ(found.phases.at(0).phase, "step");
  EXPECT_EQ(found.phases.at(1).phase, "data");
  EXPECT_TRUE(found.phases.at(1).clear);
  EXPECT_FALSE(found.phases.at(2).clear) << found.phases.at(2).phase;
  ASSERT_EQ(found.settings.size(), 1U);
  EXPECT_EQ(found.settings[0].key, "batch.micro");
  EXPECT_EQ(found.settings[0].after, "8");
  EXPECT_TRUE(found.before.findings.empty());
  EXPECT_EQ(found.after.findings.at(0).cause, Cause::kLoader);
  EXPECT_NE(to_text(found).find("batch.micro: 4"), std::string::npos);
  EXPECT_EQ(to_json(found)["schema"], "lockstep.difference/1");
  std::filesystem::remove_all(folder);
}

TEST(Unknown, RunIsAUserError) {
  const auto store = telemetry::make_json_lines_run_store("/nonexistent");
  EXPECT_ANY_THROW(diagnose_run(*store, "nothing"));
}

}  // namespace
}  // namespace lockstep::diagnose
