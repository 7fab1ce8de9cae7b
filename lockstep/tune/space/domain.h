// Domain: the values of one knob as plain numbers. Inside the space a value is a *cell*: the level (0, 1, 2 ...) of a
// choice or an integer, the number itself of a real, NaN when the knob is inactive.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "lockstep/tune/space/expression.h"
#include "lockstep/tune/space/space.h"

namespace lockstep::tune {

inline constexpr double kInactive = kMissing;
inline bool is_inactive(double cell) { return std::isnan(cell); }
inline bool same_cell(double a, double b) { return a == b || (is_inactive(a) && is_inactive(b)); }

// In [0, 1), the same on every machine (the standard distributions are not).
inline double draw_unit(Random& random) { return static_cast<double>(random() >> 11) * 0x1.0p-53; }
// 0 .. count - 1.
inline std::uint64_t draw_below(Random& random, std::uint64_t count) {
  return static_cast<std::uint64_t>((static_cast<unsigned __int128>(random()) * count) >> 64);
}

class Domain {
 public:
  Domain(const Knob& knob, Texts& texts);

  bool real() const { return kind_ == KnobKind::kReal; }
  bool ordered() const { return ordered_; }
  double levels() const { return levels_; }  // discrete ones
  double first_cell() const { return real() ? low_ : 0; }
  double last_cell() const { return real() ? high_ : levels_ - 1; }
  double default_cell() const { return default_cell_; }
  ExpressionType type() const { return type_; }

  Value value(double cell) const;                 // monostate when inactive
  double cell(const Value& value) const;          // NaN when it is not a value of the knob
  double lenient_cell(const Value& value) const;  // 8.0 is the integer 8
  double code(double cell) const {
    if (kind_ == KnobKind::kInteger) return low_ + cell;
    if (kind_ == KnobKind::kReal || is_inactive(cell)) return cell;
    return codes_[static_cast<std::size_t>(cell)];
  }
  CodeRange codes(double first, double last) const;
  // [0, 1] for ordered knobs, the level of unordered ones, NaN when inactive.
  double position(double cell) const;
  // How far apart two values are, in [0, 1]; unordered values are 1 apart.
  double distance(double a, double b) const;
  double draw(Random& random) const;
  // Logarithmic integers: their levels are drawn as often as their ratios are wide.
  bool weighted() const { return kind_ == KnobKind::kInteger && log_; }

  // Values worth trying from `cell`: every other choice when unordered; the next ones and a few farther ones when
  // ordered. `possible` (ascending) limits the levels when not empty. Never `cell` itself.
  void neighbours(double cell, const std::vector<std::int32_t>& possible, std::vector<double>& out) const;

 private:
  double scaled(double number) const { return log_ ? std::log(number) : number; }
  double position_of_number(double number) const;
  double cell_at(double position) const;
  void tabulate(const Knob& knob, Texts& texts);
  void add_nearby_ranks(double rank, double count, std::vector<double>& out) const;

  KnobKind kind_;
  ExpressionType type_ = ExpressionType::kNumber;
  bool ordered_;
  bool log_;
  double low_ = 0;
  double high_ = 0;
  double levels_ = 0;
  double scale_low_ = 0;
  double scale_span_ = 0;     // 0: a single value
  bool shifted_log_ = false;  // positions by log(1 + number)
  double default_cell_ = 0;
  std::vector<Value> choices_;
  std::vector<double> codes_;      // by level
  std::vector<double> positions_;  // by level; integers with many levels are computed
  std::vector<double> by_rank_;    // ordered choices: levels from the smallest number on
  std::vector<double> ranks_;      // and back
};

}  // namespace lockstep::tune
