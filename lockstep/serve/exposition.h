// Prometheus' text format: written for /metrics, read from other exporters.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::serve {

using Labels = std::vector<std::pair<std::string, std::string>>;

enum class ExpositionFormat {
  kText,         // text/plain; version=0.0.4
  kOpenMetrics,  // application/openmetrics-text; version=1.0.0
};
// By a request's Accept header.
ExpositionFormat format_for(std::string_view accept);
const char* content_type_of(ExpositionFormat format);

// Samples of families, each family in one piece and in the order of its first sample.
class Exposition {
 public:
  explicit Exposition(ExpositionFormat format) : format_(format) {}
  // `type` is "gauge" or "counter"; the name of a counter ends with _total.
  void add(std::string_view name, std::string_view type, std::string_view help, const Labels& labels, double value);
  std::string text() const;

 private:
  ExpositionFormat format_;
  std::vector<std::pair<std::string, std::string>> families_;  // name and what is written of it
  std::map<std::string, std::size_t, std::less<>> places_;     // in families_
};

struct Sample {
  std::string name;
  Labels labels;
  double value = 0.0;
};

inline constexpr std::size_t kMostSamples = 100'000;
inline constexpr std::size_t kMostLabels = 64;

// What the text says, line by line; lines that are none are left out, as is what comes after kMostSamples. Never
// throws, whatever the text holds.
std::vector<Sample> parse_exposition(std::string_view text);

}  // namespace lockstep::serve
