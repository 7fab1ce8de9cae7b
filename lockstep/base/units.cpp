#include "lockstep/base/units.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <span>

#include "lockstep/base/text.h"

namespace lockstep {
namespace {

struct Unit {
  std::string_view name;
  double factor;
};

constexpr double kK = 1e3, kM = 1e6, kG = 1e9, kT = 1e12, kP = 1e15;

constexpr Unit kByteUnits[] = {{"B", 1},   {"KiB", kKiB}, {"MiB", kMiB}, {"GiB", kGiB}, {"TiB", kTiB}, {"kB", kK},
                               {"KB", kK}, {"MB", kM},    {"GB", kG},    {"TB", kT},    {"PB", kP}};
constexpr Unit kRateUnits[] = {
    {"B/s", 1},       {"kB/s", kK},     {"KB/s", kK},     {"MB/s", kM},     {"GB/s", kG},       {"TB/s", kT},
    {"KiB/s", kKiB},  {"MiB/s", kMiB},  {"GiB/s", kGiB},  {"TiB/s", kTiB},  {"Mb/s", kM / 8},   {"Gb/s", kG / 8},
    {"Tb/s", kT / 8}, {"Mbps", kM / 8}, {"Gbps", kG / 8}, {"Tbps", kT / 8}, {"Mbit/s", kM / 8}, {"Gbit/s", kG / 8}};
constexpr Unit kFlopsUnits[] = {{"FLOPS", 1},  {"GFLOPS", kG},  {"TFLOPS", kT},  {"PFLOPS", kP},
                                {"FLOP/s", 1}, {"GFLOP/s", kG}, {"TFLOP/s", kT}, {"PFLOP/s", kP}};
constexpr Unit kCountUnits[] = {{"k", kK}, {"K", kK}, {"M", kM}, {"B", kG}, {"G", kG}, {"T", kT}};
constexpr Unit kTimeUnits[] = {{"d", 86400}, {"h", 3600},  {"min", 60},  {"m", 60},
                               {"s", 1},     {"ms", 1e-3}, {"us", 1e-6}, {"ns", 1e-9}};

constexpr std::string_view kByteList = "B, KiB, MiB, GiB, TiB, kB, MB, GB, TB";
constexpr std::string_view kRateList = "B/s, MB/s, GB/s, TB/s, MiB/s, GiB/s (bytes) or Mb/s, Gb/s (bits)";
constexpr std::string_view kFlopsList = "GFLOPS, TFLOPS, PFLOPS";
constexpr std::string_view kCountList = "none, k, M, B, T (thousand, million, billion, trillion)";
constexpr std::string_view kTimeList = "d, h, m, s, ms, us, ns";

// One kind of quantity: what to call it, its units, and how the right ones are listed in an error.
struct Kind {
  std::string_view noun;
  std::span<const Unit> units;
  std::string_view list;
  std::string_view example;
};

const Kind kBytesKind{"size", kByteUnits, kByteList, "80GiB"};
const Kind kRateKind{"bandwidth", kRateUnits, kRateList, "400Gb/s"};
const Kind kFlopsKind{"peak", kFlopsUnits, kFlopsList, "989TFLOPS"};
const Kind kCountKind{"count", kCountUnits, kCountList, "300B"};
const Kind kTimeKind{"duration", kTimeUnits, kTimeList, "1h30m"};

UserError wrong(const Kind& kind, std::string_view text, const std::string& why, const SourcePlace& place) {
  return bad_input(fmt::format("`{}` is not a {}: {}", printable(text), kind.noun, why),
                   fmt::format("write a number with one of {}, for example {}", kind.list, kind.example), place);
}

// Takes an unsigned decimal number off the front of `text`.
std::optional<double> take_number(std::string_view& text) {
  double value = 0.0;
  if (text.empty() || !((text[0] >= '0' && text[0] <= '9') || text[0] == '.')) return std::nullopt;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || !std::isfinite(value)) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return value;
}

std::optional<double> factor_of(const Kind& kind, std::string_view unit) {
  for (const Unit& known : kind.units) {
    if (known.name == unit) return known.factor;
  }
  return std::nullopt;
}

double parse_with_unit(const Kind& kind, std::string_view text, const SourcePlace& place) {
  std::string_view rest = trim(text);
  const auto number = take_number(rest);
  if (!number) throw wrong(kind, text, "it does not begin with a number >= 0", place);
  rest = trim(rest);
  if (rest.empty()) {
    if (*number == 0.0) return 0.0;
    throw wrong(kind, text, "the unit is missing", place);
  }
  const auto factor = factor_of(kind, rest);
  if (!factor) throw wrong(kind, text, fmt::format("unknown unit `{}`", printable(rest)), place);
  const double value = *number * *factor;
  if (!std::isfinite(value)) throw wrong(kind, text, "it is too large", place);
  return value;
}

// Three significant digits without an exponent for 0.1 <= value < 10000.
std::string digits(double value) {
  if (value >= 99.95) return fmt::format("{:.0f}", value);
  if (value >= 9.995) return fmt::format("{:.1f}", value);
  return fmt::format("{:.2f}", value);
}

struct Scaled {
  double value;
  std::string_view prefix;
};

Scaled scale(double value, double base, std::span<const std::string_view> prefixes) {
  std::size_t i = 0;
  while (i + 1 < prefixes.size() && std::fabs(value) >= base * 0.9995) {
    value /= base;
    ++i;
  }
  return {value, prefixes[i]};
}

constexpr std::array<std::string_view, 5> kBinary = {"B", "KiB", "MiB", "GiB", "TiB"};
constexpr std::array<std::string_view, 5> kDecimal = {"", "k", "M", "B", "T"};
constexpr std::array<std::string_view, 6> kSi = {"", "k", "M", "G", "T", "P"};

}  // namespace

