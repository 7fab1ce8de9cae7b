// final_pipeline: how a model lies on a fixed number of GPUs. Pipelines have bubbles and keep activations of what is in
// flight, tensor ranks talk in every layer, replicas once a step. What is left over replicates; the program refuses
// layouts that do not divide.
#include <algorithm>
#include <array>
#include <cmath>

#include "bench/tune/lab_families.h"
#include "bench/tune/lab_surface.h"

namespace lockstep::bench {
namespace {

class FinalPipeline final : public LabSurface {
 public:
  explicit FinalPipeline(int instance) : LabSurface("final_pipeline", instance) {
    add_knob(choices_knob("tensor_model_parallel_size", levels_of({1, 2, 4, 8})));
    add_knob(choices_knob("pipeline_model_parallel_size", levels_of({1, 2, 3, 4, 6, 8, 12, 16}), 3));
    add_knob(choices_knob("micro_batch_size", levels_of({1, 2, 3, 4, 6, 8})));
    add_knob(choices_knob("schedule", levels_of({"gpipe", "1f1b", "interleaved", "zero_bubble"}), 1));
    add_knob(only_when(int_knob("virtual_stages", 2, 6, 2), "schedule == \"interleaved\"", kSchedule, {2}));
    add_knob(choices_knob("recompute", levels_of({"off", "attention", "full"}), 2));
    add_knob(only_when(int_knob("recompute_layers_percent", 10, 100, 100), "recompute == \"full\"", kRecompute, {2}));
    add_knob(choices_knob("sequence_parallel", levels_bool()));
    add_knob(choices_knob("distributed_optimizer", levels_bool()));
    add_knob(choices_knob("overlap_p2p", levels_bool()));
    add_knob(choices_knob("uneven_first_stage", levels_of({0, 1, 2, 3})));
    Draws random = draws(1);
    world_ = std::array{48, 64, 96, 128}[static_cast<std::size_t>(random.below(4))];
    batch_ = world_ * (4 + 4 * random.below(4));
    layers_ = std::array{36, 48, 72, 96}[static_cast<std::size_t>(random.below(4))];
    kernel_ = random.log_uniform(0.05, 0.9);
    narrow_ = random.uniform(0.02, 0.14);
    tensor_link_ = random.log_uniform(0.02, 0.25);
    stage_link_ = random.log_uniform(0.01, 0.3);
    replica_link_ = random.log_uniform(2, 60);
    overlap_ = random.uniform(0.2, 0.8);
    head_ = random.uniform(0.3, 3.2);
    attention_ = random.uniform(0.03, 0.15);
    bubble_left_ = random.uniform(0.1, 0.45);
    parameters_ = random.log_uniform(80, 800);
    activation_ = random.log_uniform(4, 40);
    fit(random.uniform(0.45, 0.65), 0);
  }

 private:
  enum { kTensor, kStages, kMicro, kSchedule, kChunks, kRecompute, kPercent, kSequence, kSharded, kOverlap, kUneven };
  enum { kGpipe, k1f1b, kInterleaved, kZeroBubble };

  double layer_seconds(PointView p) const {
    const double tensor = number(p, kTensor), micro = number(p, kMicro);
    double seconds = micro / tensor * (1 + narrow_ * std::log2(tensor) * (tensor == 8 ? 1.6 : 1)) + kernel_;
    const double again = level(p, kRecompute) == 0   ? 0
                         : level(p, kRecompute) == 1 ? attention_
                                                     : 0.33 * number(p, kPercent) / 100;
    seconds *= 1 + again;
    if (tensor > 1) {
      const double moved = tensor_link_ * micro * 2 * (tensor - 1) / tensor;
      seconds += on(p, kSequence) ? moved * 0.94 : moved + 0.05 * micro * (tensor - 1) / tensor;
    }
    return seconds;
  }

