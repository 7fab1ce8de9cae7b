#include "lockstep/tune/models/refusal_rules.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <set>
#include <unordered_set>

#include "lockstep/tune/job/knob_nature.h"

namespace lockstep::tune {
namespace {

using Kind = RefusalRule::Kind;

// Batches, ranks and lengths that a number may have to divide.
constexpr std::array kDivided{4.0,   6.0,   8.0,   12.0,  16.0,  20.0,  24.0,  32.0,   36.0,   40.0,  48.0,  60.0,
                              64.0,  72.0,  80.0,  96.0,  100.0, 120.0, 128.0, 144.0,  160.0,  192.0, 240.0, 256.0,
                              320.0, 384.0, 480.0, 512.0, 640.0, 768.0, 960.0, 1024.0, 2048.0, 4096.0};
constexpr std::size_t kMostLimits = 8;  // of one knob
constexpr std::size_t kMostNeeded = 8;  // choices of a knob that may be what another needs
constexpr double kLeastDivisors = 3;    // levels: two say nothing that pairs do not

bool divides(double number, double whole) {
  return number > 0 && std::fabs(std::remainder(whole, number)) < 1e-9 * std::fabs(whole) + 1e-9;
}

// Is the knob a count that may have to divide something?
bool is_count(const Knob& knob) {
  if (!knob.ordered || knob.kind == KnobKind::kReal) return false;
  if (knob.kind == KnobKind::kInteger) return knob.high - knob.low + 1 >= kLeastDivisors;
  return static_cast<double>(knob.choices.size()) >= kLeastDivisors &&
         std::all_of(knob.choices.begin(), knob.choices.end(), [](const Value& value) {
           const auto number = number_of(value);
           return number && *number == std::floor(*number);
         });
}

// Numbers between neighbouring values of an ordered knob among the points, few of them.
std::vector<double> limits_of(std::size_t knob, std::span<const RefusalPoint> points) {
  std::set<double> seen;
  for (const RefusalPoint& point : points)
    if (!std::isnan(point[knob])) seen.insert(point[knob]);
  const std::vector<double> values(seen.begin(), seen.end());
  std::vector<double> limits;
  if (values.size() < 2) return limits;
  const std::size_t gaps = values.size() - 1, kept = std::min(gaps, kMostLimits);
  for (std::size_t i = 0; i < kept; ++i) {
    const std::size_t gap = i * gaps / kept;
    limits.push_back((values[gap] + values[gap + 1]) / 2);
  }
  return limits;
}

class Explainer {
 public:
  Explainer(const Space& space, std::span<const RefusalPoint> points) : space_(space), limits_(space.size()) {
    for (std::size_t knob = 0; knob < space.size(); ++knob)
      if (space.knobs()[knob].ordered) limits_[knob] = limits_of(knob, points);
  }

  void explain(const RefusalPoint& point) {
    const auto knobs = static_cast<std::uint16_t>(point.size());
    for (std::uint16_t a = 0; a < knobs; ++a) {
      if (std::isnan(point[a])) continue;
      const bool level = space_.knobs()[a].kind != KnobKind::kReal;
      if (level) add({Kind::kValue, a, a, point[a], 0});
      explain_limits(point, a, a);
      if (is_count(space_.knobs()[a]))
        for (const double whole : kDivided) add_if({Kind::kDivides, a, a, 0, whole}, point);
      for (std::uint16_t b = 0; b < knobs; ++b) {
        if (b == a || std::isnan(point[b])) continue;
        if (level) explain_pair(point, a, b);
        explain_counts(point, a, b);
      }
    }
  }

  std::vector<RefusalRule> take() { return std::move(rules_); }

 private:
  void explain_limits(const RefusalPoint& point, std::uint16_t a, std::uint16_t b) {
    for (const double limit : limits_[b]) {
      const bool below = point[b] < limit;
      if (a == b)
        add({below ? Kind::kBelow : Kind::kAbove, a, a, 0, limit});
      else
        add({below ? Kind::kPairBelow : Kind::kPairAbove, a, b, point[a], limit});
    }
  }

