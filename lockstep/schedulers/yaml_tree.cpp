#include "lockstep/schedulers/yaml_tree.h"

namespace lockstep::schedulers {
namespace {

using nlohmann::ordered_json;

ordered_json scalar_of(const YamlNode& node) {
  if (node.quoted) return node.scalar;
  if (node.scalar == "true" || node.scalar == "false") return node.scalar == "true";
  const ordered_json number = ordered_json::parse(node.scalar, nullptr, false);
  return number.is_number() ? number : ordered_json(node.scalar);
}

}  // namespace

ordered_json json_of(const YamlNode& node) {
  if (node.is_scalar()) return scalar_of(node);
  if (node.is_map()) {
    ordered_json map = ordered_json::object();
    for (const YamlNode::Entry& entry : node.entries) map[entry.key] = json_of(entry.value);
    return map;
  }
  if (!node.is_sequence()) return nullptr;
  ordered_json list = ordered_json::array();
  for (const YamlNode& item : node.items) list.push_back(json_of(item));
  return list;
}

}  // namespace lockstep::schedulers
