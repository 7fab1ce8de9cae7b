// Nine knobs of a large model under ZeRO: stage, offload, recomputation, micro-batch and accumulation (their product is
// fixed), bucket size, precision, NCCL channels and CPU threads. The memory cliff runs across stage x recomputation x
// micro-batch x precision.
#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "bench/tune/surfaces.h"

namespace lockstep::bench {
namespace {

struct Constants {
  double half_batch = 1;  // micro-batch of half rate with bf16
  double tf32 = 2.2;      // time of compute against bf16
  double fp8 = 0.75;
  double fp8_cast = 0.3;    // per micro-batch
  double selective = 1.06;  // time of compute
  double full = 1.33;
  double volume = 6;      // seconds to reduce all gradients at full bandwidth
  double latency = 0.02;  // per bucket
  double overlap = 0.8;
  double half_channels = 4;     // channels of half the bandwidth
  double interference = 0.006;  // of each channel with compute
  double host_adam = 10;        // seconds with one thread
  double pcie = 1;
  double cores = 12;       // per rank
  double launch = 0.1;     // slowdown of the launching thread when cores are taken
  double gather = 0.8;     // of a stage-3 gather against reducing
  double parameters = 10;  // memory of parameters in 2 bytes
  double ranks = 16;
  double activation = 2;  // memory of one sample in bf16 without recomputation
  double selective_memory = 0.55;
  double full_memory = 0.12;

  template <class F>
  void each(F change) {
    for (double* value : {&half_batch, &tf32, &fp8_cast, &volume, &latency, &half_channels, &interference, &host_adam,
                          &pcie, &cores, &launch, &gather, &parameters, &activation}) {
      change(*value);
    }
  }
};

class Zero9 final : public Surface {
 public:
  explicit Zero9(int instance) : Surface("zero9", instance) {
    Draws random = draws(2);
    const int log2_product = 4 + random.below(3);
    const int product = 1 << log2_product;
    using Written = SurfaceKnob::Written;
    add_knob({.name = "zero", .levels = levels_of({0, 1, 2, 3}), .default_level = 3});
    add_knob({.name = "offload_optimizer",
              .levels = levels_bool(),
              .when = "zero > 0",
              .parent = kStage,
              .parent_levels = {1, 2, 3}});
    add_knob({.name = "recompute", .levels = levels_of({"none", "selective", "full"}), .default_level = 2});
    add_knob({.name = "micro_batch", .levels = levels_of({1, 2, 4, 8, 16, 32})});
    add_knob({.name = "accumulation", .levels = levels_of({1, 2, 4, 8, 16, 32, 64}), .default_level = log2_product});
    add_knob(
        {.name = "bucket_mib", .levels = levels_between(4, 128), .default_level = 21, .written = Written::kLogInt});
    add_knob({.name = "precision", .levels = levels_of({"tf32", "bf16", "fp8"}), .default_level = 1});
    add_knob({.name = "channels", .levels = levels_of({1, 2, 4, 8, 16, 32}), .default_level = 4});
    add_knob({.name = "omp_threads", .levels = levels_of({1, 2, 4, 8, 16})});
    add_rule({.text = fmt::format("micro_batch * accumulation == {}", product),
              .knobs = {kMicroBatch, kAccumulation},
              .holds = [product](PointView p) { return (1 << p[kMicroBatch]) * (1 << p[kAccumulation]) == product; }});
    draw_constants(random);
    fit_memory(random.uniform(0.3, 0.65));
  }

 private:
  enum { kStage, kOffload, kRecompute, kMicroBatch, kAccumulation, kBucket, kPrecision, kChannels, kThreads };

  void draw_constants(Draws& random) {
    Constants& c = real_;
    c.half_batch = random.log_uniform(0.2, 1.5);
    c.tf32 = random.uniform(1.25, 1.7);
    c.fp8 = random.uniform(0.8, 1.1);
    c.fp8_cast = random.log_uniform(0.05, 0.6);
    c.selective = random.uniform(1.02, 1.12);
    c.full = random.uniform(1.27, 1.38);
    c.volume = random.log_uniform(0.3, 3);
    c.latency = random.log_uniform(0.002, 0.03);
    c.overlap = random.uniform(0.5, 0.95);
    c.half_channels = random.log_uniform(0.7, 5);
    c.interference = random.log_uniform(0.002, 0.015);
    c.host_adam = random.log_uniform(1, 15);
    c.pcie = random.log_uniform(0.2, 2);
    c.cores = random.uniform(4, 18);
    c.launch = random.uniform(0.05, 0.3);
    c.gather = random.uniform(0.5, 1.0);
    c.parameters = random.log_uniform(2, 30);
    c.ranks = 2 << random.below(4);
    c.activation = random.log_uniform(0.8, 6);
    c.selective_memory = random.uniform(0.4, 0.7);
    c.full_memory = random.uniform(0.06, 0.2);
    for (auto& row : ripple_) {
      for (double& factor : row) factor = 1 + random.uniform(0, 0.06);
    }
    believed_ = c;
    believed_.each([&](double& value) { value *= std::exp(random.normal(0.3)); });
  }

