#include "lockstep/serve/exposition.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>

#include "lockstep/base/text.h"
#include "lockstep/serve/request.h"

namespace lockstep::serve {
namespace {

std::string escaped(std::string_view text, bool quotes) {
  std::string result;
  for (const char c : text) {
    if (c == '\\') {
      result += "\\\\";
    } else if (c == '\n') {
      result += "\\n";
    } else if (c == '"' && quotes) {
      result += "\\\"";
    } else {
      result += c;
    }
  }
  return result;
}

// Label values are UTF-8 by the format; control characters of hostile names would only trouble who reads them.
std::string label_value(const std::string& text) {
  return escaped(is_printable(text) ? text : printable(text, text.size() * 4), true);
}

std::string number_text(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

bool in_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == ':'; }

// A cursor over one line.
struct Line {
  std::string_view rest;

  void skip_spaces() { rest.remove_prefix(std::min(rest.find_first_not_of(" \t"), rest.size())); }
  bool take(char c) {
    skip_spaces();
    if (rest.empty() || rest.front() != c) return false;
    rest.remove_prefix(1);
    return true;
  }
  std::string_view name() {
    skip_spaces();
    const auto end = std::find_if_not(rest.begin(), rest.end(), in_name);
    const std::string_view found = rest.substr(0, static_cast<std::size_t>(end - rest.begin()));
    rest.remove_prefix(found.size());
    return found;
  }
  // After the opening quote.
  std::optional<std::string> quoted() {
    std::string text;
    for (std::size_t i = 0; i < rest.size(); ++i) {
      if (rest[i] == '"') {
        rest.remove_prefix(i + 1);
        return text;
      }
      if (rest[i] == '\\' && i + 1 < rest.size()) {
        ++i;
        text += rest[i] == 'n' ? '\n' : rest[i];
      } else {
        text += rest[i];
      }
    }
    return std::nullopt;
  }
};

bool parse_labels(Line& line, Labels& labels) {
  if (!line.take('{')) return true;
  while (!line.take('}')) {
    const std::string name(line.name());
    if (name.empty() || !line.take('=') || !line.take('"') || labels.size() >= kMostLabels) return false;
    auto value = line.quoted();
    if (!value) return false;
    labels.emplace_back(name, std::move(*value));
    if (!line.take(',') && (line.rest.empty() || line.rest.front() != '}')) return false;
  }
  return true;
}

std::optional<double> parse_value(std::string_view text) {
  const std::string lower = to_lower(text);
  if (lower == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (lower == "inf" || lower == "+inf") return std::numeric_limits<double>::infinity();
  if (lower == "-inf") return -std::numeric_limits<double>::infinity();
  if (text.starts_with('+')) text.remove_prefix(1);
  double value = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<Sample> parse_line(std::string_view text) {
  Line line{text};
  Sample sample;
  sample.name = line.name();
  if (sample.name.empty() || !parse_labels(line, sample.labels)) return std::nullopt;
  line.skip_spaces();
  const std::string_view value = line.rest.substr(0, line.rest.find_first_of(" \t\r"));  // a time may follow
  const auto parsed = parse_value(value);
  if (!parsed) return std::nullopt;
  sample.value = *parsed;
  return sample;
}

}  // namespace

ExpositionFormat format_for(std::string_view accept) {
  return accepts(accept, "application/openmetrics-text") ? ExpositionFormat::kOpenMetrics : ExpositionFormat::kText;
}

const char* content_type_of(ExpositionFormat format) {
  return format == ExpositionFormat::kText ? "text/plain; version=0.0.4; charset=utf-8"
                                           : "application/openmetrics-text; version=1.0.0; charset=utf-8";
}

void Exposition::add(std::string_view name, std::string_view type, std::string_view help, const Labels& labels,
                     double value) {
  auto place = places_.find(name);
  if (place == places_.end()) {
    place = places_.emplace(name, families_.size()).first;
    std::string_view family = name;  // OpenMetrics names a counter without its suffix
    if (format_ == ExpositionFormat::kOpenMetrics && type == "counter")
      family.remove_suffix(std::string_view("_total").size());
    families_.emplace_back(name, fmt::format("# HELP {0} {1}\n# TYPE {0} {2}\n", family, escaped(help, false), type));
  }
  std::string& text = families_[place->second].second;
  text += name;
  for (std::size_t i = 0; i < labels.size(); ++i) {
    text += fmt::format("{}{}=\"{}\"", i == 0 ? '{' : ',', labels[i].first, label_value(labels[i].second));
  }
  text += fmt::format("{} {}\n", labels.empty() ? "" : "}", number_text(value));
}

std::string Exposition::text() const {
  std::string text;
  for (const auto& [name, lines] : families_) text += lines;
  if (format_ == ExpositionFormat::kOpenMetrics) text += "# EOF\n";
  return text;
}

std::vector<Sample> parse_exposition(std::string_view text) {
  std::vector<Sample> samples;
  while (!text.empty() && samples.size() < kMostSamples) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = trim(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.empty() || line.front() == '#') continue;
    if (auto sample = parse_line(line)) samples.push_back(std::move(*sample));
  }
  return samples;
}

}  // namespace lockstep::serve
