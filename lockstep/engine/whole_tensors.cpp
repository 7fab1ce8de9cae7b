#include "lockstep/engine/whole_tensors.h"

#include "lockstep/base/error.h"

namespace lockstep::engine {

parallel::ParallelModel::ReadRange range_reader(const checkpoint::TensorSource& source, checkpoint::TensorKind kind,
                                                const std::string& prefix) {
  return [&source, kind, prefix](const std::string& name, std::int64_t first, torch::Tensor out) {
    const auto* facts = source.find(kind, prefix + name);
    if (facts == nullptr || first + out.numel() > facts->elements()) {
      throw bad_input("the checkpoint has no tensor " + prefix + name + " of the model's size",
                      "it is of another model or optimizer; check the job");
    }
    source.read(kind, prefix + name, first, out);
  };
}

void add_pieces(const parallel::ParallelModel& model, checkpoint::TensorKind kind,
                const std::function<torch::Tensor(const parallel::FlatShard&)>& of, const std::string& prefix,
                checkpoint::CheckpointPart& part, bool everything) {
  for (const auto& saved : model.saved_pieces(of, everything)) {
    checkpoint::TensorPiece piece{
        kind, prefix + saved.parameter.name, saved.parameter.placement.whole, {}, saved.values.detach()};
    for (const auto& stretch : saved.stretches) checkpoint::append_run(piece.series, stretch.whole, stretch.count);
    part.pieces.push_back(std::move(piece));
  }
}

void add_whole(const checkpoint::TensorMap& tensors, checkpoint::TensorKind kind, checkpoint::CheckpointPart& part) {
  for (const auto& [name, tensor] : tensors) part.pieces.push_back(checkpoint::whole_piece(kind, name, tensor));
}

checkpoint::TensorMap read_like(const checkpoint::TensorMap& like, const checkpoint::TensorSource& source,
                                checkpoint::TensorKind kind) {
  checkpoint::TensorMap found;
  for (const auto& [name, tensor] : like) {
    const torch::Tensor saved = source.read_whole(kind, name);
    if (saved.defined()) found[name] = saved;
  }
  return found;
}

}  // namespace lockstep::engine
