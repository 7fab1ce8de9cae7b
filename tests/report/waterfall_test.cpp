#include "lockstep/report/waterfall.h"

#include <gtest/gtest.h>

#include <numeric>

#include "made_up_run.h"

namespace lockstep::report {
namespace {

double seconds_of(const Descent& side, Loss loss) { return side.seconds[static_cast<std::size_t>(loss)]; }

class TheWaterfall : public ::testing::Test {
 protected:
  Waterfall made() {
    const auto store = run_.store(folder_);
    facts_ = read_run_facts(*store, "last");
    return make_waterfall(facts_, *store);
  }
  MadeUpRun run_;
  TemporaryFolder folder_;
  RunFacts facts_;
};

void expect_it_adds_up(const Descent& side) {
  double share = 1.0, seconds = side.ideal_seconds, time = 0.0;
  for (std::size_t i = 0; i < kLosses; ++i) {
    const Loss loss = static_cast<Loss>(i);
    if (loss == Loss::kRestarts) {
      EXPECT_NEAR(share, side.mfu(), 1e-12) << "peak less the losses of a step is its MFU";
      EXPECT_NEAR(seconds, side.step_seconds, 1e-12) << "and their seconds are the step";
    }
    share -= side.share(loss);
    seconds += side.seconds[i];
    time += side.of_time(loss);
  }
  EXPECT_NEAR(share, side.overall(), 1e-12);
  EXPECT_NEAR(seconds, side.step_seconds + side.outside_seconds(), 1e-12);
  EXPECT_NEAR(time + side.overall(), 1.0, 1e-12) << "all of the time, and so all of the money";
}

TEST_F(TheWaterfall, adds_up_exactly_on_both_sides) {
  const Waterfall waterfall = made();
  ASSERT_TRUE(waterfall.predicted && waterfall.measured);
  expect_it_adds_up(*waterfall.predicted);
  expect_it_adds_up(*waterfall.measured);
}

TEST_F(TheWaterfall, takes_what_was_predicted_from_the_plan) {
  const Descent side = *made().predicted;
  EXPECT_NEAR(side.ideal_seconds, 0.4 * 0.8, 1e-12);
  EXPECT_NEAR(seconds_of(side, Loss::kRecompute), 0.5 * 0.25, 1e-9) << "forward again is one of four parts";
  EXPECT_NEAR(seconds_of(side, Loss::kKernels), 0.5 - 0.125 - 0.32, 1e-9);
  EXPECT_NEAR(seconds_of(side, Loss::kBubble), 0.1, 1e-12);
  EXPECT_NEAR(seconds_of(side, Loss::kTensorComm), 0.05, 1e-12);
  EXPECT_NEAR(seconds_of(side, Loss::kHost), 0.02, 1e-12);
  EXPECT_NEAR(seconds_of(side, Loss::kCheckpoint), 0.8 * 3 / 600, 1e-12);
}

TEST_F(TheWaterfall, has_a_row_for_what_choosing_costs) {
  const double host = seconds_of(*made().predicted, Loss::kHost);
  facts_.typed->best.breakdown->selection = 0.015;
  const Waterfall waterfall = made();
  EXPECT_NEAR(seconds_of(*waterfall.predicted, Loss::kSelection), 0.015, 1e-12);
  EXPECT_NEAR(seconds_of(*waterfall.predicted, Loss::kHost), host - 0.015, 1e-12) << "named, and not in the rest";
  EXPECT_TRUE(is_worth_a_row(waterfall, Loss::kSelection));
  expect_it_adds_up(*waterfall.predicted);
}

TEST_F(TheWaterfall, splits_what_was_measured_by_phases_and_spans) {
  const Waterfall waterfall = made();
  const Descent& side = *waterfall.measured;
  EXPECT_NEAR(side.mfu(), 0.4 * 0.8, 1e-9) << "the plan's MFU at 0.8 of its rate";
  EXPECT_NEAR(side.mfu(), mfu_at(facts_, facts_.measured_per_second), 1e-12) << "one MFU everywhere";
  const double compute = 0.6 + 0.1 / 8, comm = 0.25 - 0.1 / 8, wait = 0.15 - 0.1 / 8;
  EXPECT_NEAR(seconds_of(side, Loss::kRecompute), compute * 0.15 / 0.6, 1e-6);
  EXPECT_NEAR(seconds_of(side, Loss::kKernels), compute * 0.75 - 0.32, 1e-6);
  EXPECT_NEAR(seconds_of(side, Loss::kBubble), comm * 0.1 / 0.25, 1e-6) << "what stages waited for each other";
  EXPECT_NEAR(seconds_of(side, Loss::kStragglers), wait - comm * 0.4, 1e-6);
  EXPECT_NEAR(seconds_of(side, Loss::kTensorComm), (comm - wait) * 0.05 / 0.15, 1e-6);
  EXPECT_NEAR(seconds_of(side, Loss::kDataComm), (comm - wait) * 0.1 / 0.15, 1e-6);
  EXPECT_NEAR(seconds_of(side, Loss::kLoader), 0.05, 1e-9);
  EXPECT_NEAR(seconds_of(side, Loss::kHost), 0.03, 1e-9);
  EXPECT_EQ(waterfall.measure, Measure::kMfu);
  EXPECT_FALSE(waterfall.split_by_plan);
}

TEST_F(TheWaterfall, has_dollars_where_a_price_is_known) {
  const Waterfall waterfall = made();
  EXPECT_NEAR(waterfall.usd_per_day, 8 * 24 * 5.0, 1e-9);
  const nlohmann::json json = to_json(waterfall);
  double spent = waterfall.measured->overall() * waterfall.usd_per_day;
  for (const auto& loss : json.at("losses")) spent += loss.at("measured").at("usd_per_day").get<double>();
  EXPECT_NEAR(spent, waterfall.usd_per_day, 1e-6) << "every dollar of the day is somewhere";
  run_.with_price = false;
  const TemporaryFolder other;
  const auto store = run_.store(other);
  const nlohmann::json unpriced = to_json(make_waterfall(read_run_facts(*store, "last"), *store));
  EXPECT_TRUE(unpriced.at("usd_per_day").is_null());
  EXPECT_TRUE(unpriced.at("losses")[0].at("measured").at("usd_per_day").is_null());
}

TEST_F(TheWaterfall, counts_what_happens_outside_of_steps) {
  const Descent side = *made().measured;
  // 40 steps in 60 s: 10 s before the first, 4.5 to 5.5 s of recovery, two steps done again.
  EXPECT_NEAR(seconds_of(side, Loss::kRestarts) * 40, 5.5 + 2.0, 0.01);
  EXPECT_NEAR((side.step_seconds + side.outside_seconds()) * 40, 60.0, 0.01);
  EXPECT_LT(side.overall(), side.mfu());
}

TEST_F(TheWaterfall, splits_communication_as_the_plan_does_when_there_are_no_spans) {
  run_.with_spans = false;
  const Waterfall waterfall = made();
  EXPECT_TRUE(waterfall.split_by_plan);
  expect_it_adds_up(*waterfall.measured);
  EXPECT_GT(seconds_of(*waterfall.measured, Loss::kTensorComm), 0.0);
  EXPECT_EQ(to_json(waterfall).at("communication_split_by"), "plan");
}

TEST_F(TheWaterfall, leaves_all_to_the_host_where_only_steps_were_recorded) {
  run_.with_phases = run_.with_spans = false;
  const Waterfall waterfall = made();
  EXPECT_FALSE(waterfall.has_phases);
  expect_it_adds_up(*waterfall.measured);
  EXPECT_NEAR(seconds_of(*waterfall.measured, Loss::kHost), 1.0 - 0.32, 1e-9);
  EXPECT_EQ(seconds_of(*waterfall.measured, Loss::kKernels), 0.0);
}

TEST_F(TheWaterfall, knows_mfu_of_a_gpu_without_a_prediction) {
  run_.with_prediction = false;
  const Waterfall waterfall = made();
  EXPECT_FALSE(waterfall.predicted);
  EXPECT_EQ(waterfall.measure, Measure::kMfu);
  expect_it_adds_up(*waterfall.measured);
  EXPECT_GT(waterfall.measured->mfu(), 0.0);
  EXPECT_NEAR(waterfall.measured->mfu(), mfu_at(facts_, facts_.measured_per_second), 1e-12);
}

TEST_F(TheWaterfall, says_so_where_efficiency_or_computing_stands_for_mfu) {
  run_.cpu = true;
  EXPECT_EQ(made().measure, Measure::kEfficiency);
  EXPECT_NE(measure_note(made()).find("CPU"), std::string::npos);
  run_.with_prediction = false;
  const TemporaryFolder other;
  const auto store = run_.store(other);
  const Waterfall waterfall = make_waterfall(read_run_facts(*store, "last"), *store);
  EXPECT_EQ(waterfall.measure, Measure::kComputing) << "no profile, so no peak";
  expect_it_adds_up(*waterfall.measured);
  EXPECT_NEAR(waterfall.measured->mfu(), (0.6 + 0.1 / 8) * 0.75, 1e-6);
}

TEST(GroupNames, tell_who_communicates) {
  EXPECT_EQ(axis_of_group("world/tp1"), CommAxis::kTensor);
  EXPECT_EQ(axis_of_group("pp"), CommAxis::kPipeline);
  EXPECT_EQ(axis_of_group("world/dp0/ep3"), CommAxis::kExpert);
  EXPECT_EQ(axis_of_group("tp:0-24/8"), CommAxis::kTensor);
  EXPECT_EQ(axis_of_group("everyone:0-3"), CommAxis::kData);
  EXPECT_EQ(axis_of_group("cp"), CommAxis::kContext);
  for (const char* data : {"dp", "shard", "world", "", "tpx"}) EXPECT_EQ(axis_of_group(data), CommAxis::kData) << data;
}

}  // namespace
}  // namespace lockstep::report
