// final_compress: training across slow links. Compressors trade time to encode, bytes and how much a step is worth;
// local steps and a hierarchy trade bytes for progress. Each compressor has knobs of its own and a best of its own.
#include <algorithm>
#include <array>
#include <cmath>

#include "bench/tune/lab_families.h"
#include "bench/tune/lab_surface.h"

namespace lockstep::bench {
namespace {

class FinalCompress final : public LabSurface {
 public:
  explicit FinalCompress(int instance) : LabSurface("final_compress", instance) {
    add_knob(choices_knob("compressor", levels_of({"none", "fp16", "topk", "powersgd", "qsgd", "onebit"})));
    add_knob(only_when(log_int_knob("topk_per_mille", 1, 250, 10), "compressor == \"topk\"", kCompressor, {kTopK}));
    add_knob(only_when(choices_knob("powersgd_rank", levels_of({1, 2, 4, 8, 16, 32, 64}), 2),
                       "compressor == \"powersgd\"", kCompressor, {kPowerSgd}));
    add_knob(only_when(int_knob("qsgd_bits", 2, 8, 8), "compressor == \"qsgd\"", kCompressor, {kQsgd}));
    add_knob(only_when(choices_knob("error_feedback", levels_bool(), 1), "not (compressor in [\"none\", \"fp16\"])",
                       kCompressor, {kTopK, kPowerSgd, kQsgd, kOneBit}));
    add_knob(choices_knob("local_steps", levels_of({1, 2, 3, 4, 6, 8, 12, 16, 24, 32})));
    add_knob(only_when(int_knob("outer_momentum_percent", 0, 95, 0), "local_steps > 1", kLocal, levels_from(1, 9)));
    add_knob(choices_knob("hierarchical", levels_bool()));
    add_knob(choices_knob("chunk_mb", levels_of({1, 2, 4, 8, 16, 32, 64, 128}), 4));
    add_knob(int_knob("encode_streams", 1, 8, 1));
    add_knob(choices_knob("batch_per_device", levels_of({4, 8, 12, 16, 24, 32, 48, 64})));
    Draws random = draws(1);
    gradient_ = random.log_uniform(200, 4000);
    link_ = random.log_uniform(0.4, 12);
    fast_link_ = random.log_uniform(20, 150);
    delay_ = random.log_uniform(0.3, 25);
    sites_ = 2 + random.below(7);
    sample_ = random.log_uniform(3, 40);
    fixed_ = random.log_uniform(5, 80);
    for (double& speed : encode_) speed = random.log_uniform(4, 60);
    for (double& loss : loss_) loss = random.log_uniform(0.5, 2);
    drift_ = random.log_uniform(0.008, 0.12);
    momentum_ = random.uniform(20, 85);
    overlap_ = random.uniform(0, 0.7);
    critical_ = random.log_uniform(60, 2000);
    residual_ = random.uniform(0.6, 1.4);
    fit(random.uniform(0.1, 0.3), random.uniform(0.05, 0.15));
  }

 private:
  enum { kCompressor, kPerMille, kRank, kBits, kFeedback, kLocal, kMomentum, kHierarchy, kChunk, kStreams, kBatch };
  enum { kNone, kFp16, kTopK, kPowerSgd, kQsgd, kOneBit };

  // Share of the bytes of fp32 that is sent.
  double share_sent(PointView p) const {
    switch (level(p, kCompressor)) {
      case kFp16:
        return 0.5;
      case kTopK:
        return 2 * number(p, kPerMille) / 1000 * (on(p, kHierarchy) ? 1 : sites_ * 0.6);
      case kPowerSgd:
        return 0.0016 * number(p, kRank) + 0.004;
      case kQsgd:
        return number(p, kBits) / 32;
      case kOneBit:
        return 1.0 / 32 + 0.004;
      default:
        return 1;
    }
  }

  // How much slower a step converges; with error feedback most of it comes back.
  double lost_progress(PointView p) const {
    double lost = 0;
    switch (level(p, kCompressor)) {
      case kFp16:
        lost = 0.002;
        break;
      case kTopK:
        lost = 0.12 * loss_[0] * std::pow(0.01 / (number(p, kPerMille) / 1000), 0.45);
        break;
      case kPowerSgd:
        lost = 0.11 * loss_[1] * std::pow(4 / number(p, kRank), 0.55);
        break;
      case kQsgd:
        lost = 0.35 * loss_[2] * std::exp2(-0.8 * (number(p, kBits) - 2));
        break;
      case kOneBit:
        lost = 0.25 * loss_[3];
        break;
      default:
        break;
    }
    if (level(p, kFeedback) == 0) lost *= level(p, kCompressor) == kQsgd ? 1.3 : 3;
    const double local = number(p, kLocal) - 1;
    if (local > 0) {
      const double off = (number(p, kMomentum) - momentum_) / 60;
      lost += drift_ * std::pow(local, 0.8) * (0.5 + off * off);
    }
    return lost;
  }

  double exchange_ms(PointView p) const {
    const double sent = gradient_ * std::min(1.2, share_sent(p));
    const double chunks = std::max(1.0, gradient_ / number(p, kChunk));
    const double last = 1 / chunks;
    double wire = sent * 2 * (sites_ - 1) / sites_ / link_ + delay_ * std::min(chunks, 6 + 0.08 * chunks);
    if (on(p, kHierarchy)) wire = wire * 0.62 + gradient_ / fast_link_ * 2;
    double encode = 0;
    if (level(p, kCompressor) >= kTopK) {
      const double streams = number(p, kStreams);
      encode = gradient_ / encode_[static_cast<std::size_t>(level(p, kCompressor) - kTopK)] /
               std::min(streams, 1 + 0.6 * (streams - 1));
      if (level(p, kCompressor) == kPowerSgd) encode *= 0.5 + 0.08 * number(p, kRank);
    }
    return std::max(wire, encode) + last * std::min(wire, encode);
  }

  Load load(PointView p) const override {
    const double batch = number(p, kBatch), local = number(p, kLocal), streams = number(p, kStreams);
    const double compute =
        (fixed_ + sample_ * batch) * (1 + (level(p, kCompressor) >= kTopK ? 0.012 * (streams - 1) : 0));
    const double exchange = exchange_ms(p);
    const double shown = exchange - std::min(exchange * 0.8, overlap_ * compute);
    const double wall = compute * local + shown;
    const double worth = batch * critical_ / (critical_ + batch * sites_) / (1 + lost_progress(p));
    const double kept = on(p, kFeedback) ? residual_ : 0;
    return {.step_seconds = wall / (local * worth),
            .wall_seconds = wall / local,
            .device = 4 + 0.25 * batch + 3 * kept + (local > 1 ? 2.5 : 0) + 0.01 * number(p, kChunk) * streams,
            .host = 1 + 0.02 * number(p, kChunk) * streams * (on(p, kHierarchy) ? 2 : 1)};
  }

  int sites_;
  double gradient_, link_, fast_link_, delay_, sample_, fixed_, drift_, momentum_, overlap_, critical_, residual_;
  std::array<double, 4> encode_{}, loss_{};
};

}  // namespace

std::unique_ptr<Surface> make_final_compress(int instance) { return std::make_unique<FinalCompress>(instance); }

}  // namespace lockstep::bench
