#include "lockstep/spec/job_identity.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "lockstep/base/text.h"
#include "lockstep/base/yaml.h"

namespace lockstep::spec {
namespace {

constexpr std::size_t kShownBytes = 200;  // of a value

bool starts_with_any(std::string_view key, std::initializer_list<std::string_view> beginnings) {
  return std::any_of(beginnings.begin(), beginnings.end(), [&](auto one) { return key.starts_with(one); });
}

bool is_one_of(std::string_view key, std::initializer_list<std::string_view> keys) {
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

std::string list_text(const YamlNode& node) {
  if (node.is_scalar()) return node.scalar;
  std::vector<std::string> parts;
  for (const YamlNode& item : node.items) parts.push_back(list_text(item));
  for (const YamlNode::Entry& entry : node.entries) parts.push_back(entry.key + ": " + list_text(entry.value));
  return fmt::format("[{}]", join(parts, ", "));
}

void flatten(const YamlNode& node, const std::string& path, JobKeys& keys) {
  if (!node.is_map()) {
    keys[path] = list_text(node);
    return;
  }
  for (const YamlNode::Entry& entry : node.entries) {
    flatten(entry.value, path.empty() ? entry.key : path + "." + entry.key, keys);
  }
}

bool is_name(std::string_view key) { return is_one_of(key, {"name", "model.name"}); }

// Of a module from Python its digest says what it is: the path may differ, and facts are looked up or measured anew.
bool is_about_script(std::string_view key) {
  if (is_one_of(key, {"model.torchscript", "model.facts"})) return true;
  return key.ends_with(".plugin") || key.find(".plugin_folder") != std::string_view::npos;  // and plugin_folders
}

// A plugin that was built again is the user's own business: said, not refused.
bool is_digest_of_plugin(std::string_view key) { return key.ends_with(".plugin_digest"); }

// A cluster's name says it all to people, its groups are pages; alerts change nothing that is trained, and where they
// go is nobody's business.
bool is_left_out(std::string_view key) {
  return is_name(key) || is_about_script(key) || starts_with_any(key, {"cluster.groups", "alerts."});
}

std::string shown(const std::string& value) { return value.empty() ? "unset" : printable(value, kShownBytes); }

}  // namespace

JobKeys keys_of(const Job& job) {
  JobKeys keys;
  flatten(parse_yaml(to_yaml(job), "job"), "", keys);
  return keys;
}

std::string KeyChange::to_string() const { return fmt::format("{} {}, now {}", key, shown(before), shown(now)); }

std::vector<KeyChange> changes_between(const Job& before, const Job& now) {
  const JobKeys old_keys = keys_of(before), new_keys = keys_of(now);
  std::map<std::string, KeyChange> changed;
  for (const auto& [key, value] : old_keys) changed[key] = {key, value, ""};
  for (const auto& [key, value] : new_keys) {
    changed[key].key = key;
    changed[key].now = value;
  }
  std::vector<KeyChange> changes;
  for (auto& [key, change] : changed) {
    if (change.before != change.now && !is_left_out(key)) changes.push_back(std::move(change));
  }
  return changes;
}

bool is_identity(const std::string& key) {
  if (is_name(key) || is_about_script(key) || is_digest_of_plugin(key)) return false;
  if (is_one_of(key, {"data.evaluation_path"})) return false;
  return starts_with_any(key, {"model.", "data.", "lora."}) || is_one_of(key, {"seed", "batch.sequence_length"});
}

bool is_shared_by_ranks(const std::string& key) {
  if (is_name(key) || is_about_script(key)) return false;
  if (starts_with_any(key, {"cluster.", "loader.", "alerts.", "data.sources"})) return false;
  return !is_one_of(
      key, {"data.path", "data.evaluation_path", "data.tokenizer", "weights", "plan", "checkpoint.directory",
            "checkpoint.preempt_file", "checkpoint.preempt_url", "checkpoint.preempt_text", "threads_per_rank"});
}

std::string to_string(const std::vector<KeyChange>& changes, std::size_t most) {
  std::vector<std::string> parts;
  for (const KeyChange& change : changes) {
    if (parts.size() == most) {
      parts.push_back(fmt::format("and {} more", changes.size() - most));
      break;
    }
    parts.push_back(change.to_string());
  }
  return join(parts, "; ");
}

}  // namespace lockstep::spec
