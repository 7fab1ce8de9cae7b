// The layout of a large model: tensor, pipeline and data parallel sizes whose product is the number of GPUs, the
// schedule and its virtual stages, recomputation, sequence parallelism, sharded optimizer, and NCCL for the gradients.
#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "bench/tune/nccl_model.h"
#include "bench/tune/surfaces.h"

namespace lockstep::bench {
namespace {

struct Constants {
  NcclCosts nccl;
  double layer_overhead = 0.3;  // of a layer, in compute of one sequence of it
  double tensor_penalty = 0.1;  // of thinner matrices, per doubling
  double tensor_comm = 0.05;    // seconds per sequence and layer within a node
  double across_nodes = 6;      // the same beyond it, times
  double sequence_gain = 0.06;
  double stage_comm = 0.2;   // per sequence sent to the next stage
  double uneven = 0.05;      // embedding and loss make the ends of the pipeline longer
  double zero_bubble = 0.4;  // of 1f1b's bubble
  double split_backward = 0.03;
  double selective = 1.05;
  double full = 1.33;
  double volume = 8;  // gradients of the whole model by a ring, per sequence of compute of all layers
  double overlap = 0.6;
  double optimizer = 0.3;
  double states = 60;     // memory
  double activation = 1;  // of one sequence through all layers

  template <class F>
  void each(F change) {
    nccl.each(change);
    for (double* value : {&layer_overhead, &tensor_penalty, &tensor_comm, &across_nodes, &sequence_gain, &stage_comm,
                          &uneven, &split_backward, &volume, &optimizer, &states, &activation}) {
      change(*value);
    }
  }
};

class Mesh final : public Surface {
 public:
  explicit Mesh(int instance) : Surface("mesh", instance) {
    Draws random = draws(3);
    log2_world_ = 4 + random.below(3);
    log2_batch_ = log2_world_ + 1 + random.below(3);
    layers_ = std::array{24.0, 32.0, 40.0, 48.0}[static_cast<std::size_t>(random.below(4))];
    fabric_ = draw_fabric(random, 1);
    fabric_.nodes = (1 << log2_world_) / fabric_.gpus_per_node;
    nccl_facts_yaml_ = fabric_.yaml();
    const int world = 1 << log2_world_, batch = 1 << log2_batch_;
    add_knob({.name = "tp", .levels = levels_of({1, 2, 4, 8}), .default_level = 3});
    add_knob({.name = "pp", .levels = levels_of({1, 2, 4, 8}), .default_level = std::min(3, log2_world_ - 3)});
    add_knob({.name = "dp",
              .levels = levels_of({1, 2, 4, 8, 16, 32, 64}),
              .default_level = log2_world_ - 3 - std::min(3, log2_world_ - 3)});
    add_knob({.name = "micro_batch", .levels = levels_of({1, 2, 4, 8})});
    add_knob({.name = "schedule",
              .levels = levels_of({"1f1b", "interleaved", "zero_bubble"}),
              .when = "pp > 1",
              .parent = kPp,
              .parent_levels = {1, 2, 3}});
    add_knob({.name = "virtual_stages",
              .levels = levels_of({2, 3, 4, 6}),
              .when = "schedule == \"interleaved\"",
              .parent = kSchedule,
              .parent_levels = {1}});
    add_knob({.name = "recompute", .levels = levels_of({"none", "selective", "full"}), .default_level = 2});
    add_knob({.name = "sequence_parallel",
              .levels = levels_bool(),
              .when = "tp > 1",
              .parent = kTp,
              .parent_levels = {1, 2, 3}});
    add_knob({.name = "sharded_optimizer", .levels = levels_bool(), .default_level = 1});
    for (SurfaceKnob& knob : nccl_knobs(4)) add_knob(std::move(knob));
    const int log2_world = log2_world_, log2_batch = log2_batch_;
    add_rule({.text = fmt::format("tp * pp * dp == {}", world), .knobs = {kTp, kPp, kDp}, .holds = [=](PointView p) {
                return p[kTp] + p[kPp] + p[kDp] == log2_world;
              }});
    add_rule({.text = fmt::format("dp * micro_batch <= {}", batch),
              .knobs = {kDp, kMicroBatch},
              .holds = [=](PointView p) { return p[kDp] + p[kMicroBatch] <= log2_batch; }});
    add_rule(nccl_rule(fabric_, {kAlgorithm, kProtocol}));
    draw_constants(random);
    fit_memory(random.uniform(0.3, 0.65));
  }

 private:
  enum { kTp, kPp, kDp, kMicroBatch, kSchedule, kVirtual, kRecompute, kSequence, kSharded, kAlgorithm, kProtocol };
  enum { k1f1b, kInterleaved, kZeroBubble };

  void draw_constants(Draws& random) {
    Constants& c = real_;
    c.nccl = draw_costs(random, fabric_);
    c.layer_overhead = random.log_uniform(0.03, 0.4);
    c.tensor_penalty = random.uniform(0.02, 0.1);
    c.tensor_comm = random.log_uniform(0.01, 0.08);
    c.across_nodes = random.uniform(4, 12);
    c.sequence_gain = random.uniform(-0.03, 0.12);
    c.stage_comm = random.log_uniform(0.03, 0.4);
    c.uneven = random.uniform(0, 0.15);
    c.zero_bubble = random.uniform(0.2, 0.6);
    c.split_backward = random.uniform(0, 0.07);
    c.selective = random.uniform(1.02, 1.12);
    c.full = random.uniform(1.27, 1.38);
    c.volume = random.log_uniform(0.3, 4);
    c.overlap = random.uniform(0.2, 0.9);
    c.optimizer = random.log_uniform(0.05, 1);
    c.states = random.log_uniform(30, 300);
    c.activation = random.log_uniform(2, 16);
    for (double& factor : ripple_) factor = 1 + random.uniform(0, 0.06);
    believed_ = c;
    believed_.each([&](double& value) { value *= std::exp(random.normal(0.3)); });
  }

