// Models and clusters that survived random damage go through the search: whatever the readers accept must be priced
// without a crash, a hang or a figure that is not a number.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <ctime>
#include <string>
#include <vector>

#include "../spec/mutation.h"
#include "lockstep/base/error.h"
#include "lockstep/planner/explain/explain.h"
#include "lockstep/planner/search/search.h"
#include "lockstep/spec/cluster_reader.h"
#include "lockstep/spec/model_reader.h"
#include "lockstep/spec/presets.h"

namespace lockstep::planner {
namespace {

using lockstep::testing::any_of;
using lockstep::testing::mutate;
using lockstep::testing::Random;

// The first `count` mutants of the texts that `read` accepts.
template <class Value, class Read>
std::vector<Value> survivors(const std::vector<std::string>& texts, std::size_t count, std::uint64_t seed, Read read) {
  Random random(seed);
  std::vector<Value> values;
  while (values.size() < count) {
    try {
      values.push_back(read(mutate(any_of(texts, random), random)));
    } catch (const UserError&) {
    }
  }
  return values;
}

std::vector<spec::Model> damaged_models(std::size_t count, std::uint64_t seed) {
  std::vector<std::string> texts;
  for (const char* name :
       {"llama2-7b", "mixtral-8x7b", "gpt2-355m", "mamba-130m", "bert-large", "resnet50", "mnist-cnn"}) {
    texts.push_back(spec::to_yaml(spec::load_model(name)));
  }
  return survivors<spec::Model>(texts, count, seed, [](const std::string& text) {
    const YamlNode root = parse_yaml(text, "mutant.yaml");
    return spec::read_model(root, "", "mutant");
  });
}

std::vector<spec::Cluster> damaged_clusters(std::size_t count, std::uint64_t seed) {
  std::vector<std::string> texts = {
      "groups: [{kind: H100, nodes: 2}, {kind: A100, nodes: 1, devices_per_node: 4}]\n",
      "groups: [{kind: L4, nodes: 3, devices_per_node: 5}]\nstorage: {read: 40GB/s, write: 20GB/s}\n"};
  for (const char* name : {"4x8xH100", "1x72xGB200", "2x4xMI300X", "1x8xV100"}) {
    texts.push_back(spec::to_yaml(spec::load_cluster(name)));
  }
  return survivors<spec::Cluster>(texts, count, seed, [](const std::string& text) {
    const YamlNode root = parse_yaml(text, "mutant.yaml");
    return spec::read_cluster(root, "", "mutant");
  });
}

void expect_numbers(const SearchRequest& request, const cost::Pricer& pricer, const Ranked& ranked) {
  const plan::TimeBreakdown& time = ranked.price.time;
  const double round_off = 1e-12 * ranked.price.step_seconds();  // of differences, on machines a billion times too slow
  for (const double value : {time.compute, time.tp_comm, time.dp_comm, time.pp_comm, time.cp_comm, time.ep_comm,
                             time.bubble, time.optimizer, time.other, ranked.price.memory.total()}) {
    EXPECT_TRUE(std::isfinite(value) && value >= -round_off) << value;
  }
  EXPECT_GT(ranked.price.step_seconds(), 0);
  const double probability = ranked.price.out_of_memory_probability();
  EXPECT_TRUE(probability >= 0 && probability <= 1) << probability;
  EXPECT_FALSE(std::isnan(ranked.score));
  EXPECT_EQ(plan::find_layout_problem(ranked.layout, &request.model), std::nullopt);
  EXPECT_LE(ranked.layout.world(), request.cluster.devices());
  const plan::Candidate candidate = to_candidate(request, pricer, ranked);
  EXPECT_TRUE(std::isfinite(candidate.prediction->step_seconds.high));
  EXPECT_LE(candidate.prediction->step_seconds.low, candidate.prediction->step_seconds.expected);
  EXPECT_LE(candidate.prediction->step_seconds.expected, candidate.prediction->step_seconds.high);
}

SearchRequest request_of(const spec::Model& model, const spec::Cluster& cluster) {
  SearchRequest request;
  request.model = model;
  request.cluster = cluster;
  request.profile = cost::profile_for(cluster.groups[0].device.kind);
  request.tokens = 1e12;
  request.threads = 1;
  // A thousand layers on a million devices is a search of minutes, not of a test.
  if (static_cast<double>(model.layers) * static_cast<double>(cluster.devices()) > 1e5) {
    request.constraints.at_most = {{"pp", 8}, {"virtual_stages", 2}};
  }
  return complete(request);
}

// Searches and checks; whether anything was found.
bool plan_it(const SearchRequest& request) {
  const SearchResult result = search(request);
  const cost::Pricer pricer(request.model, request.cluster, request.profile,
                            {.sequence_length = request.sequence_length, .optimizer = request.optimizer});
  for (const Ranked& ranked : result.best) expect_numbers(request, pricer, ranked);
  for (const Ranked& ranked : result.nearest) expect_numbers(request, pricer, ranked);
  return !result.best.empty();
}

void expect_reasons(const Explained& explained) {
  EXPECT_FALSE(explained.plan.best.reasons.empty());
  EXPECT_FALSE(explained.bottleneck.empty());
  for (const WhatIf& what_if : explained.what_ifs) EXPECT_TRUE(std::isfinite(what_if.gain)) << what_if.change;
  const nlohmann::json stored = plan::to_json(explained.plan);
  EXPECT_EQ(plan::to_json(plan::read_plan(stored, "mutant.json")), stored);
}

// Rounds of other mutants: 1, or LOCKSTEP_FUZZ_ROUNDS.
std::uint64_t rounds() {
  const char* text = std::getenv("LOCKSTEP_FUZZ_ROUNDS");
  return text != nullptr ? std::strtoull(text, nullptr, 10) : 1;
}

constexpr double kLongestSearchSeconds = 30;  // of CPU; some 3 s are usual, the rest is for sanitizers

// Pairs of one round that were planned.
int plan_a_round(std::uint64_t seed) {
  const std::vector<spec::Model> models = damaged_models(40, seed);
  const std::vector<spec::Cluster> clusters = damaged_clusters(40, seed + 1);
  int planned = 0;
  for (std::size_t i = 0; i < 60 && !::testing::Test::HasFailure(); ++i) {
    const spec::Model& model = models[i % models.size()];
    const spec::Cluster& cluster = clusters[(i * 7 + seed) % clusters.size()];
    SCOPED_TRACE(spec::to_yaml(model) + spec::to_yaml(cluster));
    const std::clock_t start = std::clock();
    try {
      const SearchRequest request = request_of(model, cluster);
      planned += plan_it(request) ? 1 : 0;
      if (i % 5 == 0) expect_reasons(explain(request));
    } catch (const UserError& error) {
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    } catch (const std::exception& error) {
      ADD_FAILURE() << "seed " << seed << ", pair " << i << " escaped with: " << error.what();
    }
    EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, kLongestSearchSeconds);
  }
  return planned;
}

TEST(PlannerMutation, whatever_the_readers_accept_can_be_searched) {
  for (std::uint64_t round = 0; round < rounds() && !HasFailure(); ++round) {
    EXPECT_GT(plan_a_round(100 + 10 * round), 10) << "the damage leaves too little to plan";
  }
}

}  // namespace
}  // namespace lockstep::planner
