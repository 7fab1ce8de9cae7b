// dev_ddp: replicas that reduce gradients in buckets behind the last backward pass, fed by loader processes. Device
// memory grows with the micro-batch, buckets and channels; host memory with workers x prefetch x micro-batch, so a
// large micro-batch needs fewer workers. Useful samples count: beyond a critical batch each is worth less (McCandlish
// et al. 2018).
#include <algorithm>
#include <array>
#include <cmath>

#include "bench/tune/lab_families.h"
#include "bench/tune/lab_surface.h"

namespace lockstep::bench {
namespace {

class DevDdp final : public LabSurface {
 public:
  explicit DevDdp(int instance) : LabSurface("dev_ddp", instance) {
    add_knob(choices_knob("NCCL_ALGO", levels_of({"Ring", "Tree"})));
    add_knob(choices_knob("NCCL_PROTO", levels_of({"LL", "LL128", "Simple"}), 2));
    add_knob(choices_knob("NCCL_MIN_NCHANNELS", levels_of({1, 2, 4, 8, 16, 32}), 1));
    add_knob(log_int_knob("bucket_cap_mb", 1, 256, 25));
    add_knob(int_knob("num_workers", 0, 24, 2));
    add_knob(only_when(int_knob("prefetch_factor", 1, 12, 2), "num_workers > 0", kWorkers, levels_from(1, 24)));
    add_knob(choices_knob("pin_memory", levels_bool()));
    add_knob(
        choices_knob("micro_batch", levels_of({1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128}), 5));
    add_knob(choices_knob("accumulation", levels_of({1, 2, 4, 8, 16})));
    Draws random = draws(1);
    gradient_mb_ = random.log_uniform(60, 1500);
    bandwidth_ = random.log_uniform(1.5, 40);
    hop_ = random.log_uniform(0.02, 0.6);
    ranks_ = 4 << random.below(5);
    tree_bandwidth_ = random.uniform(0.75, 1.05);
    half_channels_ = random.log_uniform(0.8, 6);
    sm_ = random.uniform(0.002, 0.012);
    sample_ = random.log_uniform(0.8, 9);
    fixed_ = random.log_uniform(2, 40);
    odd_ = random.uniform(0.02, 0.09);
    decode_ = random.log_uniform(0.6, 2.2) * sample_ * random.log_uniform(2, 6);
    cores_ = random.uniform(4, 18);
    burst_ = random.uniform(0.2, 1.2);
    copy_ = random.uniform(0.02, 0.12) * sample_;
    critical_ = random.log_uniform(600, 60'000);
    states_ = random.uniform(10, 35);
    activation_ = random.log_uniform(0.3, 1.6);
    base_process_ = random.uniform(4, 30);
    fit(random.uniform(0.2, 0.4), random.uniform(0.15, 0.4));
  }

 private:
  enum { kAlgorithm, kProtocol, kChannels, kBucket, kWorkers, kPrefetch, kPinned, kMicro, kAccumulation };

  double reduce_ms(PointView p, double megabytes) const {
    const double channels = number(p, kChannels);
    const auto protocol = static_cast<std::size_t>(level(p, kProtocol));
    const bool tree = level(p, kAlgorithm) == 1;
    const double hops = tree ? 2 * std::log2(ranks_) : 2 * (ranks_ - 1);
    const double latency = hop_ * hops * std::array{0.25, 0.45, 1.0}[protocol] * (1 + 0.02 * channels);
    const double rate = bandwidth_ * channels / (channels + half_channels_) * std::array{0.3, 0.92, 1.0}[protocol] *
                        (tree ? tree_bandwidth_ : 1);
    return latency + megabytes / rate;
  }

  double compute_ms(PointView p) const {
    const double micro = number(p, kMicro);
    double ms = fixed_ + sample_ * micro * (std::fmod(micro, 8) == 0 ? 1 : 1 + odd_);
    const double busy = number(p, kWorkers) + 1;
    ms *= 1 + 0.15 * std::max(0.0, busy - cores_) / cores_;
    return ms + copy_ * micro * (on(p, kPinned) ? 0.2 : 1);
  }

  double loader_ms(PointView p) const {
    const double workers = number(p, kWorkers), micro = number(p, kMicro);
    const double running = std::min(workers, cores_) + 0.2 * std::max(0.0, workers - cores_);
    const double queue = workers * number(p, kPrefetch);
    return micro * decode_ / running * (1 + burst_ / std::sqrt(queue));
  }

  Load load(PointView p) const override {
    const double micro = number(p, kMicro), accumulation = number(p, kAccumulation), workers = number(p, kWorkers);
    const double bucket = std::min(number(p, kBucket), gradient_mb_);
    const double compute = compute_ms(p);
    const double one = workers > 0 ? std::hypot(std::max(compute, loader_ms(p)), 0.25 * std::min(compute, loader_ms(p)))
                                   : compute + micro * decode_;
    const double buckets = std::ceil(gradient_mb_ / bucket);
    const double all = buckets * reduce_ms(p, gradient_mb_ / buckets);
    const double tail = all / buckets;
    const double hidden = std::min(all - tail, 0.6 * compute);
    const double slowed = hidden * sm_ * number(p, kChannels) * (level(p, kProtocol) == 0 ? 1.5 : 1);
    const double wall = one * accumulation + all - hidden + slowed;
    const double samples = micro * accumulation;
    const double device = states_ + activation_ * micro + 0.002 * bucket + 0.06 * number(p, kChannels) +
                          (accumulation > 1 ? 0.1 * states_ : 0);
    const double host = workers * (base_process_ + number(p, kPrefetch) * micro) * (on(p, kPinned) ? 1.15 : 1);
    return {.step_seconds = wall / (samples * critical_ / (critical_ + samples * ranks_)),
            .wall_seconds = wall,
            .device = device,
            .host = host};
  }

  double gradient_mb_, bandwidth_, hop_, tree_bandwidth_, half_channels_, sm_, sample_, fixed_, odd_, decode_, cores_,
      burst_, copy_, critical_, states_, activation_, base_process_;
  int ranks_;
};

}  // namespace

std::unique_ptr<Surface> make_dev_ddp(int instance) { return std::make_unique<DevDdp>(instance); }

}  // namespace lockstep::bench
