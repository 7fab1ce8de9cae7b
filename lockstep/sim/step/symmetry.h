// Which data ranks of a step behave alike: one of each kind is played and stands for the others, so that a simulation
// costs what differs and not what there is. The tp x cp ranks of a data rank on a stage exchange in every layer and go
// through it as one; a data rank has such a group on every stage.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "lockstep/plan/layout.h"

namespace lockstep::sim {

// What is not as planned.
struct Disturbances {
  std::map<std::int64_t, double> slow_ranks;      // rank: its compute takes so many times longer
  std::map<std::int64_t, double> slow_links;      // node: share of its NICs' bandwidth that is left
  std::map<std::int64_t, double> loader_seconds;  // rank: waits for data so long before every micro-batch
  // Standard deviation of the logarithm of every pass of every rank: exp(jitter x z), z normal. Then no two ranks are
  // alike.
  double jitter = 0;
};

// Where ranks are: Layout's order, nodes filled one after the other.
struct RankMap {
  plan::Layout layout;
  std::int64_t devices_per_node = 1;

  std::int64_t group_size() const { return layout.tp * layout.cp; }  // ranks of one data rank on one stage
  std::int64_t first_rank(std::int64_t data_rank, std::int64_t stage) const {
    return (stage * layout.data_ranks() + data_rank) * group_size();
  }
  std::int64_t data_rank_of(std::int64_t rank) const { return rank / group_size() % layout.data_ranks(); }
  std::int64_t stage_of(std::int64_t rank) const { return rank / group_size() / layout.data_ranks(); }
  std::int64_t node_of(std::int64_t rank) const { return rank / devices_per_node; }
};

// Data ranks that cannot be told apart.
struct DataClass {
  std::int64_t data_rank = 0;  // the first of them, which is played
  std::int64_t members = 1;
  int block = 0;  // of those it goes through every pass with
};

struct Symmetry {
  std::vector<int> class_of;             // [data ranks]
  std::vector<DataClass> classes;        // by their first data rank
  std::vector<std::vector<int>> blocks;  // classes in each kind of block of coupled data ranks
};

// Two data ranks are alike when the same disturbances meet them on the same stages and the blocks of `coupled`
// neighbours they are in hold the same kinds.
Symmetry find_symmetry(const RankMap& ranks, const Disturbances& disturbances, std::int64_t coupled);

}  // namespace lockstep::sim
