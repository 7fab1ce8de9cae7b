#include "lockstep/plan/layout.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <type_traits>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/spec/stage_layers.h"

namespace lockstep::plan {
namespace {

template <auto Member>
std::int64_t get(const Layout& layout) {
  return static_cast<std::int64_t>(layout.*Member);
}

template <auto Member>
void set(Layout& layout, std::int64_t value) {
  layout.*Member = static_cast<std::remove_reference_t<decltype(layout.*Member)>>(value);
}

template <std::int64_t Value>
std::int64_t always(const Layout&) {
  return Value;
}

constexpr std::int64_t kFp32 = static_cast<std::int64_t>(spec::Precision::kFp32);

bool is_any(const Layout&) { return true; }
bool has_pipeline(const Layout& layout) { return layout.pp > 1; }
bool has_tensor_ranks(const Layout& layout) { return layout.tp > 1; }
bool has_context_ranks(const Layout& layout) { return layout.cp > 1; }

std::int64_t usual_zero(const Layout& layout) { return layout.shard > 1 ? 3 : 0; }

std::int64_t usual_schedule(const Layout& layout) {
  if (layout.pp == 1) return static_cast<std::int64_t>(Schedule::kNone);
  return static_cast<std::int64_t>(layout.virtual_stages > 1 ? Schedule::kInterleaved
                                                             : Schedule::kOneForwardOneBackward);
}

template <auto Member, std::int64_t Usual = 1>
constexpr LayoutField field(std::size_t key, bool (*matters)(const Layout&) = is_any,
                            std::int64_t (*usual)(const Layout&) = always<Usual>) {
  return {&spec::kLayoutKeys[key], get<Member>, set<Member>, matters, usual};
}

constexpr std::array<LayoutField, spec::kLayoutKeys.size()> kFields{
    field<&Layout::pp>(0),
    field<&Layout::dp>(1),
    field<&Layout::shard>(2),
    field<&Layout::zero>(3, is_any, usual_zero),
    field<&Layout::cp>(4),
    field<&Layout::tp>(5),
    field<&Layout::ep>(6),
    field<&Layout::virtual_stages>(7, has_pipeline),
    field<&Layout::schedule>(8, has_pipeline, usual_schedule),
    field<&Layout::sequence_parallel, 0>(9, has_tensor_ranks),
    field<&Layout::recompute, 0>(10),
    field<&Layout::context_exchange, 0>(11, has_context_ranks),
    field<&Layout::offload, 0>(12),
    field<&Layout::precision, kFp32>(13)};

template <class Enum, class Names>
std::optional<Enum> find_choice(const Names& choices, std::string_view text) {
  const auto found = std::find(choices.begin(), choices.end(), text);
  if (found == choices.end()) return std::nullopt;
  return static_cast<Enum>(found - choices.begin());
}

std::int64_t parse_axis(std::string_view key, std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    throw bad_input(fmt::format("layout: {}={} is not a whole number", key, printable(text)),
                    "write for instance dp=4,shard=8");
  }
  return value;
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

// Remembers what was given, to tell "absent" from "given as the default".
class LayoutBuilder {
 public:
  void assign(std::string_view key, std::string_view value) {
    if (key == "stage_layers") {
      layout_.stage_layers = spec::parse_stage_layers(value);
      return;
    }
    const LayoutField* field = find_layout_field(key);
    if (field == nullptr) {
      std::vector<std::string> known{"stage_layers"};
      for (const LayoutField& other : kFields) known.emplace_back(other.name());
      throw bad_input(fmt::format("layout: unknown key \"{}\"", printable(key)), did_you_mean(key, known));
    }
    set(*field, field->is_axis() ? parse_axis(key, value) : parse_choice(*field, value));
  }

  void set(const LayoutField& field, std::int64_t value) {
    field.set(layout_, value);
    given_.push_back(&field);
  }

  Layout finish() {
    for (const LayoutField& field : kFields) {
      if (std::find(given_.begin(), given_.end(), &field) == given_.end()) field.set(layout_, field.usual(layout_));
    }
    return std::move(layout_);
  }

