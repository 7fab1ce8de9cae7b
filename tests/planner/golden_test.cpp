// Plans of well-known jobs: what must hold of each, and the whole explanation as text.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "lockstep/planner/explain/explain.h"
#include "lockstep/report/plan_text.h"
#include "tests/planner/golden_text.h"

namespace lockstep::planner {
namespace {

struct Scenario {
  const char* name;
  const char* model;
  const char* cluster;  // a file below specs/examples where it ends in .yaml
  std::int64_t batch;   // sequences; 0: the model's usual
  std::int64_t sequence;
  double tokens;  // of the whole job (samples)
};

constexpr Scenario kScenarios[] = {
    {"13b_on_32_h100", "llama2-13b", "4x8xH100", 0, 0, 2e12},
    {"70b_on_256_h100", "llama2-70b", "32x8xH100", 0, 0, 2e12},
    {"100b_on_64_h100", "gpt-100b", "8x8xH100", 0, 0, 300e9},
    {"10b_on_unlike_groups", "gpt-10b", "h100-ib-and-a100-roce.yaml", 0, 0, 300e9},
    {"1b_on_64_a100", "gpt-1.3b", "8x8xA100", 0, 0, 300e9},
    {"7b_finetune_on_8_h100", "llama2-7b", "1x8xH100", 64, 2048, 100e6},
    {"mixtral_on_64_h100", "mixtral-8x7b", "8x8xH100", 0, 0, 1e12},
    {"mamba_on_8_h100", "mamba-2.8b", "1x8xH100", 0, 0, 300e9},
    {"resnet50_on_4_a100", "resnet50", "1x4xA100", 0, 0, 115e6},
    {"bert_on_4_nodes", "bert-large", "4x8xA100", 0, 0, 137e9},
};

SearchRequest request_of(const Scenario& scenario) {
  SearchRequest request;
  request.model = spec::load_model(scenario.model);
  const std::string cluster = scenario.cluster;
  const bool file = cluster.ends_with(".yaml");
  request.cluster = spec::load_cluster(file ? LOCKSTEP_SOURCE_DIR "/specs/examples/" + cluster : cluster);
  request.profile = cost::profile_for(request.cluster);
  request.global_sequences = scenario.batch;
  request.sequence_length = scenario.sequence;
  request.tokens = scenario.tokens;
  return request;
}

// Searched once; the tests look at it from several sides.
const Explained& explained(const std::string& name) {
  static std::map<std::string, Explained> answers;
  const auto found = answers.find(name);
  if (found != answers.end()) return found->second;
  const Scenario& asked = *std::find_if(std::begin(kScenarios), std::end(kScenarios),
                                        [&](const Scenario& scenario) { return scenario.name == name; });
  return answers.emplace(name, explain(request_of(asked))).first->second;
}

class Golden : public ::testing::TestWithParam<const char*> {
 protected:
  const Explained& explained_ = explained(GetParam());
  const plan::Candidate& best_ = explained_.plan.best;
};

TEST_P(Golden, tensor_parallelism_stays_inside_a_node) {
  for (const spec::NodeGroup& group : explained_.plan.cluster.groups) {
    EXPECT_LE(best_.layout.tp, group.devices_per_node);
    EXPECT_EQ(group.devices_per_node % best_.layout.tp, 0);
  }
}

TEST_P(Golden, memory_is_under_capacity_on_every_stage) {
  EXPECT_LT(best_.memory.total(), best_.memory.capacity);
  EXPECT_LE(best_.out_of_memory_probability.value(), explained_.request.constraints.largest_out_of_memory_probability);
  if (explained_.plan.model.is_image_model()) return;  // their stages are not priced apart
  ASSERT_EQ(static_cast<std::int64_t>(explained_.stages.size()), best_.layout.pp);
  double most = 0;
  for (const cost::StagePrice& stage : explained_.stages) {
    EXPECT_LT(stage.memory.total(), stage.memory.capacity);
    most = std::max(most, stage.memory.total() / stage.memory.capacity);
  }
  EXPECT_NEAR(most, best_.memory.total() / best_.memory.capacity, 1e-6) << "the plan shows the stage that is fullest";
}

TEST_P(Golden, the_layout_keeps_to_the_rules_and_uses_the_cluster) {
  EXPECT_EQ(plan::find_layout_problem(best_.layout, &explained_.plan.model), std::nullopt);
  EXPECT_EQ(best_.layout.world(), explained_.plan.cluster.devices());
  EXPECT_EQ(best_.batch.micro * best_.batch.accumulation * best_.layout.data_ranks(), best_.batch.global_sequences);
}

TEST_P(Golden, the_step_is_the_sum_of_its_parts_and_lies_in_its_interval) {
  const plan::Interval& step = best_.prediction->step_seconds;
  EXPECT_NEAR(best_.breakdown->total(), step.expected, 1e-9 * step.expected);
  EXPECT_LT(step.low, step.expected);
  EXPECT_LT(step.expected, step.high);
}

TEST_P(Golden, losers_are_of_other_kinds_and_say_why) {
  ASSERT_EQ(explained_.plan.alternatives.size(), 3u);
  for (const plan::Candidate& loser : explained_.plan.alternatives) {
    EXPECT_NE(loser.layout, best_.layout);
    EXPECT_FALSE(loser.why_not.empty());
    // A loser may be a little faster where it risks its memory or needs a mechanism that does not pay.
    EXPECT_GE(loser.prediction->step_seconds.expected, best_.prediction->step_seconds.expected * 0.9);
  }
}

TEST_P(Golden, the_plan_survives_its_file) {
  const nlohmann::json json = to_json(explained_);
  EXPECT_EQ(plan::to_json(plan::read_plan(json, "golden")), plan::to_json(explained_.plan));
}

TEST_P(Golden, the_text_is_the_golden_one) {
  const std::string text = report::to_text(explained_, {.style = {.width = 110, .colour = false, .unicode = true}});
  EXPECT_TRUE(
      testing::matches_golden(text, std::string(LOCKSTEP_SOURCE_DIR "/tests/planner/golden/") + GetParam() + ".txt"));
}

std::vector<const char*> names() {
  std::vector<const char*> all;
  for (const Scenario& scenario : kScenarios) all.push_back(scenario.name);
  return all;
}
INSTANTIATE_TEST_SUITE_P(Plans, Golden, ::testing::ValuesIn(names()),
                         [](const auto& each) { return std::string(each.param); });

bool any_reason_has(const Explained& answer, const std::string& part) {
  const auto& reasons = answer.plan.best.reasons;
  return std::any_of(reasons.begin(), reasons.end(),
                     [&](const std::string& reason) { return reason.find(part) != std::string::npos; });
}

TEST(GoldenReasons, a_1b_model_is_said_to_fit_one_gpu) {
  EXPECT_TRUE(any_reason_has(explained("1b_on_64_a100"), "fits one GPU"));
}

TEST(GoldenReasons, a_13b_model_is_said_not_to_fit_one_gpu) {
  EXPECT_TRUE(any_reason_has(explained("13b_on_32_h100"), "one GPU cannot hold the model"));
}

TEST(GoldenReasons, small_models_are_not_split) {
  for (const char* name : {"1b_on_64_a100", "resnet50_on_4_a100", "bert_on_4_nodes", "mamba_on_8_h100"}) {
    const plan::Layout layout = explained(name).plan.best.layout;
    EXPECT_EQ(layout.tp, 1) << name;
    EXPECT_EQ(layout.pp, 1) << name;
  }
}

TEST(GoldenText, numbers_may_move_a_little_and_words_not_at_all) {
  EXPECT_EQ(testing::first_difference("step 21.20 s, MFU 51.4%", "step 21.25 s, MFU 51.5%"), "");
  EXPECT_NE(testing::first_difference("step 21.2 s", "step 23.2 s"), "");
  EXPECT_NE(testing::first_difference("tp=2", "tp=4"), "");
  EXPECT_NE(testing::first_difference("compute 5 s", "bubble 5 s"), "");
  EXPECT_NE(testing::first_difference("a\nb", "a"), "");
}

}  // namespace
}  // namespace lockstep::planner
