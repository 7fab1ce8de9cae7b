#include "lockstep/report/runbook/quotes.h"

#include <fmt/format.h>

#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/report/figures.h"

namespace lockstep::report {
namespace {

constexpr double kShortDays = 2, kSecondsPerDay = 86400;

// "30m" for "30m 0s", "10 s" for "10.0 s".
std::string plain_seconds(double seconds) {
  if (seconds >= 1 && seconds < 60 && seconds == std::floor(seconds)) return fmt::format("{:.0f} s", seconds);
  std::string text = format_seconds(seconds);
  for (const std::string_view nothing : {" 0s", " 0m"}) {
    if (text.ends_with(nothing)) text.resize(text.size() - nothing.size());
  }
  return text;
}

}  // namespace

const nlohmann::json& Quotes::at(const std::string& path) const {
  const nlohmann::json::json_pointer pointer(path);
  LOCKSTEP_ASSERT(document_.contains(pointer), "no figure at " + path);
  return document_.at(pointer);
}

std::string Quotes::keep(const std::string& path, const char* as, std::string text) {
  figures_.emplace(path, as, text);
  return text;
}

bool Quotes::has(const std::string& path) const {
  const nlohmann::json::json_pointer pointer(path);
  return document_.contains(pointer) && !document_.at(pointer).is_null();
}

double Quotes::number(const std::string& path) const { return at(path).get<double>(); }
bool Quotes::is_true(const std::string& path) const { return has(path) && at(path).get<bool>(); }
std::size_t Quotes::size(const std::string& path) const { return has(path) ? at(path).size() : 0; }

std::string Quotes::seconds(const std::string& path) { return keep(path, "seconds", plain_seconds(number(path))); }
std::string Quotes::bytes(const std::string& path) { return keep(path, "bytes", format_bytes(number(path))); }
std::string Quotes::gib(const std::string& path) { return keep(path, "gib", format_bytes(kGiB * number(path))); }
std::string Quotes::count(const std::string& path) { return keep(path, "count", format_count(number(path))); }

std::string Quotes::rate(const std::string& path) { return keep(path, "rate", format_rate(number(path), "B")); }

std::string Quotes::percent(const std::string& path, int decimals) {
  return keep(path, "percent", fmt::format("{:.{}f}%", 100 * number(path), decimals));
}

std::string Quotes::signed_percent(const std::string& path) {
  return keep(path, "percent", fmt::format("{:+.1f}%", 100 * number(path)));
}

std::string Quotes::percent_number(const std::string& path) {
  return keep(path, "percent_number", fmt::format("{:.1f}%", number(path)));
}

std::string Quotes::whole(const std::string& path) { return keep(path, "whole", fmt::format("{:.0f}", number(path))); }
std::string Quotes::real(const std::string& path) { return keep(path, "real", fmt::format("{:.3g}", number(path))); }
std::string Quotes::dollars(const std::string& path) {
  return keep(path, "dollars", format_dollars(number(path)) + " USD");
}

std::string Quotes::days(const std::string& path) {
  const double days = number(path);
  return keep(path, "days",
              days < kShortDays ? plain_seconds(days * kSecondsPerDay) : fmt::format("{:.1f} days", days));
}

std::string Quotes::text(const std::string& path) { return keep(path, "text", at(path).get<std::string>()); }

std::string Quotes::layout(const std::string& path) {
  std::vector<std::string> parts = split(at(path).get<std::string>(), ',');
  std::erase_if(parts, [](const std::string& part) { return part.starts_with("precision="); });
  return keep(path, "layout", join(parts, ", "));
}

nlohmann::json Quotes::figures() const {
  nlohmann::json all = nlohmann::json::array();
  for (const auto& [path, as, text] : figures_) all.push_back({{"path", path}, {"as", as}, {"text", text}});
  return all;
}

}  // namespace lockstep::report
