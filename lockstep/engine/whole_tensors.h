// Between a model's shards and the tensors of a checkpoint, by name and piece by piece.
#pragma once

#include <string>
#include <vector>

#include "lockstep/checkpoint/pieces.h"
#include "lockstep/parallel/parallel_model.h"

namespace lockstep::engine {

// Reads prefix + name for ParallelModel::fill; `source` is kept by reference. bad_input names a missing tensor or one
// of another size.
parallel::ParallelModel::ReadRange range_reader(const checkpoint::TensorSource& source, checkpoint::TensorKind kind,
                                                const std::string& prefix);

// Adds what this rank saves of a shard tensor of each shard, as prefix + the parameter's name.
void add_pieces(const parallel::ParallelModel& model, checkpoint::TensorKind kind,
                const std::function<torch::Tensor(const parallel::FlatShard&)>& of, const std::string& prefix,
                checkpoint::CheckpointPart& part, bool everything = false);

// Small tensors that one rank saves whole.
void add_whole(const checkpoint::TensorMap& tensors, checkpoint::TensorKind kind, checkpoint::CheckpointPart& part);

// The tensors of `like`'s names, as far as they are there.
checkpoint::TensorMap read_like(const checkpoint::TensorMap& like, const checkpoint::TensorSource& source,
                                checkpoint::TensorKind kind);

}  // namespace lockstep::engine
