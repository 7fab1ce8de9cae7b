// Six knobs of a data-parallel job: NCCL's algorithm and protocol, the loader, accumulation and micro-batch.
//
// Compute saturates with the micro-batch, the all-reduce hides behind the last backward pass as far as it fits, the
// loader is limited by workers and by the cores they share, and what is measured is useful samples per second: a
// larger global batch makes each sample worth less (gradient noise scale; Qiao et al., Pollux, OSDI 2021).
#include <algorithm>
#include <array>
#include <cmath>

#include "bench/tune/nccl_model.h"
#include "bench/tune/surfaces.h"

namespace lockstep::bench {
namespace {

struct Constants {
  NcclCosts nccl;
  double half_batch = 3;  // micro-batch at which a kernel reaches half its rate
  double volume = 8;      // all-reduce by a ring, in seconds of compute of one sample
  double overlap = 0.8;   // share of the backward pass it can hide behind
  double tail = 0.08;     // of it that never hides
  double decode = 3;      // CPU seconds of one sample per second of compute
  double cores = 8;
  double jitter = 0.4;      // of the loader
  double cushion = 6;       // batches that halve the jitter, about
  double contention = 0.1;  // of too many workers
  double accumulate = 0.3;  // adding gradients up, per micro-batch
  double noise_scale = 64;  // samples per rank at which a sample is worth half
  double optimizer = 1;
  double states = 10;  // memory
  double activation = 1;
  double pinned = 0.004;

  template <class F>
  void each(F change) {
    nccl.each(change);
    for (double* value : {&half_batch, &volume, &overlap, &tail, &decode, &cores, &jitter, &cushion, &contention,
                          &accumulate, &noise_scale, &optimizer, &states, &activation, &pinned}) {
      change(*value);
    }
  }
};

class Nccl6 final : public Surface {
 public:
  explicit Nccl6(int instance) : Surface("nccl6", instance) {
    Draws random = draws(1);
    fabric_ = draw_fabric(random, 16);
    nccl_facts_yaml_ = fabric_.yaml();
    for (SurfaceKnob& knob : nccl_knobs(4)) add_knob(std::move(knob));
    add_rule(nccl_rule(fabric_, {kAlgorithm, kProtocol}));
    using Written = SurfaceKnob::Written;
    add_knob({.name = "num_workers", .levels = levels_between(0, 16), .default_level = 2, .written = Written::kInt});
    std::vector<int> some_workers;
    for (int level = 1; level <= 16; ++level) some_workers.push_back(level);
    add_knob({.name = "prefetch_factor",
              .levels = levels_between(1, 8),
              .default_level = 1,
              .written = Written::kInt,
              .when = "num_workers > 0",
              .parent = kWorkers,
              .parent_levels = some_workers});
    add_knob({.name = "accumulation", .levels = levels_of({1, 2, 3, 4, 6, 8})});
    add_knob({.name = "micro_batch", .levels = levels_of({4, 6, 8, 12, 16, 20, 24, 32, 40, 48, 64})});
    draw_constants(random);
    fit_memory(random.uniform(0.2, 0.5));
  }

 private:
  enum { kAlgorithm, kProtocol, kWorkers, kPrefetch, kAccumulation, kMicroBatch };

  void draw_constants(Draws& random) {
    Constants& c = real_;
    c.nccl = draw_costs(random, fabric_);
    c.half_batch = random.log_uniform(0.7, 7);
    c.volume = random.log_uniform(2, 25);
    c.overlap = random.uniform(0.5, 0.95);
    c.tail = random.uniform(0.03, 0.15);
    c.decode = random.log_uniform(0.5, 4);
    c.cores = random.uniform(3, 14);
    c.jitter = random.uniform(0.1, 0.8);
    c.cushion = random.uniform(3, 20);
    c.contention = random.uniform(0.05, 0.5);
    c.accumulate = random.log_uniform(0.05, 0.8);
    c.noise_scale = random.log_uniform(100, 2000);
    c.optimizer = random.log_uniform(0.3, 4);
    c.states = random.uniform(3, 30);
    c.activation = random.log_uniform(0.4, 2.5);
    c.pinned = random.log_uniform(0.001, 0.01);
    for (double& factor : ripple_) factor = 1 + random.uniform(0, 0.07);
    believed_ = c;
    believed_.each([&](double& value) { value *= std::exp(random.normal(0.3)); });
    believed_.overlap = std::min(believed_.overlap, 1.0);
  }

  // Seconds until the loader has a micro-batch ready, and the slowdown of everything else by its threads.
  static double loader_seconds(const Constants& c, double workers, double prefetch, double micro) {
    const double useful = workers <= c.cores ? workers : c.cores + 0.25 * (workers - c.cores);
    return micro * c.decode / useful * (1 + c.jitter * std::exp(-(workers * prefetch - 1) / c.cushion));
  }

  Prediction predict(PointView p, bool as_believed) const override {
    const Constants& c = as_believed ? believed_ : real_;
    auto number = [&](int knob) {
      const auto k = static_cast<std::size_t>(knob);
      return p[k] < 0 ? 0 : number_of(knobs()[k].levels[static_cast<std::size_t>(p[k])]);
    };
    const double workers = number(kWorkers), prefetch = number(kPrefetch);
    const double micro = number(kMicroBatch), accumulation = number(kAccumulation);
    double compute = micro + c.half_batch;
    if (!as_believed) compute *= ripple_[static_cast<std::size_t>(p[kMicroBatch])];
    compute *= 1 + c.contention * std::max(0.0, workers + 1 - c.cores) / c.cores;
    if (accumulation > 1) compute += c.accumulate;
    double one = compute + micro * c.decode * 0.9;  // no workers: one after the other
    if (workers > 0)
      one = std::pow(std::pow(compute, 6) + std::pow(loader_seconds(c, workers, prefetch, micro), 6), 1.0 / 6);
    const double reduce = c.nccl.seconds(fabric_, p[kAlgorithm], p[kProtocol], c.volume, 10);
    const double backward = 0.66 * compute;
    const double hidden = std::min(reduce * (1 - c.tail), c.overlap * backward);
    const double step =
        accumulation * one + (reduce - hidden) + hidden * c.nccl.slowdown(p[kAlgorithm], p[kProtocol]) + c.optimizer;
    const double samples = micro * accumulation;
    const double worth = (c.noise_scale + 1) / (c.noise_scale + samples);
    const double buffers = 0.3 + (p[kProtocol] == kSimple ? 0.5 : 0.2) + (p[kAlgorithm] >= kNvls ? 0.6 : 0);
    const double memory = c.states + c.activation * micro + buffers + (accumulation > 1 ? 0.06 * c.states : 0) +
                          c.pinned * workers * prefetch * micro;
    return {.step_seconds = step / (samples * worth), .memory = memory};
  }

  NcclFabric fabric_;
  Constants real_, believed_;
  std::array<double, 11> ripple_{};  // of kernels whose tiles do not fill the GPU
};

}  // namespace

std::unique_ptr<Surface> make_nccl6(int instance) { return std::make_unique<Nccl6>(instance); }

}  // namespace lockstep::bench
