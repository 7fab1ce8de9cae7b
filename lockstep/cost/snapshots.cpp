#include "lockstep/cost/snapshots.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/units.h"
#include "lockstep/cost/engine_memory.h"
#include "lockstep/cost/states.h"

namespace lockstep::cost {
namespace {

bool keeps_feedback(const plan::Run& run) {
  const spec::Compression compression = run.communication.compression;
  return compression == spec::Compression::kPowerSgd || compression == spec::Compression::kOneBit;
}

bool is_needed(const plan::Run& run) {
  const plan::Layout& layout = run.layout;
  if (layout.world() == 1) return false;
  return layout.zero > 0 || layout.tp > 1 || layout.pp > 1 || layout.ep > 1 || keeps_feedback(run);
}

// Share of a rank's state that its domain alone holds and that it sends: `replicas` hold the same, `stride` ranks
// apart.
double sent_share(const plan::Run& run, double replicas, double stride) {
  if (replicas <= 1) return 1.0;
  std::int64_t nodes = 0, widest = 1;
  for (const spec::NodeGroup& group : run.cluster.groups) {
    nodes += group.nodes;
    widest = std::max(widest, group.devices_per_node);
  }
  const bool elsewhere = nodes <= 1 || (replicas - 1) * stride >= static_cast<double>(widest);
  return elsewhere ? 0.0 : 1.0 / replicas;
}

// Copies that the ranks outside the largest node keep of those in it.
double copies_per_keeper(const spec::Cluster& cluster) {
  std::int64_t nodes = 0, widest = 1;
  for (const spec::NodeGroup& group : cluster.groups) {
    nodes += group.nodes;
    widest = std::max(widest, group.devices_per_node);
  }
  const std::int64_t outside = cluster.devices() - widest;
  if (nodes <= 1 || outside <= 0 || widest <= outside) return 1.0;
  const std::int64_t keepers = (widest + outside - 1) / outside;
  return static_cast<double>(keepers);
}

}  // namespace

SnapshotMemory snapshot_memory(const plan::Run& run) {
  SnapshotMemory memory;
  memory.needed = is_needed(run);
  if (!memory.needed) return memory;
  const plan::Layout& layout = run.layout;
  const auto axis = [](std::int64_t size) { return static_cast<double>(size); };
  const double everyone = axis(layout.dp * layout.shard * layout.cp);  // before sharding they hold the same
  const double dense_replicas = everyone / dense_shards(layout);
  const double expert_replicas = std::max(1.0, everyone / axis(layout.ep) / expert_shards(layout));
  const double dense_share = sent_share(run, dense_replicas, axis(layout.tp) * dense_shards(layout));
  const double expert_share = sent_share(run, expert_replicas, axis(layout.tp * layout.ep) * expert_shards(layout));
  for (std::int64_t stage = 0; stage < layout.pp; ++stage) {
    const StateOnRank state = engine_state(run, stage);
    memory.own = std::max(memory.own, state.dense + state.expert);
    memory.peers = std::max(memory.peers, dense_share * state.dense + expert_share * state.expert);
  }
  if (keeps_feedback(run)) {  // about as large as the weights, and each rank's own
    const double feedback = engine_memory(run).buffers;
    memory.own += feedback;
    memory.peers += feedback;
  }
  memory.peers *= copies_per_keeper(run.cluster);
  if (run.cluster.is_cpu()) {
    const plan::MemoryBreakdown step = engine_memory(run);
    memory.room = std::max(0.0, step.capacity - step.total());
    memory.fits = step.capacity <= 0 || memory.total() <= memory.room;
  }
  return memory;
}

double snapshot_bytes(const plan::Run& run) {
  if (run.snapshots.every == 0) return 0.0;
  const SnapshotMemory memory = snapshot_memory(run);
  const bool automatic = run.snapshots.every == spec::Snapshots::kAuto;
  return automatic && !memory.fits ? 0.0 : memory.total();
}

std::string why_no_snapshots(const SnapshotMemory& memory) {
  return fmt::format(
      "snapshots need {} per rank and {} are left: none are taken, a lost rank costs the steps since the last "
      "checkpoint",
      format_bytes(memory.total()), format_bytes(memory.room));
}

}  // namespace lockstep::cost
