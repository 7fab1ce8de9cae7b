// The model: points of a wave become vectors, blocks mix them, and a head names the wave's class.
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <string>

#include "lockstep/plugin/register.h"

namespace {

using lockstep::plugin::Batch;
using lockstep::plugin::Options;
using lockstep::plugin::Stream;
using lockstep::plugin::Unit;

// [samples, points] -> [samples, points, width]
struct Embedding : Unit {
  Embedding(std::int64_t points, std::int64_t width)
      : lift(register_module("lift", torch::nn::Linear(1, width))),
        position(register_parameter("position", torch::randn({points, width}) * 0.02)) {}

  Stream forward(const Stream& x, const Batch&) override { return {lift(x[0].unsqueeze(-1)) + position}; }

  torch::nn::Linear lift;
  torch::Tensor position;
};

// x + points mixed, then each point widened and narrowed again.
struct Block : Unit {
  Block(std::int64_t points, std::int64_t width, double dropout, std::uint32_t number)
      : mix_norm(register_module("mix_norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))),
        mix(register_module("mix", torch::nn::Linear(points, points))),
        wide_norm(register_module("wide_norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))),
        up(register_module("up", torch::nn::Linear(width, 2 * width))),
        down(register_module("down", torch::nn::Linear(2 * width, width))),
        dropout_(dropout),
        number_(number) {}

  Stream forward(const Stream& x, const Batch& batch) override {
    const torch::Tensor mixed = mix(mix_norm(x[0]).transpose(1, 2)).transpose(1, 2);
    const torch::Tensor y = x[0] + batch.dropout(mixed, dropout_, number_);
    return {y + down(torch::gelu(up(wide_norm(y))))};
  }

  torch::nn::LayerNorm mix_norm;
  torch::nn::Linear mix;
  torch::nn::LayerNorm wide_norm;
  torch::nn::Linear up, down;

 private:
  double dropout_;
  std::uint32_t number_;  // tells this dropout from those of other blocks
};

// [samples, points, width] -> [samples, classes]
struct Head : Unit {
  Head(std::int64_t width, std::int64_t classes)
      : norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))),
        classify(register_module("classify", torch::nn::Linear(width, classes))) {}

  Stream forward(const Stream& x, const Batch&) override { return {classify(norm(x[0]).mean(1))}; }

  torch::nn::LayerNorm norm;
  torch::nn::Linear classify;
};

class Mixer : public lockstep::plugin::Model {
 public:
  explicit Mixer(Options& options) {
    const std::int64_t points = options.integer("points", 32, 2, 4096);
    const std::int64_t width = options.integer("width", 32, 1, 8192);
    const std::int64_t layers = options.integer("layers", 4, 1, 1000);
    const std::int64_t classes = options.integer("classes", 4, 2, 1000);
    const double dropout = options.real("dropout", 0.1, 0.0, 0.9);
    add_unit("embedding", std::make_shared<Embedding>(points, width));
    for (std::int64_t i = 0; i < layers; ++i) {
      add_unit("layers." + std::to_string(i),
               std::make_shared<Block>(points, width, dropout, static_cast<std::uint32_t>(i)));
    }
    add_unit("head", std::make_shared<Head>(width, classes));
  }

  // Cross-entropy, where the job names no other loss.
  lockstep::plugin::Loss loss(const Stream& output, const Batch& batch) override {
    const torch::Tensor logs = torch::log_softmax(output[0], 1);
    auto loss = lockstep::plugin::sum_of_samples(-logs.gather(1, batch.target.unsqueeze(1)).squeeze(1));
    if (!batch.training) loss.correct = (logs.argmax(1) == batch.target).sum().item<std::int64_t>();
    return loss;
  }
};

}  // namespace

LOCKSTEP_REGISTER_MODEL("mixer", Mixer)
