#include "lockstep/base/map_reader.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/text.h"
#include "lockstep/base/units.h"

namespace lockstep {
namespace {

bool contains(const std::vector<std::string>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

MapReader::MapReader(const YamlNode& node, std::string path) : node_(&node), path_(std::move(path)) {
  if (!node.is_map()) {
    const std::string where = path_.empty() ? std::string("the file") : "`" + path_ + "`";
    throw bad_input(fmt::format("{} holds {}, a map was expected", where, node.kind_name()), "write `key: value` lines",
                    node.place());
  }
}

const YamlNode* MapReader::find(const std::string& key) {
  if (!contains(known_, key)) known_.push_back(key);
  const YamlNode* value = node_->find(key);
  if (value != nullptr && value->kind == YamlNode::Kind::kNull) {
    throw bad_input(fmt::format("`{}` has no value", full_key(key)), "give it one or remove the key", value->place());
  }
  return value;
}

UserError MapReader::wrong_kind(const YamlNode& node, const std::string& key, const char* wanted) const {
  return bad_input(fmt::format("`{}` is {}, {} was expected", full_key(key), node.kind_name(), wanted),
                   fmt::format("give `{}` {}", full_key(key), wanted), node.place());
}

std::string MapReader::scalar_of(const YamlNode& node, const std::string& key) const {
  if (!node.is_scalar()) throw wrong_kind(node, key, "a value");
  return node.scalar;
}

// Unit parsers know what is wrong with the text; the key is what the user looks for.
template <class Parse>
auto MapReader::parsed(const YamlNode& node, const std::string& key, Parse parse) const {
  const std::string text = scalar_of(node, key);
  try {
    return parse(text);
  } catch (const UserError& error) {
    const std::string what = error.what();
    const std::size_t fix = what.rfind("; " + error.fix());
    throw bad_input(fmt::format("`{}`: {}", full_key(key), what.substr(0, fix)), error.fix(), node.place());
  }
}

UserError MapReader::unknown_choice(const YamlNode& node, const std::string& key,
                                    const std::vector<std::string>& names) const {
  const auto best = nearest(node.scalar, names);
  std::string fix = "choose one of " + join(names, ", ");
  if (best) fix += " (did you mean `" + *best + "`?)";
  return bad_input(fmt::format("`{}` cannot be `{}`", full_key(key), printable(node.scalar)), fix, node.place());
}

bool MapReader::word(const std::string& key, std::string& out, std::span<const char* const> choices) {
  const YamlNode* node = find(key);
  if (node == nullptr) return false;
  const std::string value = scalar_of(*node, key);
  if (std::find(choices.begin(), choices.end(), value) == choices.end()) {
    throw unknown_choice(*node, key, {choices.begin(), choices.end()});
  }
  out = value;
  return true;
}

UserError MapReader::error_at(const std::string& key, const std::string& problem, const std::string& fix) const {
  const YamlNode* value = node_->find(key);
  return bad_input(problem, fix, value != nullptr ? value->place() : node_->place());
}

bool MapReader::text(const std::string& key, std::string& out) {
  const YamlNode* node = find(key);
  if (node == nullptr) return false;
  out = scalar_of(*node, key);
  return true;
}

bool MapReader::name(const std::string& key, std::string& out) {
  if (!text(key, out)) return false;
  if (is_printable(out)) return true;
  throw error_at(key, fmt::format("`{}` holds characters that cannot be printed: {}", full_key(key), printable(out)),
                 "use letters, digits and punctuation on one line");
}

bool MapReader::path(const std::string& key, std::string& out) {
  if (!text(key, out)) return false;
  const YamlNode* node = node_->find(key);
  if (out.empty() || !node->source || node->source->directory.empty()) return true;
  const std::filesystem::path written(out);
  if (written.is_relative()) out = (node->source->directory / written).lexically_normal().string();
  return true;
}

bool MapReader::boolean(const std::string& key, bool& out) {
  const YamlNode* node = find(key);
  if (node == nullptr) return false;
  const std::string value = scalar_of(*node, key);
  if (node->quoted || (value != "true" && value != "false")) {
    throw bad_input(fmt::format("`{}` cannot be `{}`", full_key(key), printable(value)), "write true or false",
                    node->place());
  }
  out = value == "true";
  return true;
}

bool MapReader::count(const std::string& key, std::int64_t& out, std::int64_t min, std::int64_t max) {
  const YamlNode* node = find(key);
  if (node == nullptr) return false;
  const std::int64_t value = parsed(*node, key, [](const std::string& text) { return parse_count(text); });
  if (value < min || value > max) {
    const bool open = max == std::numeric_limits<std::int64_t>::max();
    throw bad_input(fmt::format("`{}` is {}", full_key(key), value),
                    open ? fmt::format("it must be at least {}", min) : fmt::format("it must be {} to {}", min, max),
                    node->place());
  }
  out = value;
  return true;
}

bool MapReader::integer(const std::string& key, std::int64_t& out) {
  const YamlNode* node = find(key);
  if (node == nullptr) return false;
  out = parsed(*node, key, [](const std::string& text) { return parse_integer(text); });
  return true;
}

bool MapReader::real(const std::string& key, double& out, double min, double max) {
  const YamlNode* node = find(key);
  if (node == nullptr) return false;
  const double value = parsed(*node, key, [](const std::string& text) { return parse_real(text); });
  if (value < min || value > max) {
    const bool open = max == std::numeric_limits<double>::max();
    throw bad_input(fmt::format("`{}` is {}", full_key(key), value),
                    open ? fmt::format("it must be at least {}", min) : fmt::format("it must be {} to {}", min, max),
                    node->place());
  }
  out = value;
  return true;
}

bool MapReader::quantity(const std::string& key, double& out, QuantityParser parse) {
  const YamlNode* node = find(key);
  if (node != nullptr) out = parsed(*node, key, [parse](const std::string& text) { return parse(text, {}); });
  return node != nullptr;
}

bool MapReader::bytes(const std::string& key, double& out) { return quantity(key, out, parse_bytes); }
bool MapReader::bytes_per_second(const std::string& key, double& out) {
  return quantity(key, out, parse_bytes_per_second);
}
bool MapReader::flops_per_second(const std::string& key, double& out) {
  return quantity(key, out, parse_flops_per_second);
}
bool MapReader::seconds(const std::string& key, double& out) { return quantity(key, out, parse_seconds); }

bool MapReader::counts(const std::string& key, std::vector<std::int64_t>& out, std::int64_t min) {
  const YamlNode* node = find(key);
  if (node == nullptr) return false;
  if (!node->is_sequence()) throw wrong_kind(*node, key, "a list");
  std::vector<std::int64_t> values;
  for (const YamlNode& item : node->items) {
    values.push_back(parsed(item, key, [](const std::string& text) { return parse_count(text); }));
    if (values.back() < min) {
      throw bad_input(fmt::format("`{}` holds {}", full_key(key), values.back()),
                      fmt::format("every entry must be at least {}", min), item.place());
    }
  }
  out = std::move(values);
  return true;
}

bool MapReader::reals(const std::string& key, std::vector<double>& out, double min, double max, std::size_t length) {
  const YamlNode* node = find(key);
  if (node == nullptr) return false;
  if (!node->is_sequence()) throw wrong_kind(*node, key, "a list");
  if (node->items.size() != length) {
    throw bad_input(fmt::format("`{}` has {} entries", full_key(key), node->items.size()),
                    fmt::format("it needs {}", length), node->place());
  }
  std::vector<double> values;
  for (const YamlNode& item : node->items) {
    values.push_back(parsed(item, key, [](const std::string& text) { return parse_real(text); }));
    if (values.back() < min || values.back() > max) {
      throw bad_input(fmt::format("`{}` holds {}", full_key(key), values.back()),
                      fmt::format("every entry must be {} to {}", min, max), item.place());
    }
  }
  out = std::move(values);
  return true;
}

bool MapReader::texts(const std::string& key, std::vector<std::string>& out) {
  const YamlNode* node = find(key);
  if (node == nullptr) return false;
  if (!node->is_sequence()) throw wrong_kind(*node, key, "a list");
  std::vector<std::string> values;
  for (const YamlNode& item : node->items) values.push_back(scalar_of(item, key));
  out = std::move(values);
  return true;
}

std::optional<MapReader> MapReader::map(const std::string& key) {
  const YamlNode* node = find(key);
  if (node == nullptr) return std::nullopt;
  return MapReader(*node, full_key(key));
}

void MapReader::require(const std::string& key) {
  if (!contains(known_, key)) known_.push_back(key);
  required_.push_back(key);
}

void MapReader::finish() const {
  const std::string where = path_.empty() ? std::string() : " in " + path_;
  for (const YamlNode::Entry& entry : node_->entries) {
    if (contains(known_, entry.key)) continue;
    throw bad_input(fmt::format("unknown key `{}`{}", printable(entry.key), where), did_you_mean(entry.key, known_),
                    entry.key_place);
  }
  for (const std::string& key : required_) {
    if (node_->find(key) != nullptr) continue;
    throw bad_input(fmt::format("the key `{}` is missing", full_key(key)), "add it", node_->place());
  }
}

}  // namespace lockstep
