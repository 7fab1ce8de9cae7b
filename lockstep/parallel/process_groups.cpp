#include "lockstep/parallel/process_groups.h"

#include <algorithm>
#include <functional>

#include "lockstep/base/error.h"

namespace lockstep::parallel {
namespace {

// Makes groups one after the other, in the same order on every rank.
class GroupMaker {
 public:
  GroupMaker(const plan::Layout& layout, comm::Communicator& world)
      : mesh_({.pp = static_cast<int>(layout.pp),
               .dp = static_cast<int>(layout.dp),
               .shard = static_cast<int>(layout.shard),
               .cp = static_cast<int>(layout.cp),
               .tp = static_cast<int>(layout.tp)}),
        world_(world) {}

  comm::Communicator along(const AxisSet& axes, const std::string& name) {
    return make(mesh_.group(world_.rank(), axes), name);
  }

  // The members of this rank's group along `axes` for which key(index in that group) equals this rank's.
  comm::Communicator split(const AxisSet& axes, const std::function<std::int64_t(std::int64_t)>& key,
                           const std::string& name) {
    const std::vector<int> all = mesh_.group(world_.rank(), axes);
    const auto own = std::find(all.begin(), all.end(), world_.rank()) - all.begin();
    std::vector<int> members;
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (key(static_cast<std::int64_t>(i)) == key(own)) members.push_back(all[i]);
    }
    return make(members, name);
  }

  const Mesh& mesh() const { return mesh_; }

 private:
  comm::Communicator make(const std::vector<int>& ranks, const std::string& name) {
    return ranks.size() > 1 ? world_.subgroup(ranks, name) : comm::Communicator();
  }

  Mesh mesh_;
  comm::Communicator& world_;
};

const AxisSet kShardAxes{Axis::kCp, Axis::kShard};

void make_expert_groups(const plan::Layout& layout, GroupMaker& maker, ProcessGroups& groups) {
  const std::int64_t ep = layout.ep;
  if (ep == 1) {
    groups.expert_shards = groups.shards;
    groups.expert_replicas = groups.replicas;
    groups.expert_everyone = groups.everyone;
    return;
  }
  const std::int64_t shards = layout.sharding_ranks();
  groups.ep = maker.split(
      kReplicaAxes, [ep](std::int64_t i) { return i / ep; }, "ep");
  groups.expert_everyone = maker.split(
      kReplicaAxes, [ep](std::int64_t i) { return i % ep; }, "expert_everyone");
  if (layout.zero == 0) return;
  // Where ep spans whole shard groups nothing of an expert is left to shard, and replicas are further apart.
  groups.expert_shards = maker.split(
      kReplicaAxes, [=](std::int64_t i) { return ep < shards ? i / shards * ep + i % ep : i; }, "expert_shards");
  const std::int64_t distance = std::max(ep, shards);
  groups.expert_replicas = maker.split(
      kReplicaAxes, [=](std::int64_t i) { return i % distance; }, "expert_replicas");
}

}  // namespace

nn::Partition ProcessGroups::partition(const plan::Layout& layout) const {
  nn::Partition partition;
  partition.tp = tp;
  partition.cp = cp;
  partition.ep = ep;
  partition.routing = everyone;
  partition.sequence_parallel = layout.sequence_parallel;
  partition.context_exchange = layout.context_exchange;
  return partition;
}

std::map<std::string, comm::Traffic> ProcessGroups::traffic() const {
  std::map<std::string, comm::Traffic> result;
  const auto add = [&](const comm::Communicator& group) {
    if (group.valid()) result[group.name()] = group.traffic();
  };
  for (const auto* group : {&world, &tp, &cp, &pipeline, &shards, &replicas, &everyone, &ep, &expert_shards,
                            &expert_replicas, &expert_everyone, &ends}) {
    add(*group);
  }
  for (const auto& [count, group] : sharers) add(group);
  return result;
}

void ProcessGroups::reset_traffic() {
  for (auto* group : {&world, &tp, &cp, &pipeline, &shards, &replicas, &everyone, &ep, &expert_shards, &expert_replicas,
                      &expert_everyone, &ends}) {
    if (group->valid()) group->reset_traffic();
  }
  for (auto& [count, group] : sharers) {
    if (group.valid()) group.reset_traffic();
  }
}

ProcessGroups make_process_groups(const plan::Layout& layout, comm::Communicator world, std::int64_t key_sharers) {
  LOCKSTEP_ASSERT(layout.world() == world.size(), "one rank per place of the layout");
  GroupMaker maker(layout, world);
  ProcessGroups groups;
  groups.tp = maker.along({Axis::kTp}, "tp");
  groups.cp = maker.along({Axis::kCp}, "cp");
  groups.pipeline = maker.along({Axis::kPp}, "pp");
  groups.everyone = maker.along(kReplicaAxes, "everyone");
  if (layout.zero > 0) {
    groups.shards = maker.along(kShardAxes, "shards");
    groups.replicas = maker.along({Axis::kDp}, "replicas");
  }
  make_expert_groups(layout, maker, groups);
  if (layout.tp > 1) groups.sharers[layout.tp] = groups.tp;
  if (key_sharers > 1 && key_sharers < layout.tp) {
    groups.sharers[key_sharers] = maker.split(
        {Axis::kTp}, [key_sharers](std::int64_t i) { return i / key_sharers; }, "key_sharers");
  }
  const Coordinates own = maker.mesh().coordinates(world.rank());
  groups.stage = own[static_cast<int>(Axis::kPp)];
  groups.data_rank = own[static_cast<int>(Axis::kDp)] * layout.shard + own[static_cast<int>(Axis::kShard)];
  if (layout.pp > 1) {
    const std::int64_t last = layout.pp - 1;
    const bool end = groups.stage == 0 || groups.stage == last;
    // Middle stages end up in a group of their own that nobody uses.
    comm::Communicator ends = maker.split(
        {Axis::kPp}, [last](std::int64_t i) { return i == 0 || i == last ? 0 : i; }, "ends");
    if (end) groups.ends = ends;
  }
  groups.world = std::move(world);
  return groups;
}

}  // namespace lockstep::parallel