  struct Shape {
    double tp, pp, dp, micro, count;  // count: micro-batches a replica runs per step
    double chunks = 1;                // virtual stages
  };

  Shape shape_of(PointView p) const {
    Shape s{.tp = std::exp2(p[kTp]),
            .pp = std::exp2(p[kPp]),
            .dp = std::exp2(p[kDp]),
            .micro = std::exp2(p[kMicroBatch]),
            .count = std::exp2(log2_batch_ - p[kDp] - p[kMicroBatch])};
    if (p[kVirtual] >= 0) s.chunks = number_of(knobs()[kVirtual].levels[static_cast<std::size_t>(p[kVirtual])]);
    return s;
  }

  // One micro-batch through one stage, forward and backward.
  double stage_seconds(const Constants& c, const Shape& s, PointView p, bool as_believed) const {
    double layer = (s.micro / s.tp) * (1 + c.tensor_penalty * p[kTp]) + c.layer_overhead;
    layer *= std::array{1.0, c.selective, c.full}[static_cast<std::size_t>(p[kRecompute])];
    if (!as_believed) layer *= ripple_[static_cast<std::size_t>(4 * p[kTp] + p[kMicroBatch])];
    if (s.tp > 1) {
      const double slow = s.tp > fabric_.gpus_per_node ? c.across_nodes : 1;
      layer += c.tensor_comm * slow * s.micro * 2 * (s.tp - 1) / s.tp * (p[kSequence] == 1 ? 1 - c.sequence_gain : 1);
    }
    return layer * (layers_ / s.pp) * (s.pp > 1 ? 1 + c.uneven : 1);
  }

  double bubble(const Constants& c, const Shape& s, int schedule) const {
    if (s.pp == 1) return 0;
    const double slots = (s.pp - 1) / s.count;
    if (schedule == kInterleaved) return slots / s.chunks;
    return schedule == kZeroBubble ? slots * c.zero_bubble : slots;
  }

  double memory_of(const Constants& c, const Shape& s, PointView p) const {
    const double split = s.tp * s.pp;
    const double states = c.states / split * (p[kSharded] == 1 ? 0.35 + 0.65 / s.dp : 1);
    const double kept = std::array{1.0, 0.55, 0.13}[static_cast<std::size_t>(p[kRecompute])];
    double in_flight = std::min(s.pp, s.count);
    if (p[kSchedule] == kInterleaved) in_flight *= 1 + (s.pp - 1) / (s.pp * s.chunks);
    if (p[kSchedule] == kZeroBubble) in_flight *= 1.35;
    const double over_tensor = p[kSequence] == 1 ? 1 / s.tp : 0.3 + 0.7 / s.tp;
    return states + c.activation * s.micro * kept * over_tensor * in_flight / s.pp + 1.5 +
           (p[kAlgorithm] >= kNvls ? 0.4 : 0);
  }

  Prediction predict(PointView p, bool as_believed) const override {
    const Constants& c = as_believed ? believed_ : real_;
    const Shape s = shape_of(p);
    double stage = stage_seconds(c, s, p, as_believed);
    if (p[kSchedule] == kZeroBubble) stage *= 1 + c.split_backward;
    if (s.pp > 1) stage += c.stage_comm * s.micro * s.chunks / (p[kSequence] == 1 ? s.tp : 1);
    double step = stage * s.count * (1 + bubble(c, s, p[kSchedule]));
    if (s.dp > 1) {
      const double piece = c.volume * layers_ / (s.tp * s.pp) * 2 * (s.dp - 1) / s.dp;
      const double reduce =
          c.nccl.seconds(fabric_, p[kAlgorithm], p[kProtocol], piece, 0.1 * c.volume * layers_ / s.pp);
      const double hidden = std::min(c.overlap * 0.6 * stage, 0.95 * reduce);
      step += reduce - hidden + hidden * c.nccl.slowdown(p[kAlgorithm], p[kProtocol]);
    }
    step += c.optimizer * layers_ / (s.tp * s.pp) / (p[kSharded] == 1 ? s.dp : 1);
    // An interleaved schedule runs micro-batches in groups of the pipeline's size, over whole layers.
    const bool refused = p[kSchedule] == kInterleaved && (s.count < s.pp || std::fmod(layers_, s.pp * s.chunks) != 0);
    return {.step_seconds = step, .memory = memory_of(c, s, p), .refused = refused && !as_believed};
  }

  int log2_world_ = 5;
  int log2_batch_ = 7;
  double layers_ = 32;
  NcclFabric fabric_;
  Constants real_, believed_;
  std::array<double, 16> ripple_{};
};

}  // namespace

std::unique_ptr<Surface> make_mesh(int instance) { return std::make_unique<Mesh>(instance); }

}  // namespace lockstep::bench
