#include "lockstep/tune/space/domain.h"

#include <algorithm>
#include <numeric>

namespace lockstep::tune {
namespace {

constexpr double kMostTabulated = 4096;

std::optional<double> number_of(const Value& value) {
  if (const auto* whole = std::get_if<std::int64_t>(&value)) return static_cast<double>(*whole);
  if (const auto* real = std::get_if<double>(&value)) return *real;
  return std::nullopt;
}

ExpressionType type_of(const std::vector<Value>& choices) {
  const auto all = [&](auto is) { return std::all_of(choices.begin(), choices.end(), is); };
  if (all([](const Value& value) { return number_of(value).has_value(); })) return ExpressionType::kNumber;
  if (all([](const Value& value) { return std::holds_alternative<bool>(value); })) return ExpressionType::kBoolean;
  if (all([](const Value& value) { return std::holds_alternative<std::string>(value); })) return ExpressionType::kText;
  return ExpressionType::kMixed;
}

constexpr double kWideCount = 4;  // (high + 1) / (low + 1)

double code_of_value(const Value& value, Texts& texts) {
  if (const auto number = number_of(value)) return *number;
  if (const auto* flag = std::get_if<bool>(&value)) return code_of(*flag);
  return texts.code(std::get<std::string>(value));
}

}  // namespace

Domain::Domain(const Knob& knob, Texts& texts)
    : kind_(knob.kind), ordered_(knob.ordered), log_(knob.log), low_(knob.low), high_(knob.high) {
  if (kind_ == KnobKind::kChoice) {
    choices_ = knob.choices;
    type_ = type_of(choices_);
    levels_ = static_cast<double>(choices_.size());
    for (const Value& choice : choices_) codes_.push_back(code_of_value(choice, texts));
    if (ordered_) {
      low_ = *std::min_element(codes_.begin(), codes_.end());
      high_ = *std::max_element(codes_.begin(), codes_.end());
    }
  } else if (kind_ == KnobKind::kInteger) {
    levels_ = high_ - low_ + 1;
  }
  // The first loader thread changes more than the fifteenth: wide counts are spaced by ratios though zero is among
  // them.
  shifted_log_ = ordered_ && !log_ && !real() && low_ >= 0 && high_ + 1 >= kWideCount * (low_ + 1);
  if (ordered_) {
    scale_low_ = scaled(low_);
    scale_span_ = scaled(high_) - scale_low_;
  }
  if (!real() && levels_ <= kMostTabulated) {
    for (double level = 0; level < levels_; ++level) {
      positions_.push_back(ordered_ ? position_of_number(code(level)) : level);
    }
  }
  if (kind_ == KnobKind::kChoice && ordered_) {
    by_rank_.resize(choices_.size());
    std::iota(by_rank_.begin(), by_rank_.end(), 0.0);
    std::sort(by_rank_.begin(), by_rank_.end(), [this](double a, double b) { return code(a) < code(b); });
    ranks_.resize(choices_.size());
    for (std::size_t i = 0; i < by_rank_.size(); ++i)
      ranks_[static_cast<std::size_t>(by_rank_[i])] = static_cast<double>(i);
  }
  default_cell_ = cell(knob.default_value);
}

Value Domain::value(double cell) const {
  if (is_inactive(cell)) return {};
  if (kind_ == KnobKind::kChoice) return choices_[static_cast<std::size_t>(cell)];
  if (kind_ == KnobKind::kInteger) return static_cast<std::int64_t>(low_ + cell);
  return cell;
}

double Domain::cell(const Value& value) const {
  if (kind_ == KnobKind::kChoice) {
    const auto found = std::find(choices_.begin(), choices_.end(), value);
    return found == choices_.end() ? kInactive : static_cast<double>(found - choices_.begin());
  }
  if (kind_ == KnobKind::kInteger) {
    const auto* whole = std::get_if<std::int64_t>(&value);
    if (whole == nullptr) return kInactive;
    const double number = static_cast<double>(*whole);
    return number < low_ || number > high_ ? kInactive : number - low_;
  }
  const auto* number = std::get_if<double>(&value);
  return number == nullptr || !(*number >= low_ && *number <= high_) ? kInactive : *number;
}

double Domain::lenient_cell(const Value& value) const {
  const double exact = cell(value);
  const auto number = number_of(value);
  if (!is_inactive(exact) || !number) return exact;
  if (kind_ == KnobKind::kReal) return cell(Value(*number));
  if (*number != std::floor(*number) && kind_ == KnobKind::kInteger) return kInactive;
  if (kind_ == KnobKind::kInteger) return *number < low_ || *number > high_ ? kInactive : *number - low_;
  const auto found = std::find(codes_.begin(), codes_.end(), *number);
  return found == codes_.end() ? kInactive : static_cast<double>(found - codes_.begin());
}

CodeRange Domain::codes(double first, double last) const {
  if (kind_ != KnobKind::kChoice) return {code(first), code(last)};
  const auto begin = codes_.begin() + static_cast<std::ptrdiff_t>(first);
  const auto end = codes_.begin() + static_cast<std::ptrdiff_t>(last) + 1;
  const auto [low, high] = std::minmax_element(begin, end);
  return {*low, *high};
}

double Domain::position_of_number(double number) const {
  if (shifted_log_) return std::log((number + 1) / (low_ + 1)) / std::log((high_ + 1) / (low_ + 1));
  return scale_span_ > 0 ? (scaled(number) - scale_low_) / scale_span_ : 0;
}

double Domain::position(double cell) const {
  if (is_inactive(cell)) return kInactive;
  if (!real() && !positions_.empty()) return positions_[static_cast<std::size_t>(cell)];
  return ordered_ ? position_of_number(code(cell)) : cell;
}

double Domain::distance(double a, double b) const {
  if (a == b) return 0;
  return ordered_ ? std::fabs(position(a) - position(b)) : 1;
}

double Domain::draw(Random& random) const {
  if (!real() && !weighted()) return static_cast<double>(draw_below(random, static_cast<std::uint64_t>(levels_)));
  const double low = weighted() ? low_ - 0.5 : low_;
  const double high = weighted() ? high_ + 0.5 : high_;
  const double at = scaled(low) + draw_unit(random) * (scaled(high) - scaled(low));
  const double number = log_ ? std::exp(at) : at;
  return real() ? std::clamp(number, low_, high_) : std::clamp(std::round(number), low_, high_) - low_;
}

double Domain::cell_at(double position) const {
  const double at = scale_low_ + std::clamp(position, 0.0, 1.0) * scale_span_;
  if (shifted_log_) {
    const double shifted = (low_ + 1) * std::pow((high_ + 1) / (low_ + 1), std::clamp(position, 0.0, 1.0)) - 1;
    return std::clamp(std::round(shifted) - low_, 0.0, levels_ - 1);
  }
  const double number = std::clamp(log_ ? std::exp(at) : at, low_, high_);
  return real() ? number : std::clamp(std::round(number) - low_, 0.0, levels_ - 1);
}

void Domain::add_nearby_ranks(double rank, double count, std::vector<double>& out) const {
  for (const double step : {1.0, 2.0, 4.0, 8.0}) {
    if (rank - step >= 0) out.push_back(rank - step);
    if (rank + step < count) out.push_back(rank + step);
  }
}

void Domain::neighbours(double cell, const std::vector<std::int32_t>& possible, std::vector<double>& out) const {
  out.clear();
  if (!ordered_) {
    for (double level = 0; level < levels_; ++level) out.push_back(level);
  } else if (!real() && !possible.empty()) {
    // Ranks count among the possible levels, in the order of the numbers.
    std::vector<double> levels(possible.begin(), possible.end());
    if (!by_rank_.empty())
      std::sort(levels.begin(), levels.end(), [this](double a, double b) { return code(a) < code(b); });
    const auto here = std::find(levels.begin(), levels.end(), cell);
    if (here != levels.end()) {
      add_nearby_ranks(static_cast<double>(here - levels.begin()), static_cast<double>(levels.size()), out);
      for (double& entry : out) entry = levels[static_cast<std::size_t>(entry)];
    } else {
      out = std::move(levels);
    }
  } else if (!by_rank_.empty()) {
    add_nearby_ranks(ranks_[static_cast<std::size_t>(cell)], levels_, out);
    for (double& entry : out) entry = by_rank_[static_cast<std::size_t>(entry)];
  } else if (!real()) {
    add_nearby_ranks(cell, levels_, out);
  }
  if (ordered_ && kind_ != KnobKind::kChoice && possible.empty()) {
    for (const double step : {0.02, 0.08, 0.25}) {
      if (!real() && step < 0.05) continue;
      out.push_back(cell_at(position(cell) - step));
      out.push_back(cell_at(position(cell) + step));
    }
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  out.erase(std::remove(out.begin(), out.end(), cell), out.end());
}

}  // namespace lockstep::tune