 private:
  static std::int64_t parse_choice(const LayoutField& field, std::string_view value) {
    const auto choices = field.key->choices;
    if (const auto place = find_choice<std::int64_t>(choices, value)) return *place;
    throw bad_input(fmt::format("layout: {}={} is unknown", field.name(), printable(value)),
                    fmt::format("use one of {}", fmt::join(choices, ", ")));
  }

  Layout layout_;
  std::vector<const LayoutField*> given_;
};

}  // namespace

std::string LayoutField::text(const Layout& layout) const {
  const std::int64_t value = get(layout);
  return is_axis() ? std::to_string(value) : key->choices[static_cast<std::size_t>(value)];
}

std::span<const LayoutField> layout_fields() { return kFields; }

const LayoutField* find_layout_field(std::string_view name) {
  const auto found =
      std::find_if(kFields.begin(), kFields.end(), [&](const auto& field) { return field.name() == name; });
  return found == kFields.end() ? nullptr : &*found;
}

Layout parse_layout(std::string_view text) {
  LayoutBuilder builder;
  while (!text.empty()) {
    const std::size_t comma = text.find(',');
    const std::string_view item = text.substr(0, comma);
    const std::size_t equals = item.find('=');
    if (equals == std::string_view::npos) {
      throw bad_input(fmt::format("layout: \"{}\" is not key=value", printable(item)),
                      "write for instance dp=4,shard=8,tp=1");
    }
    builder.assign(item.substr(0, equals), item.substr(equals + 1));
    text.remove_prefix(comma == std::string_view::npos ? text.size() : comma + 1);
  }
  Layout layout = builder.finish();
  require_valid_layout(layout);
  return layout;
}

Layout layout_from_request(const spec::LayoutRequest& request, spec::Precision precision) {
  LayoutBuilder builder;
  for (const auto& [key, value] : request.axes) builder.assign(key, std::to_string(value));
  for (const auto& [key, value] : request.choices) builder.assign(key, value);
  Layout layout = builder.finish();
  layout.precision = precision;
  layout.sequence_parallel = request.sequence_parallel;
  layout.stage_layers = request.stage_layers;
  return layout;
}

spec::LayoutRequest request_from_layout(const Layout& layout) {
  spec::LayoutRequest request;
  for (const LayoutField& field : kFields) {
    const std::string_view name = field.name();
    if (name == "sequence_parallel" || name == "precision" || !field.matters(layout)) continue;
    if (field.is_axis()) {
      request.axes.emplace(name, field.get(layout));
    } else {
      request.choices.emplace(name, field.text(layout));
    }
  }
  request.sequence_parallel = layout.sequence_parallel;
  request.stage_layers = layout.stage_layers;
  return request;
}

std::string to_string(const Layout& layout) {
  std::string text;
  const auto append = [&](std::string_view key, std::string_view value) {
    text += fmt::format("{}{}={}", text.empty() ? "" : ",", key, value);
  };
  for (const LayoutField& field : kFields) {
    if (field.name() == std::string_view("recompute") && !layout.stage_layers.empty()) {
      append("stage_layers", stage_layers_text(layout.stage_layers));
    }
    if (field.get(layout) != field.usual(layout)) append(field.name(), field.text(layout));
  }
  return text.empty() ? "dp=1" : text;
}

const char* to_string(Schedule schedule) { return spec::names::kSchedules[static_cast<std::size_t>(schedule)]; }
const char* to_string(Recompute recompute) { return spec::names::kRecomputes[static_cast<std::size_t>(recompute)]; }
const char* to_string(ContextExchange exchange) {
  return spec::names::kContextExchanges[static_cast<std::size_t>(exchange)];
}
const char* to_string(Offload offload) { return spec::names::kOffloads[static_cast<std::size_t>(offload)]; }
std::optional<spec::Precision> parse_precision(std::string_view text) {
  return find_choice<spec::Precision>(spec::names::kPrecisions, text);
}

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
