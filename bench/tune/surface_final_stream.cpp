// final_stream: samples come out of an object store. The slowest of reading, decompressing, decoding and computing
// decides, so there is a floor where the network waits and a plateau where the GPU does; memory of the host holds
// shards, cache and shuffle buffer; too many connections are throttled. The store is slower in the evening.
#include <algorithm>
#include <array>
#include <cmath>

#include "bench/tune/lab_families.h"
#include "bench/tune/lab_surface.h"

namespace lockstep::bench {
namespace {

class FinalStream final : public LabSurface {
 public:
  explicit FinalStream(int instance) : LabSurface("final_stream", instance) {
    add_knob(log_int_knob("connections", 1, 64, 4));
    add_knob(choices_knob("range_kb", levels_of({64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384}), 2));
    add_knob(int_knob("prefetch_shards", 0, 16, 1));
    add_knob(choices_knob("codec", levels_of({"none", "lz4", "zstd", "zstd-19"})));
    add_knob(choices_knob("cache", levels_of({"none", "ram", "disk"})));
    add_knob(only_when(log_int_knob("cache_gb", 1, 256, 8), "cache != \"none\"", kCache, {1, 2}));
    add_knob(choices_knob("decode", levels_of({"pil", "turbo", "gpu"})));
    add_knob(only_when(int_knob("decode_threads", 1, 32, 2), "decode != \"gpu\"", kDecode, {0, 1}));
    add_knob(choices_knob("shuffle_buffer_k", levels_of({1, 2, 5, 10, 20, 50, 100})));
    add_knob(choices_knob("batch", levels_of({16, 24, 32, 48, 64, 96, 128, 192, 256}), 1));
    add_knob(choices_knob("resize_first", levels_bool()));
    Draws random = draws(1);
    compute_ = random.log_uniform(0.15, 0.9);
    fixed_ = random.log_uniform(2, 18);
    sample_kb_ = random.log_uniform(60, 700);
    network_ = random.log_uniform(250, 2500);
    one_ = random.uniform(15, 80);
    delay_ = random.uniform(8, 60);
    allowed_ = random.uniform(12, 60);
    disk_ = random.log_uniform(400, 3000);
    dataset_ = random.log_uniform(40, 900);
    decode_ms_ = random.log_uniform(1.5, 14);
    cores_ = random.uniform(5, 28);
    gpu_decode_ = random.uniform(0.05, 0.5);
    packed_ = {1.0, random.uniform(0.75, 0.98), random.uniform(0.5, 0.9), random.uniform(0.4, 0.85)};
    resize_ = random.uniform(0.6, 1.3);
    fit(random.uniform(0.15, 0.3), random.uniform(0.2, 0.4));
  }

  double log_drift(std::uint64_t noise_seed, std::int64_t trial) const override {
    Draws random(key_of({0x65766e67, static_cast<std::uint64_t>(instance()), noise_seed}));
    const double period = random.uniform(35, 110), phase = random.uniform(0, 6.28), depth = random.uniform(0.01, 0.07);
    return depth * std::sin(6.28 * static_cast<double>(trial) / period + phase);
  }

 private:
  enum { kConnections, kRange, kPrefetch, kCodec, kCache, kCacheGb, kDecode, kThreads, kShuffle, kBatch, kResize };

  // Milliseconds of a sample in the reader.
  double read_ms(PointView p) const {
    const double connections = number(p, kConnections), range = number(p, kRange);
    const double each = range / (delay_ + range / one_);  // MB/s, as kB per ms
    double rate = std::min(network_, connections * each);
    // Beyond what the store allows, requests come back and are made again.
    rate /= 1 + std::pow(std::max(0.0, connections - allowed_) / 10, 2);
    const double bytes = sample_kb_ * packed_[static_cast<std::size_t>(level(p, kCodec))] * (1 + 0.15 * range / 16384);
    double ms = bytes / rate;
    if (level(p, kCache) > 0) {
      const double hit =
          std::min(1.0, number(p, kCacheGb) / (dataset_ * packed_[static_cast<std::size_t>(level(p, kCodec))]));
      const double from_cache = level(p, kCache) == 1 ? bytes / 8000 : bytes / disk_;
      ms = (1 - hit) * ms + hit * from_cache + 0.02 * ms;
    }
    return ms * (number(p, kPrefetch) == 0 ? 1.5 : 1 + 0.25 / number(p, kPrefetch));
  }

  double decode_ms(PointView p) const {
    if (level(p, kDecode) == 2) return 0;
    const double threads = number(p, kThreads);
    const double running = std::min(threads, cores_) / (1 + 0.04 * std::max(0.0, threads - cores_));
    const double unpack =
        std::array{0.0, 0.05, 0.22, 0.24}[static_cast<std::size_t>(level(p, kCodec))] * sample_kb_ / 200;
    return (decode_ms_ * (level(p, kDecode) == 1 ? 0.45 : 1) * (on(p, kResize) ? resize_ : 1) + unpack) / running;
  }

  Load load(PointView p) const override {
    const double batch = number(p, kBatch);
    double compute =
        compute_ + fixed_ / batch + 0.004 / std::sqrt(number(p, kShuffle)) + 2e-4 * number(p, kShuffle) * compute_;
    if (level(p, kDecode) == 2) compute += gpu_decode_ * compute_ * (on(p, kResize) ? 0.8 : 1);
    if (level(p, kDecode) != 2) compute *= 1 + 0.12 * std::max(0.0, number(p, kThreads) + 2 - cores_) / cores_;
    const double slowest = std::max({read_ms(p), decode_ms(p), compute});
    const double sum = read_ms(p) + decode_ms(p) + compute;
    // Stages that are not overlapped well show a little.
    const double per_sample = slowest + 0.04 * (sum - slowest);
    const double shard = 0.12;
    const double host = 2 + shard * number(p, kPrefetch) * std::sqrt(number(p, kConnections)) +
                        (level(p, kCache) == 1 ? number(p, kCacheGb) : 0) +
                        number(p, kShuffle) * sample_kb_ / 1000 * (on(p, kResize) ? 0.5 : 1) +
                        0.05 * number(p, kThreads);
    return {.step_seconds = per_sample,
            .device = 6 + 0.11 * batch * (level(p, kDecode) == 2 ? 1.35 : 1) * (on(p, kResize) ? 0.9 : 1),
            .host = host};
  }

  double compute_, fixed_, sample_kb_, network_, one_, delay_, allowed_, disk_, dataset_, decode_ms_, cores_,
      gpu_decode_, resize_;
  std::array<double, 4> packed_{};
};

}  // namespace

std::unique_ptr<Surface> make_final_stream(int instance) { return std::make_unique<FinalStream>(instance); }

}  // namespace lockstep::bench
