#include "lockstep/engine/calibrate/fused.h"

#include <fmt/format.h>

namespace lockstep::engine {
namespace {

struct Shape {
  std::int64_t layers, hidden, heads, ffn, vocab, sequence;
};

spec::Model llama(const Shape& shape) {
  spec::Model model;
  model.name = fmt::format("llama-{}x{}", shape.layers, shape.hidden);
  model.arch = spec::Arch::kLlama;
  model.layers = shape.layers;
  model.hidden = shape.hidden;
  model.heads = model.kv_heads = shape.heads;
  model.head_dim = shape.hidden / shape.heads;
  model.ffn_hidden = shape.ffn;
  model.vocab = shape.vocab;
  model.max_sequence = shape.sequence;
  model.bias = false;
  model.activation = spec::Activation::kSilu;
  return model;
}

}  // namespace

std::vector<cost::FusedPoint> fused_calibration_points(bool quick) {
  using plan::Recompute;
  std::vector<cost::FusedPoint> points;
  const auto add = [&](const Shape& shape, std::int64_t micro, Recompute recompute,
                       spec::Precision precision = spec::Precision::kBf16) {
    cost::FusedPoint point;
    point.model = llama(shape);
    point.precision = precision;
    point.recompute = recompute;
    point.micro = micro;
    point.sequence_length = shape.sequence;
    points.push_back(std::move(point));
  };
  const Shape tiny{8, 512, 8, 1536, 32000, 1024}, small{24, 1024, 16, 2816, 32000, 2048};
  const Shape medium{24, 1536, 12, 4096, 50304, 1024}, narrow_heads{22, 2048, 32, 5632, 32000, 2048};
  add(small, 16, Recompute::kNone);
  add(medium, 32, Recompute::kNone);
  add(narrow_heads, 8, Recompute::kSelective);
  add(tiny, 64, Recompute::kNone);
  add(small, 4, Recompute::kFull);
  if (quick) return points;
  const Shape large{32, 2560, 20, 6912, 32000, 2048};
  add(large, 8, Recompute::kNone);
  add(large, 4, Recompute::kFull);
  add({26, 3200, 25, 8640, 32000, 2048}, 4, Recompute::kNone);
  add({24, 4096, 32, 14336, 32000, 2048}, 2, Recompute::kSelective);
  add(large, 8, Recompute::kSelective, spec::Precision::kFp8);
  return points;
}

}  // namespace lockstep::engine
