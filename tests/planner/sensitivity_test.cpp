#include "lockstep/planner/explain/sensitivity.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "lockstep/cost/price.h"
#include "lockstep/planner/explain/explain.h"
#include "lockstep/planner/search/objective.h"
#include "tests/planner/small_requests.h"

namespace lockstep::planner {
namespace {

using testing::request_of;

double change_of(const Assumption& each) { return std::max(std::abs(each.time_at_low), std::abs(each.time_at_high)); }

const Assumption* find(const Sensitivity& all, const std::string& name) {
  const auto found = std::find_if(all.begin(), all.end(), [&](const auto& each) { return each.name == name; });
  return found == all.end() ? nullptr : &*found;
}

// The time of the run with other constants, from the price of a run and nothing of the study's.
double time_with(const SearchRequest& request, const plan::Candidate& best, double cost::Constants::*member,
                 double value) {
  cost::Profile profile = request.profile;
  profile.fitted->constants.*member = value;
  const double step = cost::price(run_of(request, best.layout, best.batch), profile).step_seconds();
  const std::int64_t devices = best.layout.world();
  const Scorer scorer(request, {devices});
  return step / scorer.cadence(scorer.world(devices), step).goodput;
}

class EveryPlan : public ::testing::TestWithParam<testing::SmallCase> {};

TEST_P(EveryPlan, names_what_it_is_most_sensitive_to_and_what_settles_it) {
  const Explained explained = explain(testing::small_request(GetParam()), {.what_ifs = false});
  const Sensitivity& all = explained.sensitivity;
  ASSERT_FALSE(all.empty());
  EXPECT_LE(all.size(), 6U);
  EXPECT_GT(change_of(all.front()), 0.01) << "no step is known to a hundredth";
  for (const Assumption& each : all) {
    EXPECT_LE(each.low, each.value) << each.name;
    EXPECT_LE(each.value, each.high) << each.name;
    EXPECT_LT(each.low, each.high) << each.name;
    EXPECT_LE(change_of(each), change_of(all.front())) << each.name;
    EXPECT_FALSE(each.meaning.empty() || each.evidence.empty() || each.measurement.empty()) << each.name;
    EXPECT_TRUE(each.command.starts_with("lockstep ")) << each.command;
  }
}

INSTANTIATE_TEST_SUITE_P(Small, EveryPlan, ::testing::ValuesIn(testing::kSmallCases),
                         [](const auto& each) { return std::string(each.param.name); });

TEST(Sensitivity, ends_are_what_the_run_costs_with_the_constant_there) {
  const Explained explained = explain(request_of("llama2-13b", "4x8xH100"), {.what_ifs = false});
  const plan::Candidate& best = explained.plan.best;
  const Assumption* products = find(explained.sensitivity, "speed of matrix products");
  ASSERT_NE(products, nullptr);
  const auto member = &cost::Constants::gemm_efficiency;
  EXPECT_EQ(products->value, explained.request.profile.fitted->constants.gemm_efficiency);
  const double now = time_with(explained.request, best, member, products->value);
  EXPECT_NEAR(products->time_at_low, time_with(explained.request, best, member, products->low) / now - 1, 1e-9);
  EXPECT_NEAR(products->time_at_high, time_with(explained.request, best, member, products->high) / now - 1, 1e-9);
  EXPECT_GT(products->time_at_low, 0) << "slower products take longer";
  EXPECT_LT(products->time_at_high, 0);
}

TEST(Sensitivity, a_profile_with_better_predictions_has_narrower_ranges) {
  SearchRequest request = request_of("llama2-13b", "4x8xH100");
  const auto reach = [&](const char* profile) {
    request.profile = cost::find_profile(profile);
    const Explained explained = explain(request, {.what_ifs = false});
    const Assumption* products = find(explained.sensitivity, "speed of matrix products");
    return products == nullptr ? 0.0 : std::log(products->value / products->low);
  };
  const double generic = reach("H100"), known = reach("H100-llm-foundry");
  EXPECT_GT(known, 0);
  EXPECT_LT(known, 0.8 * generic);
}

// 90% of each, added as independent errors, are not more than the 90% of the interval.
TEST(Sensitivity, all_together_are_no_less_certain_than_the_prediction) {
  const Explained explained = explain(request_of("llama2-13b", "4x8xH100"), {.what_ifs = false});
  double variance = 0;
  for (const Assumption& each : explained.sensitivity) {
    variance += std::pow(std::log((1 + each.time_at_low) / (1 + each.time_at_high)) / 2, 2);
  }
  const plan::Interval& step = explained.plan.best.prediction->step_seconds;
  EXPECT_LT(std::sqrt(variance), 1.05 * std::log(step.high / step.expected));
}

TEST(Sensitivity, what_a_plan_does_not_use_is_not_named) {
  SearchRequest request = request_of("llama2-7b", "1x8xH100", 64);
  request.constraints.fixed = {{"pp", 1}, {"tp", 1}, {"cp", 1}};
  for (const Assumption& each : explain(request, {.what_ifs = false}).sensitivity) {
    for (const char* unused : {"pipeline", "tensor-parallel", "network cards", "between nodes", "fp8"}) {
      EXPECT_EQ(each.name.find(unused), std::string::npos) << each.name;
    }
  }
}

TEST(Sensitivity, where_nodes_fail_often_failures_come_first) {
  SearchRequest request = request_of("llama2-13b", "1024x8xH100", 8192);
  for (spec::NodeGroup& group : request.cluster.groups) group.failures_per_1000_node_days = 100;
  request.constraints.fixed = {{"tp", 1}, {"pp", 1}, {"cp", 1}};
  const Sensitivity all = explain(request, {.what_ifs = false}).sensitivity;
  const Assumption* rate = find(all, "failure rate");
  ASSERT_NE(rate, nullptr);
  EXPECT_NEAR(rate->value, 100, 1e-9);
  EXPECT_TRUE(all.front().name == "failure rate" || all.front().name == "time of a restart") << all.front().name;
  EXPECT_LT(rate->time_at_low, -0.1);
  EXPECT_NE(find(all, "time of a restart"), nullptr);
}

TEST(Sensitivity, a_rival_is_named_only_where_it_scores_higher_there) {
  int named = 0;
  for (const char* cluster : {"4x8xH100", "8x8xH100", "16x8xH100", "32x8xH100"}) {
    const Explained explained = explain(request_of("llama2-70b", cluster), {.what_ifs = false});
    const plan::Candidate& best = explained.plan.best;
    for (const Assumption& each : explained.sensitivity) {
      if (each.other_layout.empty()) {
        EXPECT_EQ(each.other_gain, 0);
        continue;
      }
      ++named;
      EXPECT_GT(each.other_gain, 0.005);
      EXPECT_NE(each.other_layout, plan::to_string(best.layout));
    }
  }
  EXPECT_GT(named, 0) << "of four large plans none is a close choice";
}

}  // namespace
}  // namespace lockstep::planner