double parse_bytes(std::string_view text, const SourcePlace& place) { return parse_with_unit(kBytesKind, text, place); }

double parse_bytes_per_second(std::string_view text, const SourcePlace& place) {
  return parse_with_unit(kRateKind, text, place);
}

double parse_flops_per_second(std::string_view text, const SourcePlace& place) {
  return parse_with_unit(kFlopsKind, text, place);
}

std::int64_t parse_count(std::string_view text, const SourcePlace& place) {
  const std::string_view body = trim(text);
  // Whole numbers are read as integers first: a double would round those above 2^53.
  std::int64_t whole = 0;
  if (!body.empty() && body[0] >= '0' && body[0] <= '9') {
    const auto [end, error] = std::from_chars(body.data(), body.data() + body.size(), whole);
    if (error == std::errc() && end == body.data() + body.size()) return whole;
  }
  std::string_view rest = body;
  const auto number = take_number(rest);
  if (!number) throw wrong(kCountKind, text, "it does not begin with a number >= 0", place);
  rest = trim(rest);
  const auto factor = rest.empty() ? std::optional<double>(1.0) : factor_of(kCountKind, rest);
  if (!factor) throw wrong(kCountKind, text, fmt::format("unknown unit `{}`", printable(rest)), place);
  const double value = std::round(*number * *factor);
  if (!(value < 9.2e18)) throw wrong(kCountKind, text, "it is too large", place);
  // 1.3B is 1300000000 although 1.3 is not exact in binary; 0.5 or 1.0001k are not counts.
  if (std::fabs(value - *number * *factor) > 1e-9 * std::max(1.0, value)) {
    throw wrong(kCountKind, text, "it is not a whole number", place);
  }
  return static_cast<std::int64_t>(value);
}

double parse_seconds(std::string_view text, const SourcePlace& place) {
  std::string_view rest = trim(text);
  if (rest == "0") return 0.0;
  double total = 0.0;
  double smallest = INFINITY;  // units must come in falling order, each once: "1h30m", not "30m1h"
  do {
    const auto number = take_number(rest);
    if (!number) throw wrong(kTimeKind, text, "it does not begin with a number >= 0", place);
    rest = trim(rest);
    std::size_t letters = 0;
    while (letters < rest.size() &&
           ((rest[letters] >= 'a' && rest[letters] <= 'z') || (rest[letters] >= 'A' && rest[letters] <= 'Z'))) {
      ++letters;
    }
    const std::string_view unit = rest.substr(0, letters);
    if (unit.empty()) throw wrong(kTimeKind, text, "the unit is missing", place);
    const auto factor = factor_of(kTimeKind, unit);
    if (!factor) throw wrong(kTimeKind, text, fmt::format("unknown unit `{}`", printable(unit)), place);
    if (*factor >= smallest) throw wrong(kTimeKind, text, "units must go from large to small, each once", place);
    smallest = *factor;
    total += *number * *factor;
    rest = trim(rest.substr(letters));
  } while (!rest.empty());
  if (!std::isfinite(total)) throw wrong(kTimeKind, text, "it is too large", place);
  return total;
}

