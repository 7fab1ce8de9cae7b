#include "lockstep/elastic/output_lines.h"

#include <utility>

namespace lockstep::elastic {
namespace {

constexpr std::size_t kLongestLine = 64 << 10;
constexpr double kBarSeconds = 1.0;

// What stays of a line whose beginning was written over.
std::string visible(std::string_view line) {
  while (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  const std::size_t start = line.rfind('\r');
  return std::string(start == std::string_view::npos ? line : line.substr(start + 1));
}

}  // namespace

void OutputLines::add(std::string_view bytes, double now, const Take& take) {
  partial_.append(bytes);
  std::size_t begin = 0;
  for (std::size_t end; (end = partial_.find('\n', begin)) != std::string::npos; begin = end + 1) {
    take(visible(std::string_view(partial_).substr(begin, end - begin)));
    shown_ = now;
  }
  partial_.erase(0, begin);
  const std::size_t bar = partial_.rfind('\r');
  const bool complete = bar != std::string::npos && bar > 0;
  if (complete && (now - shown_ >= kBarSeconds || partial_.size() > kLongestLine)) {
    const std::string line = visible(std::string_view(partial_).substr(0, bar));
    if (!line.empty()) take(line);
    partial_.erase(0, bar);
    shown_ = now;
  } else if (partial_.size() > kLongestLine) {
    take(std::exchange(partial_, {}));
  }
}

void OutputLines::finish(const Take& take) {
  const std::string line = visible(partial_);
  partial_.clear();
  if (!line.empty()) take(line);
}

}  // namespace lockstep::elastic