  double memory_of(PointView p, double replicas, double count) const {
    const double tensor = number(p, kTensor), stages = number(p, kStages), micro = number(p, kMicro);
    double in_flight = std::min(stages, count);
    if (level(p, kSchedule) == kGpipe) in_flight = count;
    if (level(p, kSchedule) == kInterleaved) in_flight *= 1 + (stages - 1) / (stages * number(p, kChunks));
    if (level(p, kSchedule) == kZeroBubble) in_flight *= 1.25;
    double kept = level(p, kRecompute) == 1 ? 0.6 : 1;
    if (level(p, kRecompute) == 2) kept = 1 - 0.9 * number(p, kPercent) / 100;
    const double split = on(p, kSequence) ? 1 / tensor : 0.35 + 0.65 / tensor;
    const double states = parameters_ / (tensor * stages);
    return states * (0.4 + 0.6 * (on(p, kSharded) ? 1 / replicas : 1)) +
           activation_ * micro * kept * split * in_flight / stages + 0.1 * activation_ * micro * split;
  }

  std::string refusal(PointView p) const {
    const int tensor = static_cast<int>(number(p, kTensor)), stages = static_cast<int>(number(p, kStages));
    if (world_ % (tensor * stages) != 0)
      return "AssertionError: world size is not divisible by tensor x pipeline parallel size";
    const int per_step = world_ / (tensor * stages) * static_cast<int>(number(p, kMicro));
    if (batch_ % per_step != 0)
      return "AssertionError: global batch size is not divisible by micro batch size times data parallel size";
    if (layers_ % stages != 0) return "AssertionError: number of layers is not divisible by pipeline parallel size";
    if (level(p, kSchedule) != kInterleaved) return "";
    if (stages == 1) return "AssertionError: interleaved schedule needs a pipeline of more than one stage";
    if (layers_ % (stages * static_cast<int>(number(p, kChunks))) != 0)
      return "AssertionError: number of layers is not divisible by stages times virtual stages";
    return batch_ / per_step % stages != 0
               ? "AssertionError: interleaved schedule needs micro batches divisible by stages"
               : "";
  }

  Load load(PointView p) const override {
    if (std::string message = refusal(p); !message.empty()) return {.refused = std::move(message)};
    const double tensor = number(p, kTensor), stages = number(p, kStages), micro = number(p, kMicro);
    const double replicas = world_ / (tensor * stages), count = batch_ / (replicas * micro);
    const double layer = layer_seconds(p);
    // The head makes the last stage longer; layers taken from the ends make up for it.
    const double usual = layers_ / stages * layer;
    const double ends = usual + (head_ - number(p, kUneven)) * layer,
                 others = usual + number(p, kUneven) * layer / std::max(1.0, stages - 1);
    double stage = stages > 1 ? std::max(ends, others) : usual + head_ * layer;
    const double chunks = level(p, kSchedule) == kInterleaved ? number(p, kChunks) : 1;
    if (stages > 1)
      stage +=
          stage_link_ * micro * chunks * (on(p, kOverlap) && level(p, kSchedule) != kGpipe ? 0.35 : 1) + 0.02 * chunks;
    double slots = (stages - 1) / chunks;
    if (level(p, kSchedule) == kZeroBubble) {
      slots *= bubble_left_;
      stage *= 1.025;
    }
    double step = stage * (count + slots);
    if (replicas > 1) {
      const double reduce = replica_link_ * layers_ / (tensor * stages) * 2 * (replicas - 1) / replicas;
      step += reduce - std::min(0.9 * reduce, overlap_ * stage * 0.6 * (on(p, kSharded) ? 1.3 : 1));
    }
    step += 0.3 * layers_ / (tensor * stages) / (on(p, kSharded) ? replicas : 1);
    return {.step_seconds = step, .device = memory_of(p, replicas, count)};
  }

  int world_, batch_, layers_;
  double kernel_, narrow_, tensor_link_, stage_link_, replica_link_, overlap_, head_, attention_, bubble_left_,
      parameters_, activation_;
};

}  // namespace

std::unique_ptr<Surface> make_final_pipeline(int instance) { return std::make_unique<FinalPipeline>(instance); }

}  // namespace lockstep::bench
