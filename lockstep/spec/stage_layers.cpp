#include "lockstep/spec/stage_layers.h"

#include <fmt/format.h>

#include <charconv>

#include "lockstep/base/text.h"

namespace lockstep::spec {
namespace {

constexpr std::int64_t kMostStages = 1 << 16;
constexpr const char* kExample = "write for instance 8x3+7 for 8+8+8+7";

std::int64_t whole_number(std::string_view text, const SourcePlace& place) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size()) return value;
  throw bad_input(fmt::format("layout: stage_layers={} is not a whole number", printable(text)), kExample, place);
}

}  // namespace

std::vector<std::int64_t> parse_stage_layers(std::string_view text, const SourcePlace& place) {
  std::vector<std::int64_t> layers;
  while (true) {
    const std::size_t plus = text.find('+');
    const std::string_view item = text.substr(0, plus);
    const std::size_t times = item.find('x');
    const std::int64_t count = times == std::string_view::npos ? 1 : whole_number(item.substr(times + 1), place);
    if (count < 1 || count > kMostStages) {
      throw bad_input(fmt::format("layout: stage_layers={} repeats {} times", printable(item), count), kExample, place);
    }
    layers.insert(layers.end(), static_cast<std::size_t>(count), whole_number(item.substr(0, times), place));
    if (plus == std::string_view::npos) return layers;
    text.remove_prefix(plus + 1);
  }
}

}  // namespace lockstep::spec
