#include "lockstep/planner/search/search.h"
#include "lockstep/planner/search/objective.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include <fmt/format.h>

#include "lockstep/base/text.h"
#include "lockstep/planner/explain/reasons.h"
#include "lockstep/planner/selection.h"
#include "tests/base/expect_user_error.h"
#include "tests/planner/naive_space.h"
#include "tests/planner/small_requests.h"

namespace lockstep::planner {
namespace {

using lockstep::testing::user_error;
using testing::request_of;

std::string text_of(const Ranked& ranked) {
  return fmt::format("{} micro={} accumulation={} step={} memory={} score={}", plan::to_string(ranked.layout),
                     ranked.batch.micro, ranked.batch.accumulation, ranked.price.step_seconds(),
                     ranked.price.memory.total(), ranked.score);
}

std::string text_of(const std::vector<Ranked>& list) {
  std::string text;
  for (const Ranked& ranked : list) text += text_of(ranked) + "\n";
  return text;
}

bool is_feasible(const cost::Price& price, const SearchRequest& request) {
  return price.fits() && price.out_of_memory_probability() <= request.constraints.largest_out_of_memory_probability;
}

void expect_sound(const Ranked& ranked, const SearchRequest& asked) {
  const SearchRequest request = complete(asked);
  EXPECT_EQ(plan::find_layout_problem(ranked.layout, &request.model), std::nullopt) << text_of(ranked);
  EXPECT_LE(ranked.layout.world(), request.cluster.devices());
  const plan::BatchPlan& batch = ranked.batch;
  EXPECT_EQ(batch.micro * batch.accumulation * ranked.layout.data_ranks(), request.global_sequences);
  EXPECT_EQ(batch.global_sequences, request.global_sequences);
  EXPECT_EQ(batch.sequence_length, request.sequence_length);
  EXPECT_GT(ranked.price.step_seconds(), 0);
  EXPECT_TRUE(std::isfinite(ranked.price.step_seconds())) << text_of(ranked);
}

void expect_answer(const Ranked& ranked, const SearchRequest& request) {
  expect_sound(ranked, request);
  EXPECT_TRUE(is_feasible(ranked.price, request)) << text_of(ranked);
  EXPECT_LE(ranked.price.memory.total(), ranked.price.memory.capacity);
}

class SearchOf : public ::testing::TestWithParam<testing::SmallCase> {};

TEST_P(SearchOf, finds_what_brute_force_over_the_naive_space_finds) {
  const SearchRequest request = complete(testing::small_request(GetParam()));
  const cost::Pricer pricer(request.model, request.cluster, request.profile,
                            {.sequence_length = request.sequence_length, .optimizer = request.optimizer});
  const std::int64_t node = request.cluster.groups.front().devices_per_node;
  double best = 1e300;
  double fastest_without_risk = 1e300;
  std::int64_t candidates = 0, feasible = 0;
  testing::visit_naively(request, [&](const plan::Layout& layout, const plan::BatchPlan& batch) {
    const cost::Price price = pricer.price(layout, batch);
    ++candidates;
    if (!is_feasible(price, request)) return;
    ++feasible;
    best = std::min(best, considered_seconds(layout, price, node));
    if (price.out_of_memory_probability() > 0.001) return;
    fastest_without_risk = std::min(fastest_without_risk, price.step_seconds());
  });
  const SearchResult result = search(request);
  EXPECT_GT(feasible, 0);
  EXPECT_LT(feasible, candidates) << "a case that prunes nothing proves nothing";
  EXPECT_EQ(result.summary.candidates, candidates);
  EXPECT_EQ(result.summary.feasible, feasible);
  ASSERT_FALSE(result.best.empty());
  const Ranked& found = result.best.front();
  EXPECT_EQ(considered_seconds(found.layout, found.price, node), best);
  EXPECT_LE(found.price.step_seconds(), 1.02 * fastest_without_risk);
}

TEST_P(SearchOf, gives_the_same_answer_without_the_passes_that_save_time) {
  SearchRequest request = testing::small_request(GetParam());
  const SearchResult pruned = search(request);
  request.switched_off = {"floor", "outgrow"};
  const SearchResult full = search(request);
  EXPECT_EQ(text_of(pruned.best), text_of(full.best));
  EXPECT_EQ(text_of(pruned.pareto), text_of(full.pareto));
  EXPECT_EQ(pruned.summary.candidates, full.summary.candidates);
  EXPECT_EQ(pruned.summary.feasible, full.summary.feasible);
  for (const auto& [family, ranked] : full.best_of_family) {
    ASSERT_TRUE(pruned.best_of_family.contains(family)) << family;
    if (is_feasible(ranked.price, request)) {
      EXPECT_EQ(text_of(pruned.best_of_family.at(family)), text_of(ranked)) << family;
    }
  }
  const auto priced = [](const SearchResult& result) {
    return std::find_if(result.passes.begin(), result.passes.end(), [](const auto& p) { return p.name == "price"; })
        ->in;
  };
  EXPECT_EQ(priced(full), full.summary.candidates);
  EXPECT_LE(priced(pruned), priced(full));
}

TEST_P(SearchOf, does_not_depend_on_the_number_of_threads) {
  SearchRequest request = testing::small_request(GetParam());
  request.threads = 1;
  const SearchResult one = search(request);
  for (const int threads : {2, 5}) {
    request.threads = threads;
    const SearchResult many = search(request);
    EXPECT_EQ(text_of(one.best), text_of(many.best));
    EXPECT_EQ(text_of(one.pareto), text_of(many.pareto));
    EXPECT_EQ(text_of(one.nearest), text_of(many.nearest));
    ASSERT_EQ(one.best_of_family.size(), many.best_of_family.size());
    for (const auto& [family, ranked] : one.best_of_family) {
      EXPECT_EQ(text_of(ranked), text_of(many.best_of_family.at(family))) << family;
    }
    EXPECT_EQ(one.summary.feasible, many.summary.feasible);
  }
}

TEST_P(SearchOf, ranks_only_answers_and_in_order) {
  const SearchRequest request = testing::small_request(GetParam());
  const SearchResult result = search(request);
  ASSERT_FALSE(result.best.empty());
  EXPECT_TRUE(result.nearest.empty());
  EXPECT_LE(result.best.size(), request.keep);
  std::set<std::string> distinct;
  for (std::size_t i = 0; i < result.best.size(); ++i) {
    expect_answer(result.best[i], request);
    distinct.insert(text_of(result.best[i]));
    if (i > 0) {
      EXPECT_GE(result.best[i - 1].score, result.best[i].score);
    }
  }
  EXPECT_EQ(distinct.size(), result.best.size());
  for (const auto& [family, ranked] : result.best_of_family) expect_sound(ranked, request);
}

TEST_P(SearchOf, the_front_has_no_one_that_another_beats_and_begins_with_the_fastest) {
  const SearchRequest request = testing::small_request(GetParam());
  const SearchResult result = search(request);
  ASSERT_FALSE(result.pareto.empty());
  EXPECT_LE(result.pareto.front().price.step_seconds(), result.best.front().price.step_seconds());
  for (const Ranked& a : result.pareto) {
    expect_answer(a, request);
    for (const Ranked& b : result.pareto) {
      const bool beats =
          b.price.step_seconds() < a.price.step_seconds() && b.price.memory.total() < a.price.memory.total();
      EXPECT_FALSE(beats) << text_of(b) << " beats " << text_of(a);
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Small, SearchOf, ::testing::ValuesIn(testing::kSmallCases),
                         [](const auto& each) { return std::string(each.param.name); });

TEST(Search, tensor_parallel_groups_stay_inside_a_node) {
  for (const auto& [model, cluster] : {std::pair("llama2-13b", "4x8xH100"), std::pair("llama2-70b", "8x8xH100")}) {
    const SearchResult result = search(request_of(model, cluster));
    ASSERT_FALSE(result.best.empty());
    for (const Ranked& ranked : result.best) EXPECT_LE(ranked.layout.tp, 8) << text_of(ranked);
  }
}

TEST(Search, keeps_to_its_constraints) {
  SearchRequest request = request_of("llama2-7b", "2x8xH100", 32);
  request.constraints.fixed = {{"tp", 2}, {"micro", 1}};
  request.constraints.at_most = {{"pp", 2}, {"zero", 1}};
  request.constraints.recompute = plan::Recompute::kFull;
  request.constraints.schedule = plan::Schedule::kOneForwardOneBackward;
  request.constraints.sequence_parallel = true;
  request.constraints.largest_out_of_memory_probability = 0.01;
  const SearchResult result = search(request);
  ASSERT_FALSE(result.best.empty());
  for (const Ranked& ranked : result.best) {
    expect_answer(ranked, request);
    EXPECT_EQ(ranked.layout.tp, 2);
    EXPECT_EQ(ranked.batch.micro, 1);
    EXPECT_LE(ranked.layout.pp, 2);
    EXPECT_LE(ranked.layout.zero, 1);
    EXPECT_EQ(ranked.layout.recompute, plan::Recompute::kFull);
    EXPECT_TRUE(ranked.layout.sequence_parallel);
    if (ranked.layout.pp > 1) {
      EXPECT_EQ(ranked.layout.schedule, plan::Schedule::kOneForwardOneBackward);
    }
  }
}

TEST(Search, a_whole_layout_can_be_given) {
  SearchRequest request = request_of("llama2-7b", "2x8xH100", 32);
  const plan::Layout layout = plan::parse_layout(
      "pp=2,dp=2,shard=2,zero=1,tp=2,sequence_parallel=true,stage_layers=15+17,recompute=full,precision=bf16");
  request.constraints = constraints_of(layout, 4);
  const SearchResult result = search(request);
  ASSERT_EQ(result.best.size(), 1u);
  EXPECT_EQ(result.best.front().layout, layout);
  EXPECT_EQ(result.best.front().batch.micro, 4);
  EXPECT_EQ(result.summary.candidates, 1);
}

TEST(Search, contradictions_are_named) {
  const auto error_of = [](const Constraints& constraints, std::int64_t batch = 32) {
    SearchRequest request = request_of("llama2-7b", "2x8xH100", batch);
    request.constraints = constraints;
    return user_error([&] { search(request); });
  };
  EXPECT_HAS(error_of({.fixed = {{"tp", 3}}}), "16");
  EXPECT_HAS(error_of(constraints_of(plan::parse_layout("dp=4"))), "needs 4 ranks");
  EXPECT_HAS(error_of({.fixed = {{"dp", 16}, {"shard", 1}}}, 24), "24 has no equal shares for 16");
  EXPECT_HAS(error_of({.fixed = {{"pp", 16}, {"virtual_stages", 4}}}), "64 stages");
  SearchRequest request = request_of("llama2-7b", "2x8xH100", 32);
  request.switched_off = {"flor"};
  EXPECT_HAS(user_error([&] { search(request); }), "did you mean `floor`");
  request.switched_off = {"divide"};
  EXPECT_HAS(user_error([&] { search(request); }), "cannot be switched off");
  SearchRequest batch = request_of("gpt2-124m", "1x4xA100", 16);
  batch.constraints.fixed = {{"micro", 3}};
  EXPECT_HAS(user_error([&] { search(batch); }), "micro-batch 3 does not divide a global batch of 16");
  batch.constraints.fixed = {{"micro", 2}, {"accumulation", 4}, {"dp", 4}};
  EXPECT_HAS(user_error([&] { search(batch); }),
             "micro-batch 2 x accumulation 4 does not divide a global batch of 16 over 4 data ranks (4 each)");
}

TEST(Search, says_what_lacks_least_memory_where_nothing_fits) {
  SearchRequest request = request_of("llama2-70b", "1x8xA10G", 8);
  request.constraints.offload = plan::Offload::kNone;
  const SearchResult result = search(request);
  EXPECT_TRUE(result.best.empty());
  EXPECT_EQ(result.summary.feasible, 0);
  ASSERT_FALSE(result.nearest.empty());
  for (std::size_t i = 0; i < result.nearest.size(); ++i) {
    expect_sound(result.nearest[i], request);
    EXPECT_FALSE(is_feasible(result.nearest[i].price, request));
    const auto fill = [&](std::size_t at) {
      return result.nearest[at].price.memory.total() / result.nearest[at].price.memory.capacity;
    };
    if (i > 0) {
      EXPECT_LE(fill(i - 1), fill(i));
    }
  }
}

TEST(Search, offloads_only_where_nothing_else_fits) {
  for (const Ranked& ranked : search(request_of("llama2-7b", "1x8xH100", 8)).best) {
    EXPECT_EQ(ranked.layout.offload, plan::Offload::kNone);
  }
  SearchRequest request = request_of("llama2-7b", "1x1xH100", 8);
  request.cluster.groups.front().device.memory_bytes = 64 * kGiB;  // 7 billion x 18 bytes are 118 GiB
  const SearchResult result = search(request);
  ASSERT_FALSE(result.best.empty());
  for (const Ranked& ranked : result.best) EXPECT_NE(ranked.layout.offload, plan::Offload::kNone);
}

TEST(Search, pipeline_cuts_fall_on_the_slow_link_between_node_groups) {
  SearchRequest request = request_of("gpt-10b", "1x8xH100", 128);
  request.cluster = testing::two_groups("H100", "A100", 2);
  const SearchResult result = search(request);
  ASSERT_FALSE(result.best.empty());
  const plan::Layout& best = result.best.front().layout;
  ASSERT_GT(best.pp, 1) << plan::to_string(best);
  const std::int64_t per_stage = best.world() / best.pp;
  EXPECT_EQ(16 % per_stage, 0) << "a stage straddles the groups: " << plan::to_string(best);
  ASSERT_FALSE(best.stage_layers.empty()) << "unequal devices with equal layers: " << plan::to_string(best);
  EXPECT_GT(best.stage_layers.front(), best.stage_layers.back()) << "the fast group is first";
}

TEST(Search, dollars_may_leave_devices_idle_and_a_deadline_takes_them_back) {
  SearchRequest request = request_of("gpt2-1.5b", "4x8xH100", 512);
  request.tokens = 1e10;
  request.objective = Objective::kThroughput;
  const SearchResult fastest = search(request);
  request.objective = Objective::kDollars;
  const SearchResult cheapest = search(request);
  ASSERT_FALSE(cheapest.best.empty());
  EXPECT_LT(cheapest.best.front().score, 0);
  EXPECT_LT(cheapest.best.front().layout.world(), 32) << "more devices scale worse than they cost";
  // A deadline that only more devices can meet.
  const auto seconds = [&](const Ranked& ranked) {
    return request.tokens / (512 * 1024) * ranked.price.step_seconds();
  };
  request.objective = Objective::kDeadline;
  request.deadline_seconds = (seconds(fastest.best.front()) + seconds(cheapest.best.front())) / 2;
  const SearchResult in_time = search(request);
  EXPECT_LE(seconds(in_time.best.front()), request.deadline_seconds);
  EXPECT_LE(in_time.best.front().score, cheapest.best.front().score);
  request.deadline_seconds = seconds(fastest.best.front()) / 2;
  const SearchResult too_late = search(request);
  EXPECT_LE(seconds(too_late.best.front()), seconds(fastest.best.front()));
  EXPECT_EQ(too_late.best.front().score, -std::numeric_limits<double>::infinity());
}

TEST(Search, goodput_counts_checkpoints_and_failures) {
  SearchRequest request = request_of("llama2-13b", "4x8xH100", 256);
  const SearchResult throughput = search(request);
  request.objective = Objective::kGoodput;
  const SearchResult goodput = search(request);
  EXPECT_LT(goodput.best.front().score, throughput.best.front().score);
  EXPECT_GT(goodput.best.front().score, 0.8 * throughput.best.front().score);
}

TEST(Search, the_default_batch_is_the_models_own_rounded_to_the_devices) {
  EXPECT_EQ(complete(request_of("gpt3-175b", "128x8xH100")).global_sequences, 1536);
  EXPECT_EQ(complete(request_of("llama2-13b", "4x8xH100")).global_sequences, 1024);
  EXPECT_EQ(complete(request_of("llama2-13b", "3x8xH100")).global_sequences, 1032);
  EXPECT_EQ(complete(request_of("llama2-13b", "3x8xH100", 100)).global_sequences, 100);
  EXPECT_EQ(complete(request_of("resnet50", "1x4xH100")).global_sequences, 1024);
  EXPECT_EQ(complete(request_of("llama2-7b", "1x8xV100")).precisions.front(), spec::Precision::kFp16);
}

TEST(Search, a_candidate_carries_every_figure_of_a_plan) {
  SearchRequest request = complete(request_of("llama2-13b", "4x8xH100"));
  request.tokens = 1e12;
  const SearchResult result = search(request);
  const cost::Pricer pricer(request.model, request.cluster, request.profile,
                            {.sequence_length = request.sequence_length, .optimizer = request.optimizer});
  const plan::Candidate candidate = to_candidate(request, pricer, result.best.front());
  ASSERT_TRUE(candidate.prediction && candidate.breakdown && candidate.cost && candidate.checkpoint);
  // The score counts risk and complexity, the prediction what choosing costs.
  EXPECT_GT(selection_bias(request), 0);
  const double unchosen = candidate.prediction->tokens_per_second.expected * std::exp(selection_bias(request));
  EXPECT_GE(unchosen, result.best.front().score);
  EXPECT_LE(unchosen, 1.3 * result.best.front().score);
  EXPECT_LT(candidate.prediction->tokens_per_second.low, candidate.prediction->tokens_per_second.expected);
  EXPECT_NEAR(candidate.cost->days * 86400,
              1e12 / candidate.prediction->tokens_per_second.expected / candidate.checkpoint->goodput, 1);
  EXPECT_LE(*candidate.out_of_memory_probability, 0.1);
}

// It hides its attention: there is no selective recomputation to propose, nor any with dropout inside.
TEST(Search, proposes_for_a_module_from_python_only_what_it_can_do) {
  SearchRequest request = request_of("gpt2-124m", "1x8xH100", 64);
  request.model = {};
  request.model.arch = spec::Arch::kTorchScript;
  request.model.name = "net";
  spec::ScriptFacts& facts = request.model.script.facts;
  facts.parameters = 1'000'000;
  facts.units = {{.name = "a", .parameters = 500'000, .saved_bytes = 1e6, .share = 0.5},
                 {.name = "b", .parameters = 500'000, .saved_bytes = 1e6, .share = 0.5}};
  facts.products = {{.count = 2, .m = 64, .n = 512, .k = 512}};
  for (const bool draws : {false, true}) {
    facts.draws = draws;
    const SearchResult result = search(request);
    ASSERT_FALSE(result.best.empty());
    EXPECT_EQ(result.best_of_family.contains("recompute=full"), !draws);
    EXPECT_FALSE(result.best_of_family.contains("recompute=selective"));
  }
}

// One run in three with two stages stalls, all with more, and a slot then takes three seconds.
SearchRequest stalling_request() {
  SearchRequest request = request_of("llama2-70b", "4x8xH100", 128);
  cost::Stalls& stalls = request.profile.fitted->stalls;
  stalls = {.runs = 300, .stalled = 100};
  stalls.odds = {-50, 0, 0, 0, 0, 0, 50 - std::log(2.0)};
  stalls.seconds = {std::log(3.0)};
  request.threads = 1;
  return complete(request);
}

TEST(SearchWithStalls, does_not_take_first_what_stalls_one_time_in_three) {
  SearchRequest request = stalling_request();
  const SearchResult stalling = search(request);
  ASSERT_FALSE(stalling.best.empty());
  EXPECT_EQ(stalling.best.front().layout.pp, 1) << text_of(stalling.best.front());
  request.profile.fitted->stalls = {};
  const SearchResult ordinary = search(request);
  ASSERT_FALSE(ordinary.best.empty());
  EXPECT_GT(ordinary.best.front().layout.pp, 1) << "the question is one for a pipeline where nothing stalls";
}

TEST(SearchWithStalls, says_how_often_and_what_would_be_faster_without) {
  SearchRequest request = stalling_request();
  const cost::Pricer pricer(request.model, request.cluster, request.profile, pricer_options(request));
  const std::string avoided = join(reasons_for(request, pricer, search(request)), "\n");
  EXPECT_NE(avoided.find("where it does not stall, but"), std::string::npos) << avoided;
  request.constraints.fixed["pp"] = 2;
  const std::string taken = join(reasons_for(request, pricer, search(request)), "\n");
  EXPECT_NE(taken.find("one run in three like this one stalled (a pipeline whose hosts wait for each other)"),
            std::string::npos)
      << taken;
}

}  // namespace
}  // namespace lockstep::planner
