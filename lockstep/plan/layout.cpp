#include "lockstep/plan/layout.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::plan {
namespace {

constexpr std::array<std::pair<Schedule, const char*>, 5> kSchedules{{{Schedule::kNone, "none"},
                                                                      {Schedule::kGpipe, "gpipe"},
                                                                      {Schedule::kOneForwardOneBackward, "1f1b"},
                                                                      {Schedule::kInterleaved, "interleaved"},
                                                                      {Schedule::kZeroBubble, "zero_bubble"}}};
constexpr std::array<std::pair<Recompute, const char*>, 3> kRecomputes{
    {{Recompute::kNone, "none"}, {Recompute::kSelective, "selective"}, {Recompute::kFull, "full"}}};
constexpr std::array<std::pair<ContextExchange, const char*>, 2> kContextExchanges{
    {{ContextExchange::kRing, "ring"}, {ContextExchange::kAllToAll, "all_to_all"}}};
constexpr std::array<std::pair<Offload, const char*>, 3> kOffloads{
    {{Offload::kNone, "none"}, {Offload::kOptimizer, "optimizer"}, {Offload::kParameters, "parameters"}}};
constexpr std::array<std::pair<spec::Precision, const char*>, 5> kPrecisions{{{spec::Precision::kFp64, "fp64"},
                                                                              {spec::Precision::kFp32, "fp32"},
                                                                              {spec::Precision::kFp16, "fp16"},
                                                                              {spec::Precision::kBf16, "bf16"},
                                                                              {spec::Precision::kFp8, "fp8"}}};

constexpr std::int64_t kMostStages = 1 << 16;

template <class Table>
auto find_by_name(const Table& table, std::string_view name) {
  using Value = typename Table::value_type::first_type;
  for (const auto& [value, text] : table) {
    if (name == text) return std::optional<Value>(value);
  }
  return std::optional<Value>();
}

template <class Table, class Value>
const char* find_name(const Table& table, Value wanted) {
  for (const auto& [value, text] : table) {
    if (value == wanted) return text;
  }
  return "?";
}

struct Axis {
  const char* name;
  std::int64_t Layout::*field;
};
constexpr std::array<Axis, 8> kAxes{{{"pp", &Layout::pp},
                                     {"dp", &Layout::dp},
                                     {"shard", &Layout::shard},
                                     {"zero", &Layout::zero},
                                     {"cp", &Layout::cp},
                                     {"tp", &Layout::tp},
                                     {"ep", &Layout::ep},
                                     {"virtual_stages", &Layout::virtual_stages}}};

std::vector<std::string> layout_keys() {
  std::vector<std::string> keys;
  keys.reserve(2 * kAxes.size());
  for (const Axis& axis : kAxes) keys.emplace_back(axis.name);
  for (const char* key :
       {"sequence_parallel", "stage_layers", "schedule", "recompute", "context_exchange", "offload", "precision"})
    keys.emplace_back(key);
  return keys;
}

std::int64_t parse_axis(std::string_view key, std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    throw bad_input(fmt::format("layout: {}={} is no whole number", key, printable(text)),
                    "write for instance dp=4,shard=8");
  }
  return value;
}

std::vector<std::int64_t> parse_stage_layers(std::string_view text) {
  std::vector<std::int64_t> layers;
  while (true) {
    const std::size_t plus = text.find('+');
    const std::string_view item = text.substr(0, plus);
    const std::size_t times = item.find('x');
    const std::int64_t count = times == std::string_view::npos ? 1 : parse_axis("stage_layers", item.substr(times + 1));
    if (count < 1 || count > kMostStages) {
      throw bad_input(fmt::format("layout: stage_layers={} repeats {} times", printable(item), count),
                      "write for instance 8x3+7 for 8+8+8+7");
    }
    layers.insert(layers.end(), static_cast<std::size_t>(count), parse_axis("stage_layers", item.substr(0, times)));
    if (plus == std::string_view::npos) return layers;
    text.remove_prefix(plus + 1);
  }
}

// "8+8+7", with three and more of a kind as "8x3".
std::string stage_layers_text(const std::vector<std::int64_t>& layers) {
  constexpr std::ptrdiff_t kShortestRun = 3;
  std::string text;
  for (auto first = layers.begin(); first != layers.end();) {
    const auto last = std::find_if(first, layers.end(), [first](std::int64_t value) { return value != *first; });
    const bool run = last - first >= kShortestRun;
    const auto end = run ? last : first + 1;
    text += fmt::format("{}{}", text.empty() ? "" : "+", *first);
    if (run) text += fmt::format("x{}", last - first);
    first = end;
  }
  return text;
}

// What the user said, to tell "absent" from "given as the default".
struct Given {
  bool zero = false;
  bool schedule = false;
};

