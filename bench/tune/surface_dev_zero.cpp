// dev_zero: one large model under ZeRO with the micro-batch, offload, recomputation and buckets of DeepSpeed. What is
// saved on the device is paid on links and host: optimizer on CPU threads, parameters over PCIe. The global batch is
// fixed, and the program refuses a micro-batch that does not divide it, or offload without partitioning.
#include <algorithm>
#include <array>
#include <cmath>

#include "bench/tune/lab_families.h"
#include "bench/tune/lab_surface.h"

namespace lockstep::bench {
namespace {

class DevZero final : public LabSurface {
 public:
  explicit DevZero(int instance) : LabSurface("dev_zero", instance) {
    add_knob(choices_knob("zero_stage", levels_of({0, 1, 2, 3}), 3));
    add_knob(choices_knob("offload", levels_of({"none", "optimizer", "optimizer_and_params"}), 1));
    add_knob(choices_knob("activation_checkpointing", levels_of({"none", "selective", "full"}), 2));
    add_knob(choices_knob("micro_batch", levels_of({1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48})));
    add_knob(choices_knob("reduce_bucket_mb", levels_of({8, 16, 32, 64, 128, 256, 512, 1024}), 6));
    add_knob(only_when(choices_knob("allgather_bucket_mb", levels_of({8, 32, 128, 512, 2048}), 3), "zero_stage > 0",
                       kStage, {1, 2, 3}));
    add_knob(choices_knob("overlap_comm", levels_bool()));
    add_knob(only_when(choices_knob("max_live_parameters_m", levels_of({50, 200, 1000, 4000}), 2), "zero_stage == 3",
                       kStage, {3}));
    add_knob(only_when(int_knob("cpu_adam_threads", 1, 16, 4), "offload != \"none\"", kOffload, {1, 2}));
    add_knob(choices_knob("pin_memory", levels_bool(), 1));
    Draws random = draws(1);
    batch_ = std::array{48, 96, 64, 72}[static_cast<std::size_t>(random.below(4))];
    parameters_ = random.log_uniform(1, 14);
    ranks_ = 4 << random.below(4);
    sample_ = random.log_uniform(20, 140);
    fixed_ = random.log_uniform(8, 120);
    selective_ = random.uniform(1.03, 1.12);
    full_ = random.uniform(1.26, 1.36);
    link_ = random.log_uniform(8, 120);
    latency_ = random.log_uniform(0.05, 1.5);
    overlap_ = random.uniform(0.4, 0.9);
    interference_ = random.uniform(0.03, 0.2);
    pcie_ = random.log_uniform(8, 40);
    adam_ = random.log_uniform(60, 500);
    cores_ = random.uniform(4, 14);
    activation_ = random.log_uniform(0.6, 3.5);
    live_ = random.uniform(1, 4);
    fit(random.uniform(0.3, 0.5), random.uniform(0.1, 0.25));
  }

 private:
  enum { kStage, kOffload, kRecompute, kMicro, kReduce, kGather, kOverlap, kLive, kThreads, kPinned };

  // Moving the gradients and what the stage gathers, per step. [ms]
  double communication_ms(PointView p, double passes) const {
    const int stage = level(p, kStage);
    const double megabytes = 2000 * parameters_;
    const double reduce_buckets = std::max(1.0, megabytes / number(p, kReduce));
    // Stage 2 and 3 partition gradients at every pass, the others once a step.
    const double times = stage >= 2 ? passes : 1;
    double ms = times * (megabytes / link_ * (stage == 0 ? 2 : 1) + latency_ * reduce_buckets);
    if (stage > 0)
      ms += (stage == 3 ? 2 * passes : 1) * (megabytes / link_ + latency_ * megabytes / number(p, kGather));
    // Parameters that may stay alive are not gathered again by the backward pass.
    if (stage == 3) ms *= 1 - 0.35 * std::min(1.0, number(p, kLive) / (1000 * parameters_));
    return ms;
  }

  double offload_ms(PointView p, double passes) const {
    if (level(p, kOffload) == 0) return 0;
    const double shard = parameters_ / ranks_;
    const double threads = number(p, kThreads);
    const double speed = std::min(threads, cores_) - 0.3 * std::max(0.0, threads - cores_);
    const double copies = 1000 * shard * 4 / pcie_ * (on(p, kPinned) ? 1 : 2.2);
    double ms = adam_ * shard / std::max(0.5, speed) + copies;
    if (level(p, kOffload) == 2) ms += passes * copies;
    return ms;
  }

  double device_of(PointView p) const {
    const int stage = level(p, kStage), offload = level(p, kOffload);
    const double optimizer = 12 * parameters_ / (stage >= 1 ? ranks_ : 1) * (offload > 0 ? 0.05 : 1);
    const double gradients = 2 * parameters_ / (stage >= 2 ? ranks_ : 1);
    double weights = 2 * parameters_ / (stage == 3 ? ranks_ : 1) * (offload == 2 ? 0.2 : 1);
    if (stage == 3) weights += live_ * 0.002 * std::min(number(p, kLive), 1000 * parameters_);
    const double kept = std::array{1.0, 0.5, 0.12}[static_cast<std::size_t>(level(p, kRecompute))];
    return optimizer + gradients + weights + activation_ * kept * number(p, kMicro) +
           0.002 * (number(p, kReduce) * (on(p, kOverlap) ? 2.2 : 1) + number(p, kGather));
  }

  Load load(PointView p) const override {
    const int stage = level(p, kStage), offload = level(p, kOffload);
    const double micro = number(p, kMicro);
    if (batch_ % static_cast<int>(micro) != 0)
      return {
          .refused =
              "AssertionError: train_batch_size is not equal to micro_batch_per_gpu * gradient_acc_step * world_size"};
    if (offload >= 1 && stage == 0) return {.refused = "ValueError: optimizer offload needs ZeRO stage 1 or higher"};
    if (offload == 2 && stage != 3) return {.refused = "ValueError: parameter offload needs ZeRO stage 3"};
    const double passes = batch_ / micro;
    const double slower = std::array{1.0, selective_, full_}[static_cast<std::size_t>(level(p, kRecompute))];
    double compute = passes * (fixed_ + sample_ * micro) * slower;
    const double moved = communication_ms(p, passes);
    double shown = moved;
    if (on(p, kOverlap)) {
      const double hidden = std::min(moved * (1 - 0.1 * number(p, kReduce) / 1024), overlap_ * compute);
      shown = moved - hidden + interference_ * hidden;
    }
    if (on(p, kPinned) && offload == 0) compute *= 0.995;
    const double optimizer = offload > 0 ? offload_ms(p, passes) : 12 * parameters_ / (stage >= 1 ? ranks_ : 1);
    const double host =
        (offload > 0 ? 16 * parameters_ / ranks_ * (offload == 2 ? 1.3 : 1) : 0.5) * (on(p, kPinned) ? 1.4 : 1) +
        0.1 * number(p, kThreads);
    return {.step_seconds = compute + shown + optimizer, .device = device_of(p), .host = host};
  }

  int batch_, ranks_;
  double parameters_, sample_, fixed_, selective_, full_, link_, latency_, overlap_, interference_, pcie_, adam_,
      cores_, activation_, live_;
};

}  // namespace

std::unique_ptr<Surface> make_dev_zero(int instance) { return std::make_unique<DevZero>(instance); }

}  // namespace lockstep::bench
