#include "lockstep/planner/explain/explain.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "lockstep/base/units.h"
#include "lockstep/planner/compare.h"
#include "lockstep/planner/explain/reasons.h"
#include "lockstep/planner/explain/terms.h"
#include "lockstep/planner/resize.h"
#include "lockstep/planner/search/request.h"
#include "tests/base/expect_user_error.h"
#include "tests/planner/small_requests.h"

namespace lockstep::planner {
namespace {

using lockstep::testing::user_error;
using testing::request_of;

bool has_change(const Explained& explained, const std::string& part) {
  return std::any_of(explained.what_ifs.begin(), explained.what_ifs.end(),
                     [&](const WhatIf& change) { return change.change.find(part) != std::string::npos; });
}

TEST(Explain, every_choice_has_a_reason_with_a_figure) {
  const Explained explained = explain(request_of("llama2-7b", "2x8xH100", 256));
  const auto& reasons = explained.plan.best.reasons;
  for (const char* subject :
       {"one GPU", "tensor parallelism", "pipeline", "zero=", "recompute", "micro-batch", "90% interval"}) {
    EXPECT_TRUE(std::any_of(reasons.begin(), reasons.end(),
                            [&](const std::string& reason) { return reason.find(subject) != std::string::npos; }) ||
                (std::string(subject) == "tensor parallelism" && explained.plan.best.layout.tp > 1) ||
                (std::string(subject) == "pipeline" && explained.plan.best.layout.pp > 1))
        << subject;
  }
  for (const std::string& reason : reasons) EXPECT_NE(reason.find_first_of("0123456789"), std::string::npos) << reason;
}

TEST(Explain, what_ifs_are_only_those_that_mean_something) {
  const Explained one_node = explain(request_of("llama2-7b", "1x8xA100", 64));
  EXPECT_FALSE(has_change(one_node, "NIC"));
  EXPECT_FALSE(has_change(one_node, "RoCE"));
  EXPECT_FALSE(has_change(one_node, "fp8")) << "an A100 has none";
  const Explained two_nodes = explain(request_of("llama2-7b", "2x8xH100", 64));
  EXPECT_TRUE(has_change(two_nodes, "4 NICs a node instead of 8"));
  EXPECT_TRUE(has_change(two_nodes, "RoCE"));
  EXPECT_TRUE(has_change(two_nodes, "fp8"));
  EXPECT_TRUE(has_change(two_nodes, "16 more GPUs"));
  EXPECT_TRUE(std::is_sorted(two_nodes.what_ifs.begin(), two_nodes.what_ifs.end(),
                             [](const WhatIf& a, const WhatIf& b) { return a.gain > b.gain; }));
}

// The words of `lockstep train`, which refuses the same.
TEST(Explain, fp8_on_one_gpu_is_refused_where_train_refuses_it) {
  const std::string words = "precision fp8 is trained by the fused CUDA step alone: ";
  const auto refusal = [](SearchRequest request) {
    request.precisions = {spec::Precision::kBf16, spec::Precision::kFp8};
    return user_error([&] { explain(request, {.what_ifs = false}); });
  };
  EXPECT_HAS(refusal(request_of("bert-large", "1x1xH100", 64)), words + "the model is not a dense Llama; use bf16");
  SearchRequest odd = request_of("llama3.2-1b", "1x1xH100", 64);
  odd.model.vocab = 32016;  // 16 divides it, 64 does not
  EXPECT_HAS(refusal(odd), words + "a size is not a multiple of 64");
  SearchRequest plain = request_of("llama3.2-1b", "1x1xH100", 64);
  plain.optimizer = spec::OptimizerKind::kSgd;
  EXPECT_HAS(refusal(plain), words + "the optimizer is not AdamW");
  plain.optimizer = spec::OptimizerKind::kAdamW;
  plain.precisions = {spec::Precision::kFp8};
  EXPECT_EQ(explain(plain, {.what_ifs = false}).plan.best.layout.precision, spec::Precision::kFp8);
  SearchRequest other = request_of("bert-large", "1x1xH100", 64);
  other.precisions = {spec::Precision::kFp8};
  other.profile = cost::find_profile("H100-nemo-25.05");
  EXPECT_NO_THROW(explain(other, {.what_ifs = false})) << "another framework's own business";
}

TEST(Explain, narrow_optimizer_states_count_on_one_gpu_and_are_refused_where_train_refuses_them) {
  const auto best = [](SearchRequest request, spec::Precision states) {
    request.state_precision = states;
    return explain(request, {.what_ifs = false}).plan.best;
  };
  SearchRequest one = request_of("llama3.2-1b", "1x1xH200", 64);
  one.profile = cost::find_profile("H200-lockstep");
  one.constraints.fixed["micro"] = 4;
  const plan::Candidate wide = best(one, spec::Precision::kFp32), narrow = best(one, spec::Precision::kBf16);
  EXPECT_NEAR(narrow.memory.optimizer, wide.memory.optimizer / 2, 1);
  EXPECT_LT(narrow.breakdown->optimizer, wide.breakdown->optimizer);
  const SearchRequest gpt = request_of("gpt2-124m", "1x1xH100", 64);
  EXPECT_HAS(user_error([&] { best(gpt, spec::Precision::kBf16); }),
             "optimizer.state_precision bf16 is the fused CUDA step's alone: the model is not a dense Llama");
  const SearchRequest two = request_of("llama3.2-1b", "1x2xH100", 64);
  const plan::Candidate split = best(two, spec::Precision::kBf16);
  EXPECT_EQ(split.memory.optimizer, best(two, spec::Precision::kFp32).memory.optimizer);
  SearchRequest asked = two;
  asked.state_precision = spec::Precision::kBf16;
  const auto problem = find_untrained(asked, split.layout, split.batch);
  ASSERT_TRUE(problem);
  EXPECT_HAS(problem->text, "the layout has 2 ranks");
  asked.is_job = true;
  EXPECT_HAS(user_error([&] { explain(asked, {.what_ifs = false}); }), "the layout has 2 ranks");
}

TEST(Explain, changes_for_the_better_do_not_lose_and_for_the_worse_do_not_gain) {
  const Explained explained = explain(request_of("llama2-13b", "2x8xH100", 128));
  for (const WhatIf& change : explained.what_ifs) {
    if (change.change.find("twice the memory") == 0 || change.change.find("more GPUs") != std::string::npos) {
      EXPECT_GE(change.gain, 0) << change.change;
    }
    if (change.change.find("4 NICs") == 0 || change.change.find("RoCE") == 0) {
      EXPECT_LE(change.gain, 0) << change.change;
    }
  }
}

TEST(Explain, what_ifs_can_be_left_out) {
  EXPECT_TRUE(explain(request_of("llama2-7b", "1x8xH100", 64), {.what_ifs = false}).what_ifs.empty());
}

TEST(Explain, the_bottleneck_does_not_depend_on_showing_the_what_ifs) {
  for (const char* cluster : {"1x8xH100", "1x8xA100", "4x8xH100"}) {
    const SearchRequest request = request_of("llama2-13b", cluster, 256);
    EXPECT_EQ(explain(request).bottleneck, explain(request, {.what_ifs = false}).bottleneck) << cluster;
  }
}

TEST(Explain, traffic_is_named_for_the_links_of_the_group_that_has_most_of_it) {
  plan::TimeBreakdown time;
  time.compute = 1;
  time.dp_comm = 1;
  const spec::Cluster cluster = spec::load_cluster("4x8xH100");
  const auto name = [&](const char* layout) { return largest_exposed(time, plan::parse_layout(layout), cluster).name; };
  EXPECT_EQ(name("dp=4,shard=8"), "weight and gradient traffic over NVLink");
  EXPECT_EQ(name("dp=2,shard=16"), "weight and gradient traffic over InfiniBand");
  EXPECT_EQ(name("shard=8,dp=4,zero=1"), "gradient traffic over InfiniBand");
  EXPECT_EQ(name("dp=8,pp=4"), "gradient traffic over NVLink");
}

TEST(Explain, the_interval_names_tighter_profiles_and_a_borrowed_one) {
  const auto last_reasons = [](const SearchRequest& request) {
    std::string text;
    for (const std::string& reason : explain(request, {.what_ifs = false}).plan.best.reasons) text += reason + "\n";
    return text.substr(text.find("90% interval"));
  };
  SearchRequest request = request_of("llama2-7b", "1x8xH100", 64);
  EXPECT_HAS(last_reasons(request), "name your stack for a tighter interval: --profile H100-");
  request.profile = cost::find_profile("H100-nemo-25.02");
  EXPECT_EQ(last_reasons(request).find("name your stack"), std::string::npos);
  request.profile = cost::find_profile("A100");
  EXPECT_HAS(last_reasons(request), "borrowed from A100 for H100");
}

TEST(Explain, losers_differ_in_kind) {
  const SearchRequest request = complete(request_of("llama2-13b", "4x8xH100", 256));
  const SearchResult result = search(request);
  const auto losers = best_losers(request, result, 3);
  ASSERT_EQ(losers.size(), 3u);
  std::set<std::string> axes;
  for (const Loser& loser : losers) axes.insert(loser.family.substr(0, loser.family.find('=')));
  EXPECT_EQ(axes.size(), 3u);
}

TEST(Explain, a_given_layout_is_priced_as_given_and_set_beside_the_planners_own) {
  SearchRequest request = request_of("llama2-7b", "1x8xH100", 64);
  const plan::Layout layout = plan::parse_layout("tp=8,sequence_parallel=true,recompute=full,precision=bf16");
  request.constraints = constraints_of(layout, 1);
  request.precisions = {layout.precision};
  const Explained explained = explain(request);
  EXPECT_EQ(explained.plan.best.layout, layout);
  EXPECT_EQ(explained.plan.best.batch.micro, 1);
  ASSERT_EQ(explained.plan.alternatives.size(), 1u);
  EXPECT_HAS(explained.plan.alternatives[0].why_not, "planner's own choice");
  EXPECT_HAS(explained.plan.alternatives[0].why_not, "faster");
  EXPECT_EQ(explained.plan.alternatives[0].why_not.find("too little to pay for"), std::string::npos);
}

TEST(Explain, a_given_layout_that_does_not_fit_names_the_term_the_excess_and_a_layout_that_does) {
  SearchRequest request = request_of("llama2-13b", "4x8xH100");
  request.constraints = constraints_of(plan::parse_layout("dp=32"));
  const std::string message = user_error([&] { explain(request); }, ExitCode::kAnswerIsNo);
  EXPECT_HAS(message, "dp=32");
  EXPECT_HAS(message, "optimizer state");
  EXPECT_HAS(message, "too much");
  EXPECT_HAS(message, "nearest that fits");
  EXPECT_HAS(message, "(another ZeRO stage): ");
}

TEST(Explain, the_nearest_layout_changes_as_little_as_possible) {
  SearchRequest request = request_of("llama2-13b", "4x8xH100");
  request.constraints = constraints_of(plan::parse_layout("dp=4,shard=8"), 32);
  const std::string message = user_error([&] { explain(request); }, ExitCode::kAnswerIsNo);
  EXPECT_HAS(message, "activations");
  EXPECT_HAS(message, "(another micro-batch): dp=4,shard=8");
}

TEST(Explain, a_model_too_large_for_the_cluster_names_the_cluster_that_holds_it) {
  const std::string message = user_error([&] { explain(request_of("gpt3-175b", "1x8xA100")); }, ExitCode::kAnswerIsNo);
  EXPECT_HAS(message, "gpt3-175b does not fit 1x8xA100");
  EXPECT_HAS(message, "nodes of 8 x A100");
  EXPECT_HAS(message, "or devices with");
}

TEST(Explain, json_has_the_explanation_beside_the_plan) {
  const nlohmann::json json = to_json(explain(request_of("llama2-7b", "2x8xH100", 64)));
  EXPECT_EQ(json.at("schema"), "lockstep.plan/1");
  for (const char* key : {"bottleneck", "what_ifs", "passes", "stages", "pareto", "best", "alternatives", "search"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  EXPECT_EQ(json.at("passes").at(0).at("name"), "enumerate");
}

cost::Profile measured_profile() {
  cost::Profile profile;
  profile.provenance.ranks = 2;
  profile.matmuls = {{cost::MatmulKind::kForward, spec::Precision::kFp32, 64, 64, 64, 1e11, 0.01}};
  profile.memory_bytes_per_second = profile.optimizer_bytes_per_second = 1e10;
  profile.peak_flops = 2e11;
  profile.collectives = {{cost::CollectiveOp::kAllReduce, 2, 1 << 20, 1e-3, 0.01}};
  return profile;
}

TEST(Explain, a_measured_profile_prices_data_parallelism_on_this_machine) {
  SearchRequest request;
  request.model = spec::load_model("gpt2-124m");
  request.model.layers = 1;
  request.cluster = spec::load_cluster("1x2xcpu");
  request.profile = measured_profile();
  request.sequence_length = 64;
  request.global_sequences = 8;
  request.constraints.fixed["micro"] = 2;
  const Explained explained = explain(request);
  EXPECT_EQ(explained.plan.best.layout.dp, 2);
  EXPECT_EQ(explained.plan.best.batch.accumulation, 2);
  EXPECT_GT(explained.plan.best.prediction->tokens_per_second.expected, 0);
  EXPECT_TRUE(explained.what_ifs.empty());
  EXPECT_FALSE(explained.bottleneck.empty());
  request.constraints.fixed["micro"] = 3;
  EXPECT_HAS(user_error([&] { explain(request); }), "does not divide");
  EXPECT_HAS(compare({request}).options[0].problem, "measured on one machine");
}

TEST(Explain, a_measured_profile_prices_other_layouts_by_the_constants_of_its_tables) {
  SearchRequest request;
  request.model = spec::load_model("gpt2-124m");
  request.model.layers = 1;
  request.cluster = spec::load_cluster("1x2xcpu");
  request.profile = measured_profile();
  request.sequence_length = 64;
  request.global_sequences = 8;
  request.constraints.fixed["tp"] = 2;
  const Explained explained = explain(request);
  EXPECT_EQ(explained.plan.best.layout.tp, 2);
  EXPECT_GT(explained.plan.best.breakdown->tp_comm, 0);
  EXPECT_GT(explained.plan.best.prediction->tokens_per_second.expected, 0);
}

TEST(ExplainTerms, a_difference_names_what_the_other_has) {
  const plan::Layout a = plan::parse_layout("dp=4,tp=2,recompute=full");
  EXPECT_EQ(layout_difference(a, a), "");
  EXPECT_EQ(layout_difference(a, plan::parse_layout("dp=2,tp=4")), "dp=2,tp=4,recompute=none");
}

TEST(ExplainTerms, the_largest_loss_is_named_for_its_links) {
  const spec::Cluster cluster = spec::load_cluster("2x8xH100");
  plan::TimeBreakdown plan{.compute = 1.0, .tp_comm = 0.1}, other{.compute = 1.1, .tp_comm = 0.4};
  plan::Layout layout;
  layout.tp = 8;
  EXPECT_EQ(largest_loss(plan, other, layout, cluster).name, "tensor-parallel traffic over NVLink");
  layout.tp = 16;
  EXPECT_EQ(largest_loss(plan, other, layout, cluster).name, "tensor-parallel traffic over InfiniBand");
}

TEST(Resize, whole_nodes_or_less_than_one) {
  const spec::Cluster cluster = spec::load_cluster("4x8xH100");
  EXPECT_EQ(resized(cluster, 64), spec::load_cluster("8x8xH100"));
  EXPECT_EQ(resized(cluster, 2).groups[0], spec::load_cluster("1x2xH100").groups[0]);
  EXPECT_HAS(user_error([&] { resized(cluster, 12); }), "12 devices");
  EXPECT_HAS(user_error([&] { resized(testing::two_groups("H100", "A100", 1), 16); }), "node groups");
}

TEST(Resize, the_other_protocol_and_back_is_the_same_link) {
  const spec::Link link = spec::load_cluster("4x8xH100").groups[0].nic;
  const spec::Link other = with_other_protocol(link);
  EXPECT_EQ(other.kind, spec::LinkKind::kRoce);
  EXPECT_LT(other.bytes_per_second, link.bytes_per_second);
  EXPECT_NEAR(with_other_protocol(other).bytes_per_second, link.bytes_per_second, 1);
}

TEST(Compare, names_the_cheapest_and_the_fastest) {
  const Comparison comparison =
      compare({request_of("llama2-7b", "1x8xA100", 64), request_of("llama2-7b", "4x8xA100", 64)});
  EXPECT_FALSE(comparison.tokens_given);
  EXPECT_EQ(comparison.tokens, 1e9);
  ASSERT_EQ(comparison.options.size(), 2u);
  EXPECT_LT(comparison.options[0].best->cost->usd, comparison.options[1].best->cost->usd);
  EXPECT_GT(comparison.options[0].best->cost->days, comparison.options[1].best->cost->days);
  EXPECT_HAS(comparison.verdict, "cheapest: 1x8xA100");
  EXPECT_HAS(comparison.verdict, "fastest: 4x8xA100");
}

TEST(Compare, a_deadline_decides_who_may_win) {
  std::vector<SearchRequest> requests{request_of("llama2-7b", "1x8xA100", 64), request_of("llama2-7b", "4x8xA100", 64)};
  const Comparison free = compare(requests);
  const double between = (free.options[0].best->cost->days + free.options[1].best->cost->days) / 2 * 86400;
  for (SearchRequest& request : requests) request.deadline_seconds = between;
  const Comparison comparison = compare(requests);
  EXPECT_EQ(comparison.options[0].meets_deadline, false);
  EXPECT_EQ(comparison.options[1].meets_deadline, true);
  EXPECT_HAS(comparison.verdict, "4x8xA100");
  for (SearchRequest& request : requests) request.deadline_seconds = 1;
  EXPECT_HAS(compare(requests).verdict, "none ends within");
}

TEST(Compare, a_cluster_that_is_too_small_is_an_answer) {
  const Comparison comparison =
      compare({request_of("llama2-70b", "1x1xA10G", 64), request_of("llama2-70b", "8x8xH100", 64)});
  EXPECT_FALSE(comparison.options[0].best);
  EXPECT_HAS(comparison.options[0].problem, "does not fit");
  EXPECT_HAS(comparison.verdict, "8x8xH100");
  EXPECT_EQ(to_json(comparison).at("options").at(0).at("fits"), false);
}

TEST(Compare, one_gpu_that_has_no_fp8_for_the_model_is_an_answer) {
  std::vector<SearchRequest> requests{request_of("bert-large", "1x1xH100", 64),
                                      request_of("bert-large", "1x8xH100", 64)};
  for (SearchRequest& request : requests) request.precisions = {spec::Precision::kFp8};
  const Comparison comparison = compare(requests);
  EXPECT_HAS(comparison.options[0].problem, "precision fp8 is trained by the fused CUDA step alone");
  EXPECT_TRUE(comparison.options[1].best);
}

TEST(Scale, efficiency_begins_at_one_and_marks_where_it_is_lost) {
  const Scaling scaling = scale(request_of("gpt2-124m", "1x8xA100", 512), {8, 16, 32, 64, 128, 256, 512}, false);
  ASSERT_EQ(scaling.points.size(), 7u);
  EXPECT_EQ(scaling.points[0].efficiency, 1.0);
  for (const ScalingPoint& point : scaling.points) EXPECT_EQ(point.global_sequences, 512);
  ASSERT_TRUE(scaling.falls_below);
  for (const ScalingPoint& point : scaling.points) {
    if (point.devices < *scaling.falls_below) {
      EXPECT_GE(point.efficiency, kGoodEfficiency);
    }
    if (point.devices == *scaling.falls_below) {
      EXPECT_LT(point.efficiency, kGoodEfficiency);
    }
  }
}

TEST(Scale, weak_scaling_grows_the_batch_and_holds_longer) {
  const SearchRequest request = request_of("gpt2-124m", "1x8xA100", 512);
  const Scaling weak = scale(request, {8, 64}, true), strong = scale(request, {8, 64}, false);
  EXPECT_EQ(weak.points[1].global_sequences, 8 * 512);
  EXPECT_GT(weak.points[1].efficiency, strong.points[1].efficiency);
}

TEST(Scale, sizes_that_are_too_small_are_points_without_a_plan) {
  const Scaling scaling = scale(request_of("gpt3-175b", "1x8xA10G", 64), {8, 512}, false);
  EXPECT_FALSE(scaling.points[0].best);
  EXPECT_EQ(scaling.points[1].efficiency, 1.0);
}

TEST(Scale, a_size_that_fits_only_with_offload_is_no_measure) {
  const Scaling scaling = scale(request_of("llama2-70b", "1x8xH100", 64), {8, 64, 128}, false);
  ASSERT_NE(scaling.points[0].best->layout.offload, plan::Offload::kNone);
  EXPECT_LT(scaling.points[0].efficiency, 1.0);
  EXPECT_EQ(scaling.points[1].efficiency, 1.0);
  EXPECT_NE(scaling.falls_below, 8);
}

}  // namespace
}  // namespace lockstep::planner