  void explain_pair(const RefusalPoint& point, std::uint16_t a, std::uint16_t b) {
    const Knob& other = space_.knobs()[b];
    if (a < b && other.kind != KnobKind::kReal) add({Kind::kPair, a, b, point[a], point[b]});
    explain_limits(point, a, b);
    if (other.kind != KnobKind::kChoice || other.choices.size() > kMostNeeded || other.choices.size() < 3) return;
    for (std::size_t level = 0; level < other.choices.size(); ++level) {
      const double needed = other.ordered ? *number_of(other.choices[level]) : static_cast<double>(level);
      if (needed != point[b]) add({Kind::kNeeds, a, b, point[a], needed});
    }
  }

  void explain_counts(const RefusalPoint& point, std::uint16_t a, std::uint16_t b) {
    if (!is_count(space_.knobs()[a]) || !is_count(space_.knobs()[b])) return;
    add_if({Kind::kMultiple, a, b, 0, 0}, point);
    if (a > b) return;
    for (const double whole : kDivided) add_if({Kind::kProductDivides, a, b, 0, whole}, point);
  }

  void add_if(const RefusalRule& rule, const RefusalPoint& point) {
    if (holds(rule, point)) add(rule);
  }

  void add(const RefusalRule& rule) {
    if (known_.insert(rule).second) rules_.push_back(rule);
  }

  const Space& space_;
  struct Hash {
    std::size_t operator()(const RefusalRule& rule) const {
      std::uint64_t hash = static_cast<std::uint64_t>(rule.kind) << 32 | rule.first << 16 | rule.second;
      for (const double value : {rule.first_value, rule.second_value})
        hash = (hash ^ std::bit_cast<std::uint64_t>(value)) * 0x9e3779b97f4a7c15ull;
      return static_cast<std::size_t>(hash ^ hash >> 29);
    }
  };

  std::vector<std::vector<double>> limits_;
  std::unordered_set<RefusalRule, Hash> known_;
  std::vector<RefusalRule> rules_;
};

}  // namespace

RefusalPoint refusal_point(const Space& space, const Config& config) {
  RefusalPoint point(space.size(), NAN);
  for (std::size_t i = 0; i < space.size(); ++i) {
    const Knob& knob = space.knobs()[i];
    const Value& value = config.values[i];
    if (!is_active(value)) continue;
    if (knob.ordered) {
      point[i] = number_of(value).value_or(NAN);
    } else {
      const auto found = std::find(knob.choices.begin(), knob.choices.end(), value);
      point[i] = static_cast<double>(found - knob.choices.begin());
    }
  }
  return point;
}

// Comparisons with NaN are false, so that rules say nothing of knobs at rest.
bool holds(const RefusalRule& rule, const RefusalPoint& point) {
  const double a = point[rule.first], b = point[rule.second];
  switch (rule.kind) {
    case Kind::kValue:
      return a == rule.first_value;
    case Kind::kPair:
      return a == rule.first_value && b == rule.second_value;
    case Kind::kNeeds:
      return a == rule.first_value && (b < rule.second_value || b > rule.second_value);
    case Kind::kBelow:
      return a < rule.second_value;
    case Kind::kAbove:
      return a > rule.second_value;
    case Kind::kPairBelow:
      return a == rule.first_value && b < rule.second_value;
    case Kind::kPairAbove:
      return a == rule.first_value && b > rule.second_value;
    case Kind::kDivides:
      return a > 0 && !divides(a, rule.second_value);
    case Kind::kProductDivides:
      return a * b > 0 && !divides(a * b, rule.second_value);
    case Kind::kMultiple:
      return a > 0 && b > 0 && !divides(b, a);
  }
  return false;
}

std::vector<RefusalRule> rules_explaining(const Space& space, std::span<const RefusalPoint> refused,
                                          std::span<const RefusalPoint> points) {
  Explainer explainer(space, points);
  for (const RefusalPoint& point : refused) explainer.explain(point);
  return explainer.take();
}

double log_odds(RefusalRule::Kind kind) {
  switch (kind) {
    case Kind::kValue:
      return std::log(0.012);
    case Kind::kPair:
      return std::log(0.002);
    case Kind::kNeeds:  // one for every other choice: a pair is the simpler reason
      return std::log(0.0002);
    case Kind::kBelow:
    case Kind::kAbove:
      return std::log(0.0015);
    case Kind::kPairBelow:
    case Kind::kPairAbove:
      return std::log(0.0007);
    case Kind::kDivides:
      return std::log(0.0015);
    case Kind::kProductDivides:
      return std::log(0.0003);
    case Kind::kMultiple:
      return std::log(0.003);
  }
  return 0;
}

}  // namespace lockstep::tune
