// ProcessGroups: the communicators of one rank under a layout, all derived from the Mesh. Who is in which group:
//
//   tp, cp        the axis itself
//   pipeline      the pp axis; rank i of it is stage i
//   shards        shard x cp: share one replica's ZeRO state       replicas   dp: hold the same shard
//   everyone      dp x shard x cp: hold the same weights before sharding (gradients of ZeRO-0, routing of experts)
//   ep            consecutive ranks of `everyone`: rank e has the e-th share of the experts
//   expert_*      the same three for the weights of one expert share: the ranks of `everyone` with the same place in ep
//   ends          first and last stage with the same other coordinates: share tied embeddings
//
// A group of one rank is left invalid.
#pragma once

#include <map>

#include "lockstep/comm/communicator.h"
#include "lockstep/nn/partition.h"
#include "lockstep/parallel/mesh.h"
#include "lockstep/plan/layout.h"

namespace lockstep::parallel {

struct ProcessGroups {
  comm::Communicator world;
  comm::Communicator tp, cp, pipeline, shards, replicas, everyone;
  comm::Communicator ep, expert_shards, expert_replicas, expert_everyone;
  comm::Communicator ends;
  std::map<std::int64_t, comm::Communicator> sharers;  // consecutive tp ranks, by their number (tp itself included)
  std::int64_t stage = 0;                              // pp coordinate
  std::int64_t data_rank = 0;                          // of dp x shard

  nn::Partition partition(const plan::Layout& layout) const;
  // Bytes counted since reset(), by group name: what cost::communication_volumes() predicts.
  std::map<std::string, comm::Traffic> traffic() const;
  void reset_traffic();
};

// Collective over `world`, whose size must be layout.world(). `key_sharers`: tp ranks per key/value head (1: none
// share; nn::head_share()).
ProcessGroups make_process_groups(const plan::Layout& layout, comm::Communicator world, std::int64_t key_sharers);

}  // namespace lockstep::parallel
