#include "lockstep/tune/space/expression.h"

#include <algorithm>
#include <cmath>

namespace lockstep::tune {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kLargest = std::numeric_limits<double>::max();
constexpr double kTolerance = 1e-12;  // relative; 0.1 + 0.2 == 0.3 is meant to hold

// Whole numbers are compared exactly.
bool same(double a, double b) {
  if (a == b) return true;
  if (std::fabs(a - b) > kTolerance * std::max(std::fabs(a), std::fabs(b))) return false;
  return a != std::nearbyint(a) || b != std::nearbyint(b);
}

// The remainder has the sign of the divisor, so that floor(a / b) * b + a % b == a.
double remainder_of(double a, double b) {
  const double rest = std::fmod(a, b);
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

bool is_point(const CodeRange& range) { return range.low == range.high && !range.can_miss && !range.can_be_undefined; }

bool is_empty(const CodeRange& range) { return range.low > range.high; }

CodeRange hull(std::initializer_list<double> ends) {
  CodeRange range;
  range.low = std::min(ends);
  range.high = std::max(ends);
  return range;
}

CodeRange anything() { return {-kLargest, kLargest, false, true}; }

CodeRange quotients(const CodeRange& a, const CodeRange& b) {
  if (b.low <= 0 && b.high >= 0) return anything();
  return hull({a.low / b.low, a.low / b.high, a.high / b.low, a.high / b.high});
}

CodeRange remainders(const CodeRange& a, const CodeRange& b) {
  if (b.low <= 0 && b.high >= 0) return anything();
  if (a.low == a.high && b.low == b.high) return hull({remainder_of(a.low, b.low)});
  return b.low > 0 ? CodeRange{0, b.high, false, false} : CodeRange{b.low, 0, false, false};
}

}  // namespace

double Texts::code(const std::string& text) {
  // Spaced by 1024 from 2^60 on, where doubles are 256 apart.
  const double fresh = 4 * kFirstCode + 1024.0 * static_cast<double>(codes_.size());
  return codes_.try_emplace(text, fresh).first->second;
}

double Expression::apply(Op op, double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return kMissing;
  if (std::isinf(a) || std::isinf(b)) return kInfinity;
  double result = 0;
  switch (op) {
    case Op::kAdd:
      result = a + b;
      break;
    case Op::kSubtract:
      result = a - b;
      break;
    case Op::kMultiply:
      result = a * b;
      break;
    case Op::kDivide:
      result = b == 0 ? kInfinity : a / b;
      break;
    case Op::kFloor:
      result = std::floor(a);
      break;
    case Op::kModulo:
      result = b == 0 ? kInfinity : remainder_of(a, b);
      break;
    case Op::kNegate:
      result = -a;
      break;
    case Op::kMin:
      result = std::min(a, b);
      break;
    default:
      result = std::max(a, b);
      break;
  }
  return std::isfinite(result) ? result : kInfinity;
}

CodeRange Expression::apply(Op op, const CodeRange& a, const CodeRange& b) {
  CodeRange result;
  if (is_empty(a) || is_empty(b)) {
    result = {1, 0};
  } else {
    switch (op) {
      case Op::kAdd:
        result = hull({a.low + b.low, a.high + b.high});
        break;
      case Op::kSubtract:
        result = hull({a.low - b.high, a.high - b.low});
        break;
      case Op::kMultiply:
        result = hull({a.low * b.low, a.low * b.high, a.high * b.low, a.high * b.high});
        break;
      case Op::kDivide:
        result = quotients(a, b);
        break;
      case Op::kFloor:
        result = hull({std::floor(a.low), std::floor(a.high)});
        break;
      case Op::kModulo:
        result = remainders(a, b);
        break;
      case Op::kNegate:
        result = hull({-a.low, -a.high});
        break;
      case Op::kMin:
        result = {std::min(a.low, b.low), std::min(a.high, b.high)};
        break;
      default:
        result = {std::max(a.low, b.low), std::max(a.high, b.high)};
        break;
    }
    if (!std::isfinite(result.low) || !std::isfinite(result.high)) result = anything();
  }
  result.can_miss = a.can_miss || b.can_miss;
  result.can_be_undefined |= a.can_be_undefined || b.can_be_undefined;
  return result;
}

bool Expression::holds(Op op, double a, double b) {
  if (std::isinf(a) || std::isinf(b)) return false;
  switch (op) {
    case Op::kEqual:
      return same(a, b);
    case Op::kNotEqual:
      return !same(a, b);
    case Op::kLess:
      return a < b && !same(a, b);
    default:
      return a <= b || same(a, b);
  }
}

unsigned Expression::compare(Op op, const CodeRange& a, const CodeRange& b) {
  if (is_point(a) && is_point(b)) return holds(op, a.low, b.low) ? kCanBeTrue : kCanBeFalse;
  unsigned truths = a.can_miss || b.can_miss ? kCanBeUnknown : 0;
  if (a.can_be_undefined || b.can_be_undefined) truths |= kCanBeFalse;
  if (is_empty(a) || is_empty(b)) return truths;
  // Ends within the tolerance count as touching.
  const auto below = [](double x, double y) { return x < y - kTolerance * std::max(std::fabs(x), std::fabs(y)); };
  const bool apart = below(a.high, b.low) || below(b.high, a.low);
  const bool one = a.low == a.high && b.low == b.high && same(a.low, b.low);
  switch (op) {
    case Op::kEqual:
      return truths | (apart ? 0 : kCanBeTrue) | (one ? 0 : kCanBeFalse);
    case Op::kNotEqual:
      return truths | (one ? 0 : kCanBeTrue) | (apart ? 0 : kCanBeFalse);
    default:
      if (below(a.high, b.low)) return truths | kCanBeTrue;
      if (below(b.high, a.low)) return truths | kCanBeFalse;
      return truths | kCanBeTrue | kCanBeFalse;
  }
}

double Expression::number_of(std::int32_t index, const double* codes) const {
  const Node& node = nodes_[static_cast<std::size_t>(index)];
  switch (node.op) {
    case Op::kNumber:
      return node.value;
    case Op::kKnob:
      return codes[node.knob];
    case Op::kNumericKnob:
      return codes[node.knob] >= kFirstCode ? kMissing : codes[node.knob];
    default:
      break;
  }
  const double a = number_of(node.a, codes);
  return apply(node.op, a, node.b < 0 ? 0 : number_of(node.b, codes));
}

CodeRange Expression::range_of(std::int32_t index, const CodeRange* ranges) const {
  const Node& node = nodes_[static_cast<std::size_t>(index)];
  if (node.op == Op::kNumber) return {node.value, node.value};
  if (node.op == Op::kKnob) return ranges[node.knob];
  if (node.op == Op::kNumericKnob) {
    CodeRange range = ranges[node.knob];
    if (range.high < kFirstCode) return range;
    range.can_miss = true;
    if (range.low >= kFirstCode) return {1, 0, true, false};
    range.high = kLargest;
    return range;
  }
  const CodeRange a = range_of(node.a, ranges);
  return apply(node.op, a, node.b < 0 ? CodeRange{} : range_of(node.b, ranges));
}

Truth Expression::truth_of(std::int32_t index, const double* codes) const {
  const Node& node = nodes_[static_cast<std::size_t>(index)];
  switch (node.op) {
    case Op::kTrue:
      return Truth::kTrue;
    case Op::kFalse:
      return Truth::kFalse;
    case Op::kKnobIsTrue:
      if (std::isnan(codes[node.knob])) return Truth::kUnknown;
      return codes[node.knob] == kTrueCode ? Truth::kTrue : Truth::kFalse;
    case Op::kNot: {
      const Truth inner = truth_of(node.a, codes);
      if (inner == Truth::kUnknown) return inner;
      return inner == Truth::kTrue ? Truth::kFalse : Truth::kTrue;
    }
    case Op::kAnd:
    case Op::kOr: {
      const Truth decisive = node.op == Op::kAnd ? Truth::kFalse : Truth::kTrue;
      const Truth first = truth_of(node.a, codes);
      if (first == decisive) return first;
      const Truth second = truth_of(node.b, codes);
      return second == decisive || first != Truth::kUnknown ? second : first;
    }
    default:
      break;
  }
  const double a = number_of(node.a, codes);
  const double b = number_of(node.b, codes);
  if (std::isnan(a) || std::isnan(b)) return Truth::kUnknown;
  return holds(node.op, a, b) ? Truth::kTrue : Truth::kFalse;
}

unsigned Expression::truths_of(std::int32_t index, const CodeRange* ranges) const {
  const Node& node = nodes_[static_cast<std::size_t>(index)];
  switch (node.op) {
    case Op::kTrue:
      return kCanBeTrue;
    case Op::kFalse:
      return kCanBeFalse;
    case Op::kKnobIsTrue:
      return compare(Op::kEqual, ranges[node.knob], {kTrueCode, kTrueCode});
    case Op::kNot: {
      const unsigned inner = truths_of(node.a, ranges);
      return (inner & kCanBeUnknown) | (inner & kCanBeTrue ? kCanBeFalse : 0) | (inner & kCanBeFalse ? kCanBeTrue : 0);
    }
    case Op::kAnd:
    case Op::kOr: {
      const unsigned decisive = node.op == Op::kAnd ? kCanBeFalse : kCanBeTrue;
      const unsigned other = decisive ^ (kCanBeFalse | kCanBeTrue);
      const unsigned a = truths_of(node.a, ranges);
      if (a == decisive) return a;
      const unsigned b = truths_of(node.b, ranges);
      unsigned result = (a | b) & decisive;
      if ((a & other) && (b & other)) result |= other;
      // Unknown when one is and the other does not decide.
      if (((a & kCanBeUnknown) && (b & ~decisive)) || ((b & kCanBeUnknown) && (a & ~decisive))) result |= kCanBeUnknown;
      return result;
    }
    default:
      break;
  }
  return compare(node.op, range_of(node.a, ranges), range_of(node.b, ranges));
}

}  // namespace lockstep::tune
