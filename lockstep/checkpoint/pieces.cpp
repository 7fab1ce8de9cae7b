#include "lockstep/checkpoint/pieces.h"

#include <functional>
#include <numeric>

#include "lockstep/base/enum_names.h"
#include "lockstep/base/error.h"

namespace lockstep::checkpoint {

void append_run(std::vector<Series>& series, std::int64_t first, std::int64_t count) {
  if (count == 0) return;
  if (!series.empty()) {
    Series& last = series.back();
    if (last.repeat == 1 && last.first + last.count == first) {
      last.count += count;
      last.stride = last.count;
      return;
    }
    if (last.repeat == 1 && last.count == count && first > last.first + count) {
      last.stride = first - last.first;
      last.repeat = 2;
      return;
    }
    if (last.repeat > 1 && last.count == count && last.first + last.repeat * last.stride == first) {
      ++last.repeat;
      return;
    }
  }
  series.push_back({first, count, count, 1});
}

std::int64_t elements_of(const std::vector<Series>& series) {
  std::int64_t sum = 0;
  for (const Series& one : series) sum += one.elements();
  return sum;
}

const char* to_string(TensorKind kind) { return named<TensorKind::kRank>(kind, "model", "optimizer", "rank"); }

TensorPiece whole_piece(TensorKind kind, const std::string& name, const torch::Tensor& tensor) {
  LOCKSTEP_ASSERT(tensor.defined(), "tensor '" + name + "' is undefined");
  TensorPiece piece{kind, name, tensor.sizes().vec(), {}, tensor.detach().contiguous()};
  append_run(piece.series, 0, tensor.numel());
  return piece;
}

void place(const TensorPiece& piece, TensorMap& whole) {
  const torch::NoGradGuard no_grad;
  torch::Tensor& tensor = whole[piece.name];
  if (!tensor.defined()) tensor = torch::zeros(piece.sizes, torch::TensorOptions().dtype(piece.values.scalar_type()));
  const torch::Tensor target = tensor.view({-1}), values = piece.values.reshape({-1});
  std::int64_t at = 0;
  for (const Series& series : piece.series) {
    for (std::int64_t k = 0; k < series.repeat; ++k, at += series.count) {
      target.narrow(0, series.first + k * series.stride, series.count).copy_(values.narrow(0, at, series.count));
    }
  }
}

TensorMap& CheckpointContents::of(TensorKind kind) {
  return kind == TensorKind::kModel ? model : kind == TensorKind::kOptimizer ? optimizer : rank_tensors;
}

CheckpointPart part_of(const CheckpointContents& contents, bool shared) {
  CheckpointPart part{contents.facts, {}};
  for (const TensorKind kind : kTensorKinds) {
    if (!shared && kind != TensorKind::kRank) continue;
    for (const auto& [name, tensor] : contents.of(kind)) part.pieces.push_back(whole_piece(kind, name, tensor));
  }
  return part;
}

TensorMap rank_tensors_of(const std::vector<CheckpointPart>& parts, std::int64_t step) {
  TensorMap tensors;
  for (const CheckpointPart& part : parts) {
    if (part.facts.step != step) continue;
    for (const TensorPiece& piece : part.pieces) {
      if (piece.kind == TensorKind::kRank) place(piece, tensors);
    }
  }
  return tensors;
}

CheckpointContents contents_of(const CheckpointPart& part) {
  CheckpointContents contents;
  contents.facts = part.facts;
  for (const TensorPiece& piece : part.pieces) place(piece, contents.of(piece.kind));
  return contents;
}

std::int64_t TensorSource::Facts::elements() const {
  return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>());
}

torch::Tensor TensorSource::read_whole(TensorKind kind, const std::string& name) const {
  const Facts* facts = find(kind, name);
  if (facts == nullptr) return {};
  torch::Tensor tensor = torch::empty(facts->sizes, torch::TensorOptions().dtype(facts->dtype));
  read(kind, name, 0, tensor.view({-1}));
  return tensor;
}

ContentsSource::ContentsSource(const CheckpointContents& contents) : contents_(contents) {
  for (const TensorKind kind : kTensorKinds) {
    for (const auto& [name, tensor] : contents.of(kind)) {
      facts_[{kind, name}] = {tensor.scalar_type(), tensor.sizes().vec()};
    }
  }
}

const TensorSource::Facts* ContentsSource::find(TensorKind kind, const std::string& name) const {
  const auto found = facts_.find({kind, name});
  return found == facts_.end() ? nullptr : &found->second;
}

void ContentsSource::read(TensorKind kind, const std::string& name, std::int64_t first, torch::Tensor out) const {
  const auto found = contents_.of(kind).find(name);
  if (found == contents_.of(kind).end() || first < 0 || first + out.numel() > found->second.numel()) {
    throw bad_input("there is no tensor " + name + " of this size", "it is of another model or optimizer");
  }
  const torch::NoGradGuard no_grad;
  out.copy_(found->second.reshape({-1}).narrow(0, first, out.numel()));
}

}  // namespace lockstep::checkpoint
