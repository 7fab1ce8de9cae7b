// The data set: sines of one of several frequencies under noise. A sample depends on its number alone, so nothing is
// held in memory and every rank sees the same.
#include <cmath>
#include <numbers>
#include <random>
#include <string>

#include "lockstep/plugin/register.h"

namespace {

using lockstep::plugin::Options;
using lockstep::plugin::Samples;
using lockstep::plugin::Split;

class Waves : public lockstep::plugin::Dataset {
 public:
  Waves(Options& options, Split split)
      : points_(options.integer("points", 32, 2, 4096)),
        classes_(options.integer("classes", 4, 2, 1000)),
        noise_(options.real("noise", 0.3)),
        training_(options.integer("samples", 512, 1)),
        held_(options.integer("held_out", 64)),
        split_(split) {}

  std::int64_t size() const override { return split_ == Split::kTraining ? training_ : held_; }

  Samples fetch(const std::vector<std::int64_t>& indices) const override {
    const auto count = static_cast<std::int64_t>(indices.size());
    Samples samples{.inputs = {torch::empty({count, points_})}, .target = torch::empty({count}, torch::kInt64)};
    for (std::int64_t i = 0; i < count; ++i) {
      // Held-out samples are numbered behind those for training.
      const std::int64_t number = indices[static_cast<std::size_t>(i)] + (split_ == Split::kTraining ? 0 : training_);
      draw(number, samples.inputs[0].data_ptr<float>() + i * points_);
      samples.target.data_ptr<std::int64_t>()[i] = number % classes_;
    }
    return samples;
  }

  std::string describe() const override {
    return std::to_string(size()) + " waves of " + std::to_string(points_) + " points";
  }

 private:
  void draw(std::int64_t number, float* out) const {
    std::mt19937_64 random(static_cast<std::uint64_t>(number));
    // Not std::normal_distribution, which differs between libraries.
    const auto uniform = [&] { return static_cast<double>(random() >> 11) * 0x1.0p-53; };
    const double phase = 2 * std::numbers::pi * uniform();
    const double turns = 1.0 + static_cast<double>(number % classes_);
    for (std::int64_t i = 0; i < points_; ++i) {
      const double angle = 2 * std::numbers::pi * turns * static_cast<double>(i) / static_cast<double>(points_);
      out[i] = static_cast<float>(std::sin(angle + phase) + noise_ * (uniform() + uniform() - 1.0));
    }
  }

  std::int64_t points_, classes_;
  double noise_;
  std::int64_t training_, held_;
  Split split_;
};

}  // namespace

LOCKSTEP_REGISTER_DATASET("waves", Waves)
