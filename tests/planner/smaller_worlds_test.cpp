#include "lockstep/planner/smaller_worlds.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "lockstep/planner/planner.h"

namespace lockstep::planner {
namespace {

// Weights and optimizer state are sharded: with fewer ranks each holds more of them.
spec::Job sharded_on_4_nodes(const std::string& memory) {
  return spec::parse_job(
      fmt::format("model: {{arch: gpt, layers: 4, hidden: 256, heads: 4, vocab: 256, max_sequence: 64}}\n"
                  "cluster: {{groups: [{{kind: cpu, nodes: 4, device: {{memory: {}}}}}]}}\n"
                  "data: {{kind: text, path: x}}\nbatch: {{micro: 1, sequence_length: 64}}\nsteps: 1\n"
                  "layout: {{shard: 4, zero: 3}}\nrecovery: {{snapshots: {{every: 0}}}}\n",
                  memory),
      "job");
}

std::vector<std::int64_t> nodes_of(const SmallerWorlds& worlds) {
  std::vector<std::int64_t> nodes;
  for (const plan::Plan& plan : worlds.plans) nodes.push_back(plan.cluster.devices());
  return nodes;
}

TEST(SmallerWorlds, are_those_that_the_layout_allows) {
  const spec::Job job = sharded_on_4_nodes("8GiB");
  const SmallerWorlds worlds = smaller_worlds(job, make_plan(job));
  EXPECT_EQ(nodes_of(worlds), (std::vector<std::int64_t>{3, 2, 1}));
  EXPECT_TRUE(worlds.refused.empty());
  EXPECT_GT(worlds.plans.back().best.memory.total(), worlds.plans.front().best.memory.total());
}

TEST(SmallerWorlds, one_that_does_not_fit_is_refused_with_the_figures) {
  spec::Job job = sharded_on_4_nodes("8GiB");
  const double on_two = smaller_worlds(job, make_plan(job)).plans.at(1).best.memory.total();
  // Just enough for two nodes.
  job.cluster.groups.front().device.memory_bytes = 1.001 * on_two;
  const SmallerWorlds worlds = smaller_worlds(job, make_plan(job));
  EXPECT_EQ(nodes_of(worlds), (std::vector<std::int64_t>{3, 2}));
  ASSERT_EQ(worlds.refused.size(), 1u);
  const std::string why = worlds.refused.at(1);
  EXPECT_NE(why.find("per rank and cpu has"), std::string::npos) << why;
  EXPECT_NE(why.find("too much"), std::string::npos) << why;
}

}  // namespace
}  // namespace lockstep::planner
