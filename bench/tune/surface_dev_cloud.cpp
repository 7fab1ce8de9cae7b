// dev_cloud: virtual machines over TCP. Sockets, threads and buffers share the host's cores with the loader, gains are
// small and broad, and neighbours take up to a quarter of the machine for a while: trials of one hour cannot be
// compared with those of the next.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "bench/tune/lab_families.h"
#include "bench/tune/lab_surface.h"

namespace lockstep::bench {
namespace {

class DevCloud final : public LabSurface {
 public:
  explicit DevCloud(int instance) : LabSurface("dev_cloud", instance) {
    add_knob(int_knob("NCCL_SOCKET_NTHREADS", 1, 16, 1));
    add_knob(int_knob("NCCL_NSOCKS_PERTHREAD", 1, 16, 1));
    add_knob(log_int_knob("tcp_window_kb", 64, 512, 212));
    add_knob(choices_knob("NCCL_BUFFSIZE_KB", levels_of({256, 512, 1024, 2048, 4096, 8192, 16384}), 4));
    add_knob(choices_knob("grad_dtype", levels_of({"fp32", "fp16", "bf16"})));
    add_knob(int_knob("dataloader_workers", 0, 12, 2));
    add_knob(choices_knob("accumulation", levels_of({1, 2, 3, 4, 6, 8})));
    add_knob(choices_knob("mtu", levels_of({1460, 8896})));
    add_rule({.text = "NCCL_SOCKET_NTHREADS * NCCL_NSOCKS_PERTHREAD <= 64",
              .knobs = {kThreads, kSockets},
              .holds = [](PointView p) { return (p[kThreads] + 1) * (p[kSockets] + 1) <= 64; }});
    Draws random = draws(1);
    compute_ = 100;
    volume_ = random.log_uniform(25, 220);
    flow_ = random.uniform(0.06, 0.3);
    round_trip_ = random.uniform(150, 420);
    cores_ = random.uniform(4, 16);
    thread_cost_ = random.uniform(0.3, 0.9);
    decode_ = random.log_uniform(80, 600);
    incast_ = random.uniform(0.001, 0.012);
    frame_ = random.uniform(0.02, 0.16);
    cast_ = random.uniform(1, 9);
    critical_ = random.uniform(8, 40);
    copy_ = random.log_uniform(500, 4000);
    pinned_ = random.uniform(0.3, 1);
    fit(random.uniform(0.02, 0.1), random.uniform(0.1, 0.25));
  }

  // Neighbours come and go: levels that last some ten trials, with slow waves over them.
  double log_drift(std::uint64_t noise_seed, std::int64_t trial) const override {
    Draws random(key_of({0x6472696674, static_cast<std::uint64_t>(instance()), noise_seed}));
    const double period = random.uniform(18, 50), phase = random.uniform(0, 6.28), wave = random.uniform(0, 0.05);
    double lost = 0;
    for (std::int64_t start = 0; start <= trial;) {
      lost = random.chance(0.4) ? random.uniform(0.05, 0.25) : random.uniform(0, 0.03);
      start += 6 + random.below(16);
    }
    return std::log(1 - lost) + wave * std::sin(6.28 * static_cast<double>(trial) / period + phase);
  }

 private:
  enum { kThreads, kSockets, kWindow, kBuffer, kType, kWorkers, kAccumulation, kMtu };

  Load load(PointView p) const override {
    const double flows = number(p, kThreads) * number(p, kSockets), workers = number(p, kWorkers);
    const double one_flow = flow_ * std::min(1.0, number(p, kWindow) / round_trip_) * (1 + frame_ * level(p, kMtu));
    double rate = flows * one_flow / (1 + flows * one_flow * 0.35) * std::exp(-incast_ * flows);
    const double busy = 1 + thread_cost_ * number(p, kThreads) + workers;
    const double crowded = 1 + 0.35 * std::max(0.0, busy - cores_) / cores_;
    const double buffer = number(p, kBuffer);
    rate /= crowded * (1 + copy_ / (buffer * 4) + buffer / 90'000);
    const double volume = volume_ * (level(p, kType) == 0 ? 1 : 0.5);
    const double cast = level(p, kType) == 0 ? 0 : cast_ * (level(p, kType) == 2 ? 0.7 : 1);
    const double accumulation = number(p, kAccumulation);
    const double reading = workers > 0 ? decode_ / std::min(workers, cores_) : decode_ * 1.1;
    const double pass =
        workers > 0 ? std::max(compute_ * crowded, reading) + 0.08 * std::min(compute_, reading) : compute_ + reading;
    const double reduce = volume / rate;
    const double wall = accumulation * pass + cast + std::max(0.15 * reduce, reduce - 0.5 * compute_);
    return {.step_seconds = wall / (accumulation * critical_ / (critical_ + accumulation)),
            .wall_seconds = wall,
            .device = 10 + 0.3 * accumulation + flows * buffer / 16'000,
            .host = 2 + workers + pinned_ * flows * (number(p, kWindow) / 512 + buffer / 8192)};
  }

  double compute_, volume_, flow_, round_trip_, cores_, thread_cost_, decode_, incast_, frame_, cast_, critical_, copy_,
      pinned_;
};

}  // namespace

std::unique_ptr<Surface> make_dev_cloud(int instance) { return std::make_unique<DevCloud>(instance); }

}  // namespace lockstep::bench
