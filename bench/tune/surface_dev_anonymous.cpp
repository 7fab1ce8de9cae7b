// dev_anonymous: knobs x0 to x9 of a program that nobody documents. Numbers act through a rotated bowl with a second,
// narrower valley elsewhere; words shift the bowl; a wedge of the box crashes, two products need memory.
#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "bench/tune/lab_families.h"
#include "bench/tune/lab_surface.h"

namespace lockstep::bench {
namespace {

constexpr std::size_t kNumbers = 7;

class DevAnonymous final : public LabSurface {
 public:
  explicit DevAnonymous(int instance) : LabSurface("dev_anonymous", instance) {
    Draws random = draws(1);
    for (std::size_t k = 0; k < kNumbers; ++k) {
      const std::string name = fmt::format("x{}", k);
      const int high = 8 + random.below(24);
      if (k == 2) {
        add_knob(choices_knob(name, levels_of({1, 2, 4, 8, 16, 32, 64, 128}), random.below(3)));
      } else {
        add_knob(int_knob(name, 0, high, random.below(high / 2)));
      }
    }
    add_knob(choices_knob("x7", levels_of({"alpha", "beta", "gamma", "delta"})));
    add_knob(choices_knob("x8", levels_of({"p", "q", "r"})));
    add_knob(choices_knob("x9", levels_bool()));
    for (auto& row : directions_) {
      for (double& value : row) value = random.normal(1);
    }
    for (std::size_t k = 0; k < kNumbers; ++k) {
      curvature_[k] = random.log_uniform(0.02, 1.6);
      centre_[k] = random.uniform(0.1, 0.9);
      second_[k] = random.uniform(0.05, 0.95);
      wedge_[k] = random.chance(0.4) ? random.normal(1) : 0;
      memory_[k] = random.chance(0.5) ? random.uniform(0, 1) : 0;
      for (auto& shift : shifts_) shift[k] = random.normal(0.13);
    }
    for (double& value : words_) value = random.uniform(0, 0.35);
    depth_ = random.uniform(0.1, 0.5);
    width_ = random.uniform(0.25, 0.45);
    flag_ = random.normal(0.12);
    product_ = random.uniform(0.5, 2);
    edge_ = random.uniform(0.55, 0.8);
    fit(random.uniform(0.15, 0.35), 0);
  }

 private:
  using Numbers = std::array<double, kNumbers>;

  Numbers scaled(PointView p) const {
    Numbers x{};
    for (std::size_t k = 0; k < kNumbers; ++k)
      x[k] = static_cast<double>(p[k]) / static_cast<double>(knobs()[k].levels.size() - 1);
    return x;
  }

  double bowl(const Numbers& x, int word) const {
    double sum = 0;
    for (std::size_t row = 0; row < kNumbers; ++row) {
      double along = 0;
      for (std::size_t k = 0; k < kNumbers; ++k) {
        const double here = x[k] - centre_[k] - shifts_[static_cast<std::size_t>(word)][k];
        along += (directions_[row][k] * 0.5 + (row == k ? 1 : 0)) * here;
      }
      sum += curvature_[row] * along * along;
    }
    return sum;
  }

  Load load(PointView p) const override {
    const Numbers x = scaled(p);
    double against = 0, weight = 1e-9, need = 1, distance = 0, default_side = 0;
    for (std::size_t k = 0; k < kNumbers; ++k) {
      against += wedge_[k] * x[k];
      default_side += wedge_[k] * (knobs()[k].default_level / static_cast<double>(knobs()[k].levels.size() - 1));
      weight += std::abs(wedge_[k]);
      need += memory_[k] * x[k];
      distance += (x[k] - second_[k]) * (x[k] - second_[k]);
    }
    const bool in_wedge = (against - default_side) / weight > 0.6 * edge_ && p[7] != 0;
    if (in_wedge) return {.refused = "RuntimeError: internal assertion failed"};
    need += product_ * (x[0] * x[3] + x[1] * x[2] * (p[9] == 1 ? 1.5 : 0.7));
    double log_time = 0.9 * std::sqrt(bowl(x, p[7]) + 0.01);
    log_time += words_[static_cast<std::size_t>(p[7])] + words_[4 + static_cast<std::size_t>(p[8])] * (0.3 + x[4]);
    if (p[9] == 1) log_time += flag_ * (p[8] == 1 ? -1 : 1);
    log_time -= depth_ * std::exp(-distance / (2 * width_ * width_));
    return {.step_seconds = std::exp(log_time), .device = need};
  }

  std::array<Numbers, kNumbers> directions_{};
  Numbers curvature_{}, centre_{}, second_{}, wedge_{}, memory_{};
  std::array<Numbers, 4> shifts_{};
  std::array<double, 7> words_{};
  double depth_, width_, flag_, product_, edge_;
};

}  // namespace

std::unique_ptr<Surface> make_dev_anonymous(int instance) { return std::make_unique<DevAnonymous>(instance); }

}  // namespace lockstep::bench
