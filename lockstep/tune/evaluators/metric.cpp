#include "lockstep/tune/evaluators/metric.h"

#include <cctype>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "lockstep/base/error.h"
#include "lockstep/base/json.h"
#include "lockstep/base/text.h"

namespace lockstep::tune {
namespace {

bool is_word_char(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

// The number behind `name` and its ':' or '='; NaN for a text that is not a number.
std::optional<double> value_in_text(std::string_view line, const std::string& name) {
  for (std::size_t at = line.find(name); at != std::string_view::npos; at = line.find(name, at + 1)) {
    if (at > 0 && is_word_char(line[at - 1])) continue;
    std::string_view rest = line.substr(at + name.size());
    if (!rest.empty() && (rest.front() == '"' || rest.front() == '\'')) rest.remove_prefix(1);
    rest = trim(rest);
    if (rest.empty() || (rest.front() != ':' && rest.front() != '=')) continue;
    rest = trim(rest.substr(1));
    double value = NAN;
    if (!rest.empty() && rest.front() == '+') rest.remove_prefix(1);
    std::from_chars(rest.data(), rest.data() + rest.size(), value);
    return value;
  }
  return std::nullopt;
}

std::vector<double> values_in_json(const nlohmann::json& value) {
  if (value.is_number()) return {value.get<double>()};
  std::vector<double> values;
  if (value.is_array()) {
    for (const auto& entry : value) values.push_back(entry.is_number() ? entry.get<double>() : NAN);
  }
  return values;
}

constexpr double kMostThroughput = 1e100;

// A line that claims to be JSON; null when it is not, or is nested as no answer is.
nlohmann::json document_in(std::string_view text) {
  try {
    return parse_json(text, "line");
  } catch (const UserError&) {
    return nullptr;
  }
}

}  // namespace

bool is_throughput(double value) { return std::isfinite(value) && value > 0 && value < kMostThroughput; }

MetricReader::MetricReader(const std::string& name) {
  if (name.empty()) {
    names_ = {"tokens_per_second", "samples_per_second", "throughput"};
  } else {
    names_ = {name};
  }
}

bool MetricReader::take(double value, std::vector<double>& values) {
  if (!is_throughput(value)) {
    ++refused_;
    return false;
  }
  values.push_back(value);
  return true;
}

std::vector<double> MetricReader::read(std::string_view line) {
  std::vector<double> values;
  const std::string_view text = trim(line);
  const bool whole_json = text.starts_with('{') && text.ends_with('}');
  const nlohmann::json document = whole_json ? document_in(text) : nlohmann::json();
  for (const std::string& name : names_) {
    if (!metric_.empty() && name != metric_) continue;
    std::vector<double> found;
    if (document.is_object()) {
      const auto entry = document.find(name);
      if (entry != document.end()) found = values_in_json(*entry);
    } else if (const auto value = value_in_text(text, name)) {
      found = {*value};
    }
    if (found.empty()) continue;
    for (const double value : found) take(value, values);
    if (!values.empty()) metric_ = name;
    return values;
  }
  return values;
}

std::string MetricReader::unit() const {
  const std::string& name = metric_.empty() ? names_.front() : metric_;
  if (name == "tokens_per_second") return "tokens/s";
  if (name == "samples_per_second") return "samples/s";
  return name == "throughput" ? "units/s" : name;
}

std::string MetricReader::wanted() const { return join(names_, ", "); }

}  // namespace lockstep::tune
