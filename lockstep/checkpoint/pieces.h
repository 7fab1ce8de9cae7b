// Pieces of tensors: what one rank holds of the whole model, and where it belongs.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/checkpoint/safetensors.h"

namespace lockstep::checkpoint {

// `repeat` runs of `count` elements of a whole tensor in row-major order, `stride` apart: rows of a slice. One run has
// the stride `count`.
struct Series {
  std::int64_t first = 0;
  std::int64_t count = 0;
  std::int64_t stride = 0;
  std::int64_t repeat = 1;

  std::int64_t elements() const { return count * repeat; }
  // Behind the last element.
  std::int64_t end() const { return first + (repeat - 1) * stride + count; }
  bool operator==(const Series&) const = default;
};

// Appends a run that follows those in `series` in the piece's own order; runs that fit become one series.
void append_run(std::vector<Series>& series, std::int64_t first, std::int64_t count);
std::int64_t elements_of(const std::vector<Series>& series);

// Calls visit(first element in the whole, elements passed before it, count) for every part of the series in [begin,
// end) of the whole tensor, in order. `before` counts elements in the piece's own order.
template <class Visit>
void visit_overlap(const std::vector<Series>& all, std::int64_t begin, std::int64_t end, const Visit& visit) {
  std::int64_t passed = 0;
  for (const Series& series : all) {
    if (series.first < end && series.end() > begin) {
      const std::int64_t stride = series.stride > 0 ? series.stride : 1;
      const std::int64_t skip = begin - series.first - series.count;  // runs that end at or before `begin`
      std::int64_t k = skip < 0 ? 0 : skip / stride;
      for (; k < series.repeat && series.first + k * series.stride < end; ++k) {
        const std::int64_t run = series.first + k * series.stride;
        const std::int64_t from = run > begin ? run : begin, to = run + series.count < end ? run + series.count : end;
        if (from < to) visit(from, passed + k * series.count + (from - run), to - from);
      }
    }
    passed += series.elements();
  }
}

// What a checkpoint keeps of tensors: weights and buffers by module name, optimizer state, and each rank's own.
enum class TensorKind { kModel = 0, kOptimizer, kRank };
inline constexpr TensorKind kTensorKinds[] = {TensorKind::kModel, TensorKind::kOptimizer, TensorKind::kRank};
const char* to_string(TensorKind kind);  // "model", "optimizer", "rank"

struct TensorPiece {
  TensorKind kind = TensorKind::kModel;
  std::string name;
  std::vector<std::int64_t> sizes;  // of the whole tensor
  std::vector<Series> series;       // which elements, in the order of `values`
  torch::Tensor values;             // contiguous; any device
};

TensorPiece whole_piece(TensorKind kind, const std::string& name, const torch::Tensor& tensor);
// Puts a piece into its whole tensor, which is made (zeros, host memory) when it is not there.
void place(const TensorPiece& piece, TensorMap& whole);

// The job's facts in a checkpoint. All but rank_state are the same on every rank.
struct CheckpointFacts {
  std::int64_t step = 0;                             // optimizer steps done
  nlohmann::json loader = nlohmann::json::object();  // position in the data
  std::string job_yaml = {};
  nlohmann::json extra = nlohmann::json::object();       // run id, versions, layout: whatever the caller wants back
  nlohmann::json rank_state = nlohmann::json::object();  // this rank's generators, ...
};

// One rank's part of a checkpoint. Over all ranks every element of model and optimizer occurs once.
struct CheckpointPart {
  CheckpointFacts facts;
  std::vector<TensorPiece> pieces;
};

// Everything whole: what one rank of one has, and what tools look at.
struct CheckpointContents {
  CheckpointFacts facts;
  TensorMap model;
  TensorMap optimizer;
  TensorMap rank_tensors;  // of one rank: error feedback, generator states, ...

  TensorMap& of(TensorKind kind);
  const TensorMap& of(TensorKind kind) const { return const_cast<CheckpointContents*>(this)->of(kind); }
};
// `shared`: with model and optimizer, which one rank of the run has.
CheckpointPart part_of(const CheckpointContents& contents, bool shared = true);
CheckpointContents contents_of(const CheckpointPart& part);
// This rank's own tensors among the parts of `step`; empty where there is none.
TensorMap rank_tensors_of(const std::vector<CheckpointPart>& parts, std::int64_t step);

// Where state is read from, by name and range.
class TensorSource {
 public:
  struct Facts {
    torch::ScalarType dtype = torch::kFloat32;
    std::vector<std::int64_t> sizes;
    std::int64_t elements() const;
  };
  virtual ~TensorSource() = default;
  // Null when there is no such tensor.
  virtual const Facts* find(TensorKind kind, const std::string& name) const = 0;
  // Elements [first, first + out.numel()) in row-major order into `out`: 1-D, contiguous, any device, converted to its
  // dtype. Throws UserError (bad input) when they are not there or damaged.
  virtual void read(TensorKind kind, const std::string& name, std::int64_t first, torch::Tensor out) const = 0;

  // The whole tensor; undefined when it is not there.
  torch::Tensor read_whole(TensorKind kind, const std::string& name) const;
};

// Tensors in memory; `contents` must outlive it.
class ContentsSource : public TensorSource {
 public:
  explicit ContentsSource(const CheckpointContents& contents);
  const Facts* find(TensorKind kind, const std::string& name) const override;
  void read(TensorKind kind, const std::string& name, std::int64_t first, torch::Tensor out) const override;

 private:
  const CheckpointContents& contents_;
  std::map<std::pair<TensorKind, std::string>, Facts> facts_;
};

}  // namespace lockstep::checkpoint