double parse_real(std::string_view text, const SourcePlace& place) {
  std::string_view body = trim(text);
  if (!body.empty() && body[0] == '+') body.remove_prefix(1);
  double value = 0.0;
  const auto [end, error] = std::from_chars(body.data(), body.data() + body.size(), value);
  if (body.empty() || error != std::errc() || end != body.data() + body.size() || !std::isfinite(value)) {
    throw bad_input(fmt::format("`{}` is not a number", printable(text)), "write a plain number, for example 3e-4",
                    place);
  }
  return value;
}

std::int64_t parse_integer(std::string_view text, const SourcePlace& place) {
  std::string_view body = trim(text);
  if (body.size() > 1 && body[0] == '+' && body[1] != '-') body.remove_prefix(1);
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(body.data(), body.data() + body.size(), value);
  if (body.empty() || error != std::errc() || end != body.data() + body.size()) {
    throw bad_input(fmt::format("`{}` is not a whole number", printable(text)), "write digits only, for example 32",
                    place);
  }
  return value;
}

std::string format_bytes(double bytes) {
  const Scaled scaled = scale(bytes, 1024.0, kBinary);
  if (scaled.prefix == "B") return fmt::format("{:.0f} B", scaled.value);
  return digits(scaled.value) + " " + std::string(scaled.prefix);
}

std::string format_count(double count) {
  const Scaled scaled = scale(count, 1000.0, kDecimal);
  if (scaled.prefix.empty()) {
    return scaled.value == std::floor(scaled.value) ? fmt::format("{:.0f}", scaled.value) : digits(scaled.value);
  }
  return digits(scaled.value) + " " + std::string(scaled.prefix);
}

std::string format_rate(double per_second, std::string_view unit) {
  const Scaled scaled = scale(per_second, 1000.0, kSi);
  if (unit == "B") return fmt::format("{} {}B/s", digits(scaled.value), scaled.prefix);
  return fmt::format("{} {}{}{}/s", digits(scaled.value), scaled.prefix, scaled.prefix.empty() ? "" : " ", unit);
}

std::string format_seconds(double seconds) {
  if (!std::isfinite(seconds)) return "?";
  if (seconds < 0) return fmt::format("-{}", format_seconds(-seconds));
  if (seconds == 0) return "0 s";
  if (seconds < 1e-6) return digits(seconds * 1e9) + " ns";
  if (seconds < 1e-3) return digits(seconds * 1e6) + " us";
  if (seconds < 0.9995) return digits(seconds * 1e3) + " ms";
  if (seconds < 59.95) return digits(seconds) + " s";
  if (seconds > 1e11) return fmt::format("{:.3g} years", seconds / (365.25 * 86400));
  const auto whole = static_cast<std::int64_t>(std::llround(seconds));
  const std::int64_t days = whole / 86400, hours = whole / 3600 % 24, minutes = whole / 60 % 60, rest = whole % 60;
  if (days > 0) return fmt::format("{}d {}h {}m", days, hours, minutes);
  if (hours > 0) return fmt::format("{}h {}m {}s", hours, minutes, rest);
  return fmt::format("{}m {}s", minutes, rest);
}

std::string exact_real(double value) {
  char buffer[32];
  const auto [end, error] = std::to_chars(buffer, buffer + sizeof buffer, value);
  (void)error;  // 32 characters hold every double
  return std::string(buffer, end);
}

std::string exact_bytes(double bytes) { return exact_real(bytes) + "B"; }
std::string exact_bytes_per_second(double bytes_per_second) { return exact_real(bytes_per_second) + "B/s"; }
std::string exact_flops_per_second(double flops_per_second) { return exact_real(flops_per_second) + "FLOPS"; }
std::string exact_seconds(double seconds) { return exact_real(seconds) + "s"; }

}  // namespace lockstep