  double number(PointView p, int knob) const {
    const auto k = static_cast<std::size_t>(knob);
    return number_of(knobs()[k].levels[static_cast<std::size_t>(p[k])]);
  }

  double compute_seconds(const Constants& c, PointView p, bool as_believed) const {
    const double rate = std::array{c.tf32, 1.0, c.fp8}[static_cast<std::size_t>(p[kPrecision])];
    const double again = std::array{1.0, c.selective, c.full}[static_cast<std::size_t>(p[kRecompute])];
    double seconds = (number(p, kMicroBatch) + c.half_batch) * rate * again;
    if (p[kPrecision] == 2) seconds += c.fp8_cast;
    if (!as_believed) {
      seconds *= ripple_[static_cast<std::size_t>(p[kPrecision])][static_cast<std::size_t>(p[kMicroBatch])];
    }
    // The thread that launches kernels wants a core of its own, and a second helps the loader.
    const double threads = number(p, kThreads);
    const double crowded = std::max(0.0, threads + 2 - c.cores) / c.cores;
    return seconds * (1 + c.launch * crowded + 0.25 * c.launch / threads);
  }

  double memory_of(const Constants& c, PointView p) const {
    const double share = 1 / c.ranks;
    const int stage = p[kStage];
    const double width = p[kPrecision] == 0 ? 1.6 : 1.0;
    double states = c.parameters * width * (stage >= 3 ? 1.15 * share + 0.05 : 1);
    states += c.parameters * width * (stage >= 2 ? share : 1);
    if (p[kOffload] != 1) states += 6 * c.parameters * (stage >= 1 ? share : 1);
    const double kept = std::array{1.0, c.selective_memory, c.full_memory}[static_cast<std::size_t>(p[kRecompute])];
    const double activation_width = std::array{1.7, 1.0, 0.85}[static_cast<std::size_t>(p[kPrecision])];
    const double buckets = (stage >= 2 ? 3.0 : 2.0) * number(p, kBucket) / 1024;
    return states + c.activation * kept * activation_width * number(p, kMicroBatch) + buckets +
           0.02 * number(p, kChannels) + 1;
  }

  // Seconds of communication that nothing hides, and the slowdown of what it hides behind.
  double exposed_seconds(const Constants& c, PointView p, double compute) const {
    const double channels = number(p, kChannels), accumulation = number(p, kAccumulation), bucket = number(p, kBucket);
    const double width = p[kPrecision] == 0 ? 2.0 : 1.0;
    const double volume = c.volume * width * (channels + c.half_channels) / channels;
    const double buckets = 40 * 25 / bucket;  // of a model of 1000 MiB
    const double once = volume + buckets * c.latency * (1 + 0.02 * channels);
    const double tail = volume * bucket / 1000;
    const double times = p[kStage] >= 2 ? accumulation : 1;  // stages 2 and 3 reduce every micro-batch
    const double hideable = c.overlap * 0.66 * compute * (p[kStage] >= 2 ? accumulation : 1);
    double total = once * times;
    double room = hideable;
    if (p[kStage] == 3) {
      total += 2 * c.gather * once * accumulation;
      room += c.overlap * 0.34 * compute * accumulation;
    }
    const double hidden = std::min(total, room);
    return std::max(total - hidden, tail * times) + hidden * c.interference * channels;
  }

  Prediction predict(PointView p, bool as_believed) const override {
    const Constants& c = as_believed ? believed_ : real_;
    const double accumulation = number(p, kAccumulation), samples = accumulation * number(p, kMicroBatch);
    const double compute = compute_seconds(c, p, as_believed);
    double step = accumulation * compute + exposed_seconds(c, p, compute);
    const double share = p[kStage] > 0 ? 1 / c.ranks : 1;
    if (p[kOffload] == 1) {
      const double threads = std::min(number(p, kThreads), c.cores);
      step += c.host_adam / threads * 4 * share + c.pcie;
    } else {
      step += 0.8 * share;
    }
    return {.step_seconds = step / samples, .memory = memory_of(c, p)};
  }

  Constants real_, believed_;
  std::array<std::array<double, 6>, 3> ripple_{};
};

}  // namespace

std::unique_ptr<Surface> make_zero9(int instance) { return std::make_unique<Zero9>(instance); }

}  // namespace lockstep::bench