void assign(Layout& layout, Given& given, std::string_view key, std::string_view value) {
  for (const Axis& axis : kAxes) {
    if (key != axis.name) continue;
    layout.*axis.field = parse_axis(key, value);
    given.zero |= key == "zero";
    return;
  }
  const auto refuse = [&](const char* choices) {
    throw bad_input(fmt::format("layout: {}={} is unknown", key, printable(value)),
                    fmt::format("use one of {}", choices));
  };
  if (key == "schedule") {
    const auto schedule = parse_schedule(value);
    if (!schedule) refuse("none, gpipe, 1f1b, interleaved, zero_bubble");
    layout.schedule = *schedule;
    given.schedule = true;
  } else if (key == "recompute") {
    const auto recompute = parse_recompute(value);
    if (!recompute) refuse("none, selective, full");
    layout.recompute = *recompute;
  } else if (key == "context_exchange") {
    const auto exchange = parse_context_exchange(value);
    if (!exchange) refuse("ring, all_to_all");
    layout.context_exchange = *exchange;
  } else if (key == "offload") {
    const auto offload = parse_offload(value);
    if (!offload) refuse("none, optimizer, parameters");
    layout.offload = *offload;
  } else if (key == "precision") {
    const auto precision = parse_precision(value);
    if (!precision) refuse("fp64, fp32, fp16, bf16, fp8");
    layout.precision = *precision;
  } else if (key == "sequence_parallel") {
    if (value != "true" && value != "false") refuse("true, false");
    layout.sequence_parallel = value == "true";
  } else if (key == "stage_layers") {
    layout.stage_layers = parse_stage_layers(value);
  } else {
    throw bad_input(fmt::format("layout: unknown key \"{}\"", printable(key)), did_you_mean(key, layout_keys()));
  }
}

void fill_in(Layout& layout, const Given& given) {
  if (!given.zero && layout.shard > 1) layout.zero = 3;
  if (!given.schedule && layout.pp > 1) {
    layout.schedule = layout.virtual_stages > 1 ? Schedule::kInterleaved : Schedule::kOneForwardOneBackward;
  }
}

}  // namespace

Layout parse_layout(std::string_view text) {
  Layout layout;
  Given given;
  while (!text.empty()) {
    const std::size_t comma = text.find(',');
    const std::string_view item = text.substr(0, comma);
    const std::size_t equals = item.find('=');
    if (equals == std::string_view::npos) {
      throw bad_input(fmt::format("layout: \"{}\" is no key=value", printable(item)),
                      "write for instance dp=4,shard=8,tp=1");
    }
    assign(layout, given, item.substr(0, equals), item.substr(equals + 1));
    text.remove_prefix(comma == std::string_view::npos ? text.size() : comma + 1);
  }
  fill_in(layout, given);
  require_valid_layout(layout);
  return layout;
}

Layout layout_from_request(const spec::LayoutRequest& request, spec::Precision precision) {
  Layout layout;
  layout.precision = precision;
  Given given;
  for (const auto& [key, value] : request.axes) assign(layout, given, key, std::to_string(value));
  for (const auto& [key, value] : request.choices) assign(layout, given, key, value);
  layout.sequence_parallel = request.sequence_parallel;
  layout.stage_layers = request.stage_layers;
  fill_in(layout, given);
  return layout;
}

std::string to_string(const Layout& layout) {
  std::string text;
  const auto append = [&](std::string_view key, std::string_view value) {
    if (!text.empty()) text += ',';
    text += fmt::format("{}={}", key, value);
  };
  for (const Axis& axis : kAxes) {
    const bool is_zero = std::string_view(axis.name) == "zero";
    const bool is_default = is_zero ? layout.zero == (layout.shard > 1 ? 3 : 0) : layout.*axis.field == 1;
    if (!is_default) append(axis.name, std::to_string(layout.*axis.field));
  }
  Layout filled = layout;
  filled.schedule = Schedule::kNone;
  fill_in(filled, {.zero = true});
  if (layout.schedule != filled.schedule) append("schedule", to_string(layout.schedule));
  if (layout.sequence_parallel) append("sequence_parallel", "true");
  if (!layout.stage_layers.empty()) append("stage_layers", stage_layers_text(layout.stage_layers));
  if (layout.recompute != Recompute::kNone) append("recompute", to_string(layout.recompute));
  if (layout.context_exchange != ContextExchange::kRing) {
    append("context_exchange", to_string(layout.context_exchange));
  }
  if (layout.offload != Offload::kNone) append("offload", to_string(layout.offload));
  if (layout.precision != spec::Precision::kFp32) append("precision", find_name(kPrecisions, layout.precision));
  return text.empty() ? "dp=1" : text;
}

const char* to_string(Schedule schedule) { return find_name(kSchedules, schedule); }
const char* to_string(Recompute recompute) { return find_name(kRecomputes, recompute); }
const char* to_string(ContextExchange exchange) { return find_name(kContextExchanges, exchange); }
const char* to_string(Offload offload) { return find_name(kOffloads, offload); }
std::optional<Schedule> parse_schedule(std::string_view text) { return find_by_name(kSchedules, text); }
std::optional<Recompute> parse_recompute(std::string_view text) { return find_by_name(kRecomputes, text); }
std::optional<ContextExchange> parse_context_exchange(std::string_view text) {
  return find_by_name(kContextExchanges, text);
}
std::optional<Offload> parse_offload(std::string_view text) { return find_by_name(kOffloads, text); }
std::optional<spec::Precision> parse_precision(std::string_view text) { return find_by_name(kPrecisions, text); }

std::int64_t bytes_per_element(spec::Precision precision) {
  switch (precision) {
    case spec::Precision::kFp64:
      return 8;
    case spec::Precision::kFp32:
      return 4;
    case spec::Precision::kFp16:
    case spec::Precision::kBf16:
      return 2;
    case spec::Precision::kFp8:
      return 1;
  }
  return 0;
}

}  // namespace lockstep::plan
