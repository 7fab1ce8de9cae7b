// final_tiles: a matrix kernel and the shapes that are fed to it. Tiles quantize: the last wave of blocks is partly
// empty, padding wastes work, shared memory decides how many blocks fit an SM, too many registers spill. What asks for
// more shared memory than there is does not start.
#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "bench/tune/lab_families.h"
#include "bench/tune/lab_surface.h"

namespace lockstep::bench {
namespace {

class FinalTiles final : public LabSurface {
 public:
  explicit FinalTiles(int instance) : LabSurface("final_tiles", instance) {
    add_knob(choices_knob("BLOCK_M", levels_of({16, 32, 64, 128, 256}), 1));
    add_knob(choices_knob("BLOCK_N", levels_of({16, 32, 64, 128, 256}), 1));
    add_knob(choices_knob("BLOCK_K", levels_of({16, 32, 64, 128}), 1));
    add_knob(int_knob("num_stages", 1, 7, 2));
    add_knob(choices_knob("num_warps", levels_of({1, 2, 4, 8, 16}), 2));
    add_knob(choices_knob("GROUP_M", levels_of({1, 2, 4, 8, 16}), 3));
    add_knob(choices_knob("split_k", levels_of({1, 2, 3, 4, 6, 8, 12, 16})));
    add_knob(choices_knob("persistent", levels_bool()));
    add_knob(only_when(choices_knob("blocks_per_sm", levels_of({1, 2, 3, 4})), "persistent == true", kPersistent, {1}));
    add_knob(choices_knob("pad_sequence_to", levels_of({1, 8, 16, 32, 64, 128, 256})));
    add_knob(int_knob("samples", 1, 48, 4));
    Draws random = draws(1);
    columns_ = 128 * (5 + random.below(90)) + 8 * random.below(9);
    depth_ = 64 * (6 + random.below(120));
    length_ = 60 + random.below(900);
    sms_ = std::array{72, 84, 108, 132}[static_cast<std::size_t>(random.below(4))];
    shared_ = std::array{100, 164, 227, 227}[static_cast<std::size_t>(random.below(4))];
    bandwidth_ = random.log_uniform(0.4, 2.5);
    latency_ = random.log_uniform(3, 15);
    cache_ = random.uniform(0.05, 0.3);
    optimum_warp_ = random.uniform(1.0, 3.2);
    overhead_ = random.log_uniform(0.2, 6);
    other_ = random.log_uniform(0.05, 0.8);
    fit(random.uniform(0.15, 0.35), 0);
  }

 private:
  enum { kM, kN, kK, kStages, kWarps, kGroup, kSplit, kPersistent, kBlocks, kPad, kSamples };

  double shared_kib(PointView p) const {
    return 2 * (number(p, kM) + number(p, kN)) * number(p, kK) * number(p, kStages) / 1024;
  }

  // Time of one block, in units in which an SM that is full does one multiply-add of a 16 x 16 x 16 tile.
  double block_cost(PointView p, double resident) const {
    const double m = number(p, kM), n = number(p, kN), k = number(p, kK), stages = number(p, kStages);
    const double steps = std::ceil(depth_ / number(p, kSplit) / k);
    const double math = m * n * k / 4096.0;
    const double bytes = (m + n) * k / 256.0 / bandwidth_ * (1 + cache_ * std::abs(std::log2(number(p, kGroup)) - 2.3));
    const double waits = latency_ * 20 / std::min(stages * resident, 8.0);
    // Registers of the accumulator, per thread.
    const double registers = m * n / (32 * number(p, kWarps));
    const double spill = std::max(0.0, registers - 170) / 60;
    const double warps = std::pow(std::log2(number(p, kWarps)) - optimum_warp_ - 0.4 * std::log2(m * n / 8192), 2);
    return steps * (std::max(math, bytes) + 0.25 * std::min(math, bytes) + waits) * (1 + 0.04 * warps + spill) +
           8 * (stages + 2);
  }

  Load load(PointView p) const override {
    const double shared = shared_kib(p);
    if (shared > shared_)
      return {.refused = fmt::format("triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: "
                                     "{:.0f}, Hardware limit: {:.0f}",
                                     1024 * shared, 1024.0 * shared_)};
    const double m = number(p, kM), n = number(p, kN), split = number(p, kSplit), pad = number(p, kPad);
    const double padded = std::ceil(length_ / pad) * pad;
    const double samples = number(p, kSamples), rows = padded * samples;
    const double blocks = std::ceil(rows / m) * std::ceil(columns_ / n) * split;
    const double registers = std::min(215.0, m * n / (32 * number(p, kWarps))) + 40;
    double resident = std::floor(std::min({shared_ / shared, 65536 / (32 * number(p, kWarps) * registers), 8.0}));
    resident = std::max(1.0, resident);
    if (on(p, kPersistent)) resident = std::min(resident, number(p, kBlocks));
    const double waves =
        on(p, kPersistent) ? std::max(1.0, blocks / (sms_ * resident)) : std::ceil(blocks / (sms_ * resident));
    // Blocks on one SM share it; two or three hide each other's waits.
    const double busy = resident / (resident + 0.35);
    double kernel = waves * resident * block_cost(p, resident) / (busy / 0.85);
    if (on(p, kPersistent)) kernel *= 1.015;
    // Lengths that are no multiple of 8 leave the tensor cores' fast path.
    if (std::fmod(padded, 8) != 0) kernel *= 1.35;
    const double reduce = split > 1 ? rows * columns_ * (split + 1) / 40'000.0 / bandwidth_ / sms_ * 0.4 : 0;
    const double rest = other_ * rows * columns_ / 3000.0 * depth_ / 3000.0 / sms_;
    const double step = kernel + reduce + rest + 1000 * overhead_;
    return {.step_seconds = step / samples,
            .wall_seconds = step,
            .device = rows * (depth_ + columns_ * (1 + 2 * (split > 1 ? split : 0))) / 1e6 + 4};
  }

  int columns_, depth_, length_, sms_, shared_;
  double bandwidth_, latency_, cache_, optimum_warp_, overhead_, other_;
};

}  // namespace

std::unique_ptr<Surface> make_final_tiles(int instance) { return std::make_unique<FinalTiles>(instance); }

}  // namespace lockstep::bench
