// Who can run a layout, what its profile is evidence for, and what choosing the best of many predictions costs.
#include <gtest/gtest.h>

#include <algorithm>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/planner/capabilities.h"
#include "lockstep/planner/explain/explain.h"
#include "lockstep/planner/selection.h"
#include "lockstep/planner/strategies.h"
#include "tests/planner/small_requests.h"

namespace lockstep::planner {
namespace {

SearchRequest request_for(const std::string& stack, const std::string& model = "llama2-13b",
                          const std::string& cluster = "4x8xH100") {
  SearchRequest request = testing::request_of(model, cluster);
  request.framework = find_capabilities(stack);
  return complete(request);
}

bool runs(const std::string& stack, const std::string& layout, const std::string& model = "llama2-13b") {
  return !find_capabilities(stack)->find_problem(plan::parse_layout(layout), spec::load_model(model));
}

TEST(Capabilities, say_what_each_framework_offers) {
  EXPECT_TRUE(runs("fsdp", "shard=32,zero=3"));
  EXPECT_TRUE(runs("fsdp", "dp=4,shard=8,zero=3"));
  EXPECT_FALSE(runs("fsdp", "shard=16,zero=3,tp=2"));
  EXPECT_FALSE(runs("fsdp", "pp=2,shard=16,zero=1"));
  EXPECT_FALSE(runs("ddp", "pp=4,dp=8"));
  EXPECT_TRUE(runs("megatron", "pp=2,shard=8,zero=1,tp=2,sequence_parallel=true"));
  EXPECT_FALSE(runs("megatron", "shard=32,zero=3"));
  EXPECT_FALSE(runs("megatron", "pp=4,dp=8,schedule=zero_bubble"));
  EXPECT_TRUE(runs("torchtitan", "pp=4,shard=8,zero=3,schedule=zero_bubble"));
  EXPECT_FALSE(runs("deepspeed", "dp=4,shard=8,zero=3"));
  EXPECT_FALSE(runs("nemo", "dp=8", "resnet50"));
  EXPECT_TRUE(runs("ddp", "dp=8", "resnet50"));
  EXPECT_THROW(find_capabilities("megatronn"), UserError);
}

TEST(Capabilities, a_search_for_a_stack_gives_what_it_runs) {
  for (const Capabilities& each : all_capabilities()) {
    for (const char* model : {"llama2-7b", "mixtral-8x7b"}) {
      const SearchRequest request = request_for(std::string(each.name), model, "2x8xH100");
      const SearchResult result = search(request);
      for (const Ranked& ranked : result.best) {
        EXPECT_EQ(each.find_problem(ranked.layout, request.model), std::nullopt)
            << each.name << " " << plan::to_string(ranked.layout);
      }
      for (const auto& [family, ranked] : result.best_of_family) {
        EXPECT_EQ(each.find_problem(ranked.layout, request.model), std::nullopt) << each.name << " " << family;
      }
    }
  }
  EXPECT_EQ(search(request_for("fsdp")).best.front().layout.tp, 1);
}

TEST(Capabilities, a_layout_that_the_stack_cannot_run_is_refused_by_name) {
  SearchRequest request = request_for("fsdp");
  fix_layout(request, plan::parse_layout("dp=4,shard=4,zero=1,tp=2"), 1);
  try {
    search(request);
    FAIL() << "searched";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("PyTorch FSDP has no tensor parallelism"), std::string::npos)
        << error.what();
  }
}

TEST(Capabilities, profiles_are_evidence_of_their_own_framework) {
  const auto framework = [](const char* profile) { return framework_of(*cost::find_profile(profile).fitted); };
  EXPECT_EQ(framework("H100-llm-foundry"), find_capabilities("fsdp"));
  EXPECT_EQ(framework("A100-megatron-deepspeed-bloom"), find_capabilities("megatron"));
  EXPECT_EQ(framework("H100"), nullptr);
  EXPECT_EQ(evidence_for(*find_capabilities("fsdp"), "H100"), "H100-llm-foundry");
  EXPECT_EQ(evidence_for(*find_capabilities("deepspeed"), "H100"), "");
}

TEST(Capabilities, a_plan_with_a_pipeline_is_not_advised_a_profile_of_fsdp) {
  const Explained explained = explain(request_for(""), {.what_ifs = false});
  ASSERT_GT(explained.plan.best.layout.pp * explained.plan.best.layout.tp, 1);
  for (const std::string& reason : explained.plan.best.reasons) {
    if (reason.find("name your stack") == std::string::npos) continue;
    EXPECT_EQ(reason.find("llm-foundry"), std::string::npos) << reason;
    EXPECT_EQ(reason.find("deepseek"), std::string::npos) << reason;
  }
}

TEST(Capabilities, a_plan_of_an_image_network_is_not_advised_profiles_of_language_models) {
  SearchRequest request = testing::request_of("resnet50", "4x8xH100");
  for (const std::string& reason : explain(complete(request), {.what_ifs = false}).plan.best.reasons) {
    EXPECT_EQ(reason.find("name your stack"), std::string::npos) << reason;
  }
}

TEST(Capabilities, a_plan_says_why_it_leaves_memory_free) {
  const Explained explained = explain(request_for(""), {.what_ifs = false});
  const auto& reasons = explained.plan.best.reasons;
  EXPECT_TRUE(std::any_of(reasons.begin(), reasons.end(), [](const std::string& reason) {
    return reason.find("stay free: memory is known to") != std::string::npos;
  }));
}

TEST(Strategies, answer_whether_fsdp_tensor_pipeline_or_hybrid) {
  const Explained explained = explain(request_for(""));
  std::map<std::string, const Strategy*> by_name;
  int planned = 0;
  for (const Strategy& strategy : explained.strategies) {
    by_name[strategy.name] = &strategy;
    planned += strategy.is_planned ? 1 : 0;
    if (!strategy.best) continue;
    EXPECT_FALSE(strategy.runs_on.empty()) << strategy.name;
    EXPECT_LT(strategy.gain, 0.03) << strategy.name << " is faster than the plan by more than the search's preferences";
  }
  for (const char* name : {"data parallel", "FSDP", "tensor parallel", "pipeline", "hybrid"}) {
    EXPECT_TRUE(by_name.contains(name)) << name;
  }
  EXPECT_EQ(planned, 1);
  EXPECT_FALSE(by_name.at("data parallel")->best) << "13B in whole replicas";
  ASSERT_TRUE(by_name.at("FSDP")->best);
  const auto& names = by_name.at("FSDP")->runs_on;
  EXPECT_NE(std::find(names.begin(), names.end(), "PyTorch FSDP"), names.end());
}

TEST(Selection, the_best_of_more_predictions_is_further_off) {
  EXPECT_EQ(expected_largest(1), 0);
  EXPECT_NEAR(expected_largest(2), 0.56, 0.05);
  EXPECT_NEAR(expected_largest(20), 1.87, 0.03);
  SearchRequest one = testing::request_of("gpt2-1.5b", "1x1xH100"), many = testing::request_of("gpt2-1.5b", "8x8xH100");
  EXPECT_EQ(selection_bias(complete(one)), 0);
  EXPECT_GT(selection_bias(complete(many)), selection_bias(complete(testing::request_of("gpt2-1.5b", "1x8xH100"))));
}

TEST(Selection, a_layout_that_was_given_is_priced_as_it_is) {
  SearchRequest request = complete(testing::request_of("llama2-13b", "4x8xH100"));
  const SearchResult found = search(request);
  const cost::Pricer pricer(request.model, request.cluster, request.profile, pricer_options(request));
  const plan::Candidate chosen = to_candidate(request, pricer, found.best.front());
  fix_layout(request, found.best.front().layout, found.best.front().batch.micro);
  EXPECT_EQ(splits_to_choose_from(request), 1);
  const plan::Candidate given = to_candidate(request, pricer, found.best.front());
  EXPECT_EQ(given.prediction->step_seconds.expected, found.best.front().price.step_seconds());
  EXPECT_GT(chosen.prediction->step_seconds.expected, given.prediction->step_seconds.expected);
  EXPECT_NEAR(chosen.breakdown->total(), chosen.prediction->step_seconds.expected, 1e-9);
}

TEST(Selection, a_profile_known_better_is_corrected_less) {
  SearchRequest request = complete(testing::request_of("llama2-13b", "4x8xH100"));
  const double wide = selection_bias(request);
  request.profile.fitted->residuals.time /= 4;
  EXPECT_NEAR(selection_bias(request), wide / 4, 1e-12);
}

TEST(DefaultBatch, is_the_same_from_a_preset_and_from_its_config) {
  SearchRequest preset = complete(testing::request_of("llama2-13b", "4x8xH100"));
  SearchRequest config = testing::request_of("llama2-13b", "4x8xH100");
  config.model.global_batch_tokens = 0;  // a config.json has none
  config.model.name = "config";
  config.model.vocab = 32001;
  EXPECT_EQ(complete(config).global_sequences, preset.global_sequences);
}

}  // namespace
}  // namespace lockstep::planner
