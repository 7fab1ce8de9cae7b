// Stage split: how the layers of a model are dealt out to pipeline stages that carry different loads (embedding, LM
// head) or sit on different devices.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/plan/layout.h"
#include "lockstep/spec/cluster.h"
#include "lockstep/spec/model.h"

namespace lockstep::planner {

// What a pipeline stage can do and what it carries beside layers.
struct StageLoad {
  double speed = 1;  // layers per unit of time, relative
  double extra = 0;  // load beside the layers, in layers
};

// Layers per stage, at least one each, so that the slowest stage, (layers + extra) / speed, is as fast as it can be.
// Ties go to the later stage: in 1F1B it holds fewer micro-batches. Needs layers >= loads.size() > 0.
std::vector<std::int64_t> balance_layers(std::int64_t layers, std::span<const StageLoad> loads);

// (layers + extra) / speed of the slowest stage.
double slowest_stage(std::span<const std::int64_t> stage_layers, std::span<const StageLoad> loads);

// FLOPs of the LM head over those of one layer, for one token of a sequence of that length.
double head_in_layers(const spec::Model& model, std::int64_t sequence_length);

// The splits worth pricing for pp x virtual_stages stages on the first `world` devices of the cluster, where stage s
// lies on pipeline rank s % pp, or where `schedule` lays them (a V), and rank p owns devices [p world/pp, (p+1)
// world/pp), node groups in file order. The first is empty: as even as possible. The others, each only where it is
// better than the even split by its own measure or the layers leave a remainder: the embedding and the head count as a
// layer each (Grattafiori et al. 2024), the head by its FLOPs with layers in proportion to the speed of the devices,
// and layers in proportion to their memory.
std::vector<std::vector<std::int64_t>> stage_splits(const spec::Model& model, const spec::Cluster& cluster,
                                                    std::int64_t sequence_length, std::int64_t world, std::int64_t pp,
                                                    std::int64_t virtual_stages,
                                                    plan::Schedule schedule = plan::Schedule::kNone);

}  // namespace lockstep::planner
