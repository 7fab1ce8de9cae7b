#include "lockstep/tune/space/space.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/spec/presets.h"
#include "lockstep/tune/space/impl.h"

namespace lockstep::tune {
namespace {

// One value of a JSON document; monostate for what a knob cannot be (lists, objects).
Value value_from_json(const nlohmann::json& document) {
  if (document.is_boolean()) return document.get<bool>();
  if (document.is_number_integer()) return document.get<std::int64_t>();
  if (document.is_number()) return document.get<double>();
  if (document.is_string()) return document.get<std::string>();
  return {};
}

// Bytes that are not UTF-8 are replaced; no error is thrown.
std::string dump_on_one_line(const nlohmann::json& document) {
  return document.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// A scalar that reads back as this value: texts always quoted, reals never like whole numbers.
std::string scalar_yaml(const Value& value) {
  const std::string plain = to_text(value);
  if (std::holds_alternative<std::string>(value)) {
    const std::string quoted = yaml_quote(plain);
    return quoted.front() == '"' ? quoted : fmt::format("\"{}\"", plain);
  }
  const bool whole_real = std::holds_alternative<double>(value) && plain.find_first_of(".eE") == std::string::npos;
  return whole_real ? plain + ".0" : plain;
}

std::string knob_yaml(const Knob& knob) {
  std::string text;
  if (knob.kind == KnobKind::kChoice) {
    std::vector<std::string> choices;
    for (const Value& choice : knob.choices) choices.push_back(scalar_yaml(choice));
    text = fmt::format("choices: [{}]", join(choices, ", "));
  } else {
    const bool whole = knob.kind == KnobKind::kInteger;
    const auto end = [&](double number) { return whole ? fmt::format("{:.0f}", number) : exact_real(number); };
    text =
        fmt::format("{}{}: [{}, {}]", knob.log ? "log_" : "", whole ? "int" : "float", end(knob.low), end(knob.high));
  }
  if (knob.default_given) text += fmt::format(", default: {}", scalar_yaml(knob.default_value));
  if (!knob.when.empty()) text += fmt::format(", when: {}", yaml_quote(knob.when));
  if (!knob.target.empty()) text += fmt::format(", target: {}", yaml_quote(knob.target));
  return text;
}

}  // namespace

std::vector<double> Space::Impl::cells_of(const Config& config) const {
  std::vector<double> cells(knobs.size(), kInactive);
  for (std::size_t i = 0; i < cells.size() && i < config.values.size(); ++i) {
    cells[i] = parts.domains[i].cell(config.values[i]);
  }
  return cells;
}

Config Space::Impl::config_of(std::span<const double> cells) const {
  Config config;
  config.values.reserve(cells.size());
  for (std::size_t i = 0; i < cells.size(); ++i) config.values.push_back(parts.domains[i].value(cells[i]));
  return config;
}

Space::Space(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

Space Space::parse(const std::string& yaml_text, const std::string& name_for_errors, const NcclFacts& facts) {
  const YamlNode root = parse_yaml(yaml_text, name_for_errors);
  return Space(Impl::build(read_space_text(root, facts, true)));
}

Space Space::read(const YamlNode& node, const NcclFacts& facts) {
  return Space(Impl::build(read_space_text(node, facts, false)));
}

Space Space::load(const std::string& path_or_preset, const NcclFacts& facts) {
  const auto presets = spec::embedded_spaces();
  if (const spec::EmbeddedSpec* preset = spec::find_embedded(presets, path_or_preset)) {
    return parse(std::string(preset->text), path_or_preset + ".yaml", facts);
  }
  const bool looks_like_file = path_or_preset.find('/') != std::string::npos || path_or_preset.ends_with(".yaml") ||
                               path_or_preset.ends_with(".yml") || std::filesystem::exists(path_or_preset);
  if (!looks_like_file) {
    throw bad_input(fmt::format("there is no space `{}`", printable(path_or_preset)),
                    did_you_mean(path_or_preset, spec::embedded_names(presets)) + " (or give a file)");
  }
  return Space(Impl::build(read_space_text(read_yaml_file(path_or_preset), facts, true)));
}

const std::vector<Knob>& Space::knobs() const { return impl_->knobs; }
const std::string& Space::name() const { return impl_->name; }
const std::string& Space::description() const { return impl_->description; }
const std::vector<std::string>& Space::constraints() const { return impl_->constraints; }
bool Space::has_default() const {
  return std::all_of(knobs().begin(), knobs().end(), [](const Knob& knob) { return knob.default_given; });
}

const Config& Space::default_config() const { return impl_->default_config; }

std::optional<std::size_t> Space::find(const std::string& name) const {
  const auto found = impl_->index.find(name);
  if (found == impl_->index.end()) return std::nullopt;
  return found->second;
}

std::string Space::to_yaml() const {
  std::string text;
  if (!impl_->name.empty()) text += fmt::format("name: {}\n", yaml_quote(impl_->name));
  if (!impl_->description.empty()) text += fmt::format("description: {}\n", yaml_quote(impl_->description));
  text += "knobs:\n";
  for (const Knob& knob : impl_->knobs) text += fmt::format("  {}: {{{}}}\n", yaml_quote(knob.name), knob_yaml(knob));
  if (impl_->written_constraints > 0) text += "constraints:\n";
  for (std::size_t i = 0; i < impl_->written_constraints; ++i) {
    text += fmt::format("  - {}\n", yaml_quote(impl_->constraints[i]));
  }
  const NcclFacts& facts = impl_->facts;
  std::vector<std::string> known;
  if (facts.version != 0) known.push_back(fmt::format("version: {}", facts.version));
  if (facts.nodes != 0) known.push_back(fmt::format("nodes: {}", facts.nodes));
  if (facts.hopper) known.push_back(fmt::format("hopper: {}", *facts.hopper));
  if (facts.ll128_safe) known.push_back(fmt::format("ll128_safe: {}", *facts.ll128_safe));
  if (!known.empty()) text += fmt::format("nccl: {{{}}}\n", join(known, ", "));
  if (!impl_->nccl_rules) text += "nccl_rules: false\n";
  return text;
}

bool Space::is_valid(const Config& config, std::string* why) const {
  const auto no = [&](std::string reason) {
    if (why != nullptr) *why = std::move(reason);
    return false;
  };
  if (config.values.size() != size()) return no(fmt::format("{} values for {} knobs", config.values.size(), size()));
  std::vector<double> codes(size(), kMissing);
  for (std::size_t i = 0; i < size(); ++i) {
    if (!is_active(config.values[i])) continue;
    const double cell = impl_->parts.domains[i].cell(config.values[i]);
    if (is_inactive(cell)) {
      return no(fmt::format("{} cannot be {}", impl_->knobs[i].name, printable(tune::to_text(config.values[i]))));
    }
    codes[i] = impl_->parts.domains[i].code(cell);
  }
  for (std::size_t i = 0; i < size(); ++i) {
    const bool active = impl_->is_active(i, codes);
    if (active == is_active(config.values[i])) continue;
    return no(active ? fmt::format("{} has no value", impl_->knobs[i].name)
                     : fmt::format("{} is only there when {}", impl_->knobs[i].name, impl_->knobs[i].when));
  }
  for (std::size_t i = 0; i < impl_->parts.constraints.size(); ++i) {
    if (impl_->parts.constraints[i].truth(codes) == Truth::kFalse) return no("not so: " + impl_->constraints[i]);
  }
  return true;
}

std::vector<double> Space::coordinates(const Config& config) const {
  std::vector<double> result(size(), kInactive);
  for (std::size_t i = 0; i < result.size() && i < config.values.size(); ++i) {
    const Domain& domain = impl_->parts.domains[i];
    result[i] = domain.position(domain.cell(config.values[i]));
  }
  return result;
}

nlohmann::json Space::to_json(const Config& config) const {
  nlohmann::json document = nlohmann::json::object();
  for (std::size_t i = 0; i < size(); ++i) {
    if (is_active(config.values[i])) document[impl_->knobs[i].name] = tune::to_json(config.values[i]);
  }
  return document;
}

Config Space::from_json(const nlohmann::json& document, const std::string& name_for_errors) const {
  const SourcePlace place{name_for_errors, 0, 0};
  if (!document.is_object()) throw bad_input("a configuration is an object of knobs", "write {\"knob\": value}", place);
  std::vector<double> cells(size(), kInactive);
  std::vector<std::string> names;
  for (const Knob& knob : impl_->knobs) names.push_back(knob.name);
  for (const auto& [name, value] : document.items()) {
    const auto index = find(name);
    if (!index)
      throw bad_input(fmt::format("there is no knob `{}`", printable(name)), did_you_mean(name, names), place);
    if (value.is_null()) continue;
    cells[*index] = impl_->parts.domains[*index].lenient_cell(value_from_json(value));
    if (!is_inactive(cells[*index])) continue;
    throw bad_input(fmt::format("`{}` cannot be {}", printable(name), printable(dump_on_one_line(value))),
                    "use one of the values in the space", place);
  }
  std::vector<double> codes(size(), kMissing);
  for (const std::size_t knob : impl_->order) {
    // What is written for an inactive knob has no meaning and is dropped.
    if (!impl_->is_active(knob, codes)) {
      cells[knob] = kInactive;
    } else if (is_inactive(cells[knob])) {
      throw bad_input(fmt::format("the knob `{}` is missing", printable(impl_->knobs[knob].name)), "give it a value",
                      place);
    } else {
      codes[knob] = impl_->parts.domains[knob].code(cells[knob]);
    }
  }
  return impl_->config_of(cells);
}

std::string Space::to_text(const Config& config, const Config* differs_from) const {
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < size(); ++i) {
    if (!is_active(config.values[i])) continue;
    if (differs_from != nullptr && config.values[i] == differs_from->values[i]) continue;
    parts.push_back(fmt::format("{}={}", impl_->knobs[i].name, tune::to_text(config.values[i])));
  }
  return join(parts, " ");
}

}  // namespace lockstep::tune
