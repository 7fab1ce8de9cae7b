// Reads space files.
#include "lockstep/tune/space/reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lockstep/base/map_reader.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/tune/job/nccl_rules.h"

namespace lockstep::tune {
namespace {

constexpr std::size_t kMostKnobs = 256;
constexpr std::size_t kMostChoices = 4096;
constexpr double kMostReal = 1e15;

const std::vector<std::string> kKinds = {"choices", "int", "log_int", "float", "log_float", "bool", "fixed"};

// Quoted values are texts; others are what they look like.
Value read_value(const YamlNode& node, const std::string& key) {
  if (!node.is_scalar()) {
    throw bad_input(fmt::format("`{}` holds {}, a value was expected", key, node.kind_name()),
                    "write words, numbers, true or false", node.place());
  }
  if (node.quoted) return node.scalar;
  if (node.scalar == "true" || node.scalar == "false") return node.scalar == "true";
  try {
    const std::int64_t whole = parse_integer(node.scalar);
    if (std::fabs(static_cast<double>(whole)) <= kMostNumber) return whole;
    throw bad_input(fmt::format("`{}`: {} is too large", key, whole), "stay within 2^53, or quote it", node.place());
  } catch (const UserError& error) {
    if (error.place().line > 0) throw;
  }
  try {
    const double real = parse_real(node.scalar);
    if (std::fabs(real) <= kMostReal) return real;
  } catch (const UserError&) {
    return node.scalar;
  }
  throw bad_input(fmt::format("`{}`: {} is too large", key, node.scalar), "stay within 1e15, or quote it",
                  node.place());
}

std::optional<double> number_of(const Value& value) {
  if (const auto* whole = std::get_if<std::int64_t>(&value)) return static_cast<double>(*whole);
  if (const auto* real = std::get_if<double>(&value)) return *real;
  return std::nullopt;
}

// Ratios matter where the numbers grow by them: 1, 2, 4, 8 or 16, 32, 50, 100, 256; not 1, 2, 3, 4.
bool grows_by_ratios(std::vector<double> numbers) {
  std::sort(numbers.begin(), numbers.end());
  if (numbers.size() < 3 || numbers.front() <= 0 || numbers.back() / numbers.front() < 8) return false;
  double narrowest = std::log(numbers[1] / numbers[0]);
  double widest = narrowest;
  for (std::size_t i = 1; i < numbers.size(); ++i) {
    const double step = std::log(numbers[i] / numbers[i - 1]);
    narrowest = std::min(narrowest, step);
    widest = std::max(widest, step);
  }
  return widest <= 3 * narrowest;
}

void set_choices(Knob& knob) {
  knob.kind = KnobKind::kChoice;
  std::vector<double> numbers;
  for (const Value& choice : knob.choices) {
    if (const auto number = number_of(choice)) numbers.push_back(*number);
  }
  knob.ordered = numbers.size() == knob.choices.size();
  knob.log = knob.ordered && grows_by_ratios(numbers);
}

void read_choices(MapReader& map, Knob& knob) {
  const YamlNode* node = map.find("choices");
  if (!node->is_sequence() || node->items.empty()) {
    throw map.error_at("choices", fmt::format("`{}` has no choices", map.full_key("choices")),
                       "write a list, for example [1, 2, 4]");
  }
  if (node->items.size() > kMostChoices) {
    throw map.error_at("choices", fmt::format("`{}` has {} choices", map.full_key("choices"), node->items.size()),
                       fmt::format("at most {} are allowed; int and log_int cover ranges", kMostChoices));
  }
  for (const YamlNode& item : node->items) {
    Value value = read_value(item, map.full_key("choices"));
    for (const Value& other : knob.choices) {
      const auto a = number_of(value);
      if (value != other && !(a && a == number_of(other))) continue;
      throw bad_input(fmt::format("`{}` has {} twice", map.full_key("choices"), printable(to_text(value))),
                      "remove one", item.place());
    }
    knob.choices.push_back(std::move(value));
  }
  set_choices(knob);
}

void read_range(MapReader& map, const std::string& key, Knob& knob) {
  const bool whole = key == "int" || key == "log_int";
  knob.kind = whole ? KnobKind::kInteger : KnobKind::kReal;
  knob.log = key == "log_int" || key == "log_float";
  const std::string example = whole ? "[1, 16]" : "[0.1, 0.5]";
  const YamlNode* node = map.find(key);
  if (!node->is_sequence() || node->items.size() != 2) {
    throw map.error_at(key, fmt::format("`{}` needs two ends", map.full_key(key)), "write for example " + example);
  }
  double ends[2];
  for (int i = 0; i < 2; ++i) {
    const YamlNode& item = node->items[static_cast<std::size_t>(i)];
    const auto number = number_of(read_value(item, map.full_key(key)));
    if (!number || (whole && *number != std::floor(*number))) {
      throw bad_input(fmt::format("`{}` cannot end at `{}`", map.full_key(key), printable(item.scalar)),
                      fmt::format("write two {}, for example {}", whole ? "whole numbers" : "numbers", example),
                      item.place());
    }
    ends[i] = *number;
  }
  knob.low = ends[0];
  knob.high = ends[1];
  if (knob.low > knob.high) {
    throw map.error_at(key, fmt::format("`{}` is empty: {} is above {}", map.full_key(key), knob.low, knob.high),
                       "write the lower end first");
  }
  if (knob.log && knob.low <= 0) {
    throw map.error_at(key, fmt::format("`{}` starts at {}", map.full_key(key), knob.low),
                       fmt::format("ratios need ends above 0; use {} instead", whole ? "int" : "float"));
  }
}

std::string describe(const Knob& knob) {
  if (knob.kind != KnobKind::kChoice) return fmt::format("{} to {}", knob.low, knob.high);
  std::vector<std::string> texts;
  for (const Value& choice : knob.choices) texts.push_back(to_text(choice));
  return "one of " + printable(join(texts, ", "), 200);
}

void read_default(MapReader& map, Knob& knob) {
  const YamlNode* node = map.find("default");
  if (node == nullptr) {
    if (knob.default_given) return;  // bool and fixed bring theirs
    if (knob.kind == KnobKind::kChoice) knob.default_value = knob.choices.front();
    if (knob.kind == KnobKind::kInteger) knob.default_value = static_cast<std::int64_t>(knob.low);
    if (knob.kind == KnobKind::kReal) {
      const double middle =
          knob.log ? std::sqrt(knob.low) * std::sqrt(knob.high) : knob.low + (knob.high - knob.low) / 2;
      knob.default_value = std::clamp(middle, knob.low, knob.high);
    }
    return;
  }
  const Value written = read_value(*node, map.full_key("default"));
  Texts texts;
  const Domain domain(knob, texts);
  const double cell = domain.lenient_cell(written);
  if (is_inactive(cell)) {
    std::vector<std::string> names;
    for (const Value& choice : knob.choices) names.push_back(to_text(choice));
    const auto near = nearest(to_text(written), names);
    throw map.error_at("default",
                       fmt::format("`{}` cannot be {}", map.full_key("default"), printable(to_text(written))),
                       near ? fmt::format("did you mean `{}`?", printable(*near)) : "it must be " + describe(knob));
  }
  knob.default_value = domain.value(cell);
  knob.default_given = true;
}

void read_kind(MapReader& map, const std::string& kind, Knob& knob) {
  if (kind == "choices") return read_choices(map, knob);
  if (kind != "bool" && kind != "fixed") return read_range(map, kind, knob);
  if (kind == "bool") {
    bool flag = false;
    map.boolean("bool", flag);
    knob.choices = {true, false};
    knob.default_value = flag;
  } else {
    knob.default_value = read_value(*map.find("fixed"), map.full_key("fixed"));
    knob.choices = {knob.default_value};
  }
  set_choices(knob);
  knob.default_given = true;
  if (map.has("default")) {
    throw map.error_at("default", fmt::format("`{}` says the default already", map.full_key(kind)), "remove one");
  }
}

void check_target(MapReader& map, const std::string& target) {
  const bool well_formed =
      !target.empty() && target.front() != '.' && target.back() != '.' && target.find("..") == std::string::npos &&
      std::all_of(target.begin(), target.end(),
                  [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.'; });
  if (well_formed) return;
  throw map.error_at("target", fmt::format("`{}` cannot be `{}`", map.full_key("target"), printable(target)),
                     "write env, arg, or a field of the job like batch.micro");
}

Knob read_knob(const YamlNode::Entry& entry) {
  MapReader map(entry.value, fmt::format("knobs.{}", printable(entry.key)));
  Knob knob;
  knob.name = entry.key;
  std::vector<std::string> given;
  for (const std::string& kind : kKinds) {
    if (map.has(kind)) given.push_back(kind);
  }
  map.find("default");
  map.text("when", knob.when);
  if (map.text("target", knob.target)) check_target(map, knob.target);
  map.finish();
  if (given.size() != 1) {
    throw bad_input(given.empty()
                        ? fmt::format("the knob `{}` has no values", printable(knob.name))
                        : fmt::format("the knob `{}` has both {} and {}", printable(knob.name), given[0], given[1]),
                    fmt::format("give it one of {}", join(kKinds, ", ")), entry.key_place);
  }
  read_kind(map, given.front(), knob);
  read_default(map, knob);
  return knob;
}

void read_knobs(MapReader& reader, SpaceText& space) {
  const YamlNode* node = reader.find("knobs");
  if (node == nullptr) return;
  if (!node->is_map() || node->entries.empty()) {
    throw reader.error_at("knobs", "`knobs` names no knob", "write `name: {int: [1, 8]}` lines");
  }
  if (node->entries.size() > kMostKnobs) {
    throw reader.error_at("knobs", fmt::format("there are {} knobs", node->entries.size()),
                          fmt::format("at most {} are allowed", kMostKnobs));
  }
  for (const YamlNode::Entry& entry : node->entries) {
    if (trim(entry.key).empty() || entry.key.find('`') != std::string::npos) {
      throw bad_input(fmt::format("a knob cannot be called `{}`", printable(entry.key)), "give it a name",
                      entry.key_place);
    }
    space.knobs.push_back(read_knob(entry));
    space.knob_places.push_back(entry.key_place);
    const YamlNode* when = entry.value.find("when");
    space.when_places.push_back(when != nullptr ? expression_place(*when) : entry.key_place);
  }
}

void read_constraints(MapReader& reader, SpaceText& space) {
  const YamlNode* node = reader.find("constraints");
  if (node == nullptr) return;
  if (!node->is_sequence()) {
    throw reader.error_at("constraints", fmt::format("`constraints` holds {}, a list was expected", node->kind_name()),
                          "write [\"a * b == 32\"]");
  }
  if (node->items.size() > kMostKnobs) {
    throw reader.error_at("constraints", fmt::format("there are {} constraints", node->items.size()),
                          fmt::format("at most {} are allowed", kMostKnobs));
  }
  for (const YamlNode& item : node->items) {
    if (!item.is_scalar()) {
      throw bad_input(fmt::format("`constraints` holds {}, an expression was expected", item.kind_name()),
                      "write \"a * b == 32\"", item.place());
    }
    space.constraints.push_back({item.scalar, expression_place(item)});
  }
}

void read_facts(MapReader& reader, NcclFacts& facts) {
  auto map = reader.map("nccl");
  if (!map) return;
  std::string version;
  if (map->text("version", version)) {
    facts.version = parse_nccl_version(version);
    if (facts.version == 0) {
      throw map->error_at("version", fmt::format("`{}` is not a version of NCCL", printable(version)),
                          "write for example 2.30.7");
    }
  }
  std::int64_t nodes = facts.nodes;
  map->count("nodes", nodes, 1, 1 << 24);
  facts.nodes = static_cast<int>(nodes);
  bool flag = false;
  if (map->boolean("hopper", flag)) facts.hopper = flag;
  if (map->boolean("ll128_safe", flag)) facts.ll128_safe = flag;
  map->finish();
}

}  // namespace

const std::vector<std::string>& space_file_keys() {
  static const std::vector<std::string> keys = {"name", "description", "knobs", "constraints", "nccl", "nccl_rules"};
  return keys;
}

SourcePlace expression_place(const YamlNode& node) {
  SourcePlace place = node.place();
  if (node.quoted && place.column > 0) ++place.column;  // past the opening quote
  return place;
}

SpaceText read_space_text(const YamlNode& node, const NcclFacts& facts, bool strict) {
  MapReader reader(node, "");
  SpaceText space;
  space.facts = facts;
  reader.require("knobs");
  for (const std::string& key : space_file_keys()) reader.find(key);
  if (strict) reader.finish();
  reader.text("name", space.name);
  reader.text("description", space.description);
  if (node.find("knobs") == nullptr) throw reader.error_at("knobs", "the key `knobs` is missing", "add it");
  read_knobs(reader, space);
  read_constraints(reader, space);
  read_facts(reader, space.facts);
  reader.boolean("nccl_rules", space.nccl_rules);
  return space;
}

}  // namespace lockstep::tune
