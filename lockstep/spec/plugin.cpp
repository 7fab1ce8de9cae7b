#include "lockstep/spec/plugin.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "lockstep/base/crc32c.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/plugin_tag.h"
#include "lockstep/base/text.h"
#include "lockstep/spec/script.h"

namespace lockstep::spec {
namespace {

namespace fs = std::filesystem;

constexpr const char* kBuildFix = "build it again against this Lockstep: find_package(Lockstep), lockstep_add_plugin()";
constexpr const char* kTag = LOCKSTEP_PLUGIN_TAG;
constexpr std::size_t kLongestTag = 400;

// The strings of the file that begin with the tag, without it.
std::vector<std::string> tags_in(const std::string& bytes) {
  std::vector<std::string> found;
  const std::string tag = kTag;
  for (std::size_t at = bytes.find(tag); at != std::string::npos; at = bytes.find(tag, at + 1)) {
    const std::size_t begin = at + tag.size(), end = bytes.find('\0', begin);
    if (end != std::string::npos && end - begin <= kLongestTag) found.push_back(bytes.substr(begin, end - begin));
  }
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

void read_tag(const std::string& tag, PluginFile& file) {
  const std::size_t colon = tag.find(':');
  const std::string word = tag.substr(0, colon), rest = colon == std::string::npos ? "" : tag.substr(colon + 1);
  if (word == "built") {  // interface:lockstep:torch
    const std::vector<std::string> parts = split(rest, ':');
    if (parts.size() != 3) return;
    file.interface = std::atoi(parts[0].c_str());
    file.lockstep = printable(parts[1]);
    file.torch = printable(parts[2]);
  } else if (const auto kind = value_named<PluginKind>(word)) {
    file.names[*kind].push_back(printable(rest));
  }
}

bool is_plain(const YamlNode& node) {
  return !node.quoted && node.scalar.size() > 1 && std::all_of(node.scalar.begin(), node.scalar.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '.' || c == '_';
  });
}

// That a relative path in this value starts from.
std::string folder_of(const YamlNode& node) {
  const fs::path folder = node.source ? node.source->directory : fs::path();
  return (folder.empty() ? fs::current_path() : fs::absolute(folder)).lexically_normal().string();
}

}  // namespace

bool PluginUse::operator==(const PluginUse& other) const {
  return used() == other.used() && name == other.name && flow_text(options) == flow_text(other.options);
}

PluginFile look_at_plugin(const std::string& path, const SourcePlace& place) {
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) {
    throw environment_error(fmt::format("there is no plugin {}", printable_path(path)),
                            "build it, or give its path from the job file's folder", place);
  }
  PluginFile file;
  file.path = path;
  const std::string bytes = read_file(path);
  file.digest = digest_text(bytes.size(), crc32c(bytes.data(), bytes.size()));
  for (const std::string& tag : tags_in(bytes)) read_tag(tag, file);
  if (file.interface == 0) {
    throw bad_input(fmt::format("{} is no Lockstep plugin: it registers nothing", printable_path(path)),
                    "use LOCKSTEP_REGISTER_MODEL and its like (docs/how-to/own-model.md)", place);
  }
  if (file.interface != LOCKSTEP_PLUGIN_INTERFACE) {
    throw environment_error(fmt::format("{} was built for plugin interface {} (Lockstep {}), this Lockstep has {}",
                                        printable_path(path), file.interface, file.lockstep, LOCKSTEP_PLUGIN_INTERFACE),
                            kBuildFix, place);
  }
  return file;
}

bool read_plugin_file(MapReader& map, PluginUse& use) {
  // What we write ourselves is known where it stands, and nobody is offered it.
  for (const char* written : {"plugin_digest", "plugin_folder", "plugin_folders"}) {
    if (map.node().find(written) != nullptr) map.has(written);
  }
  if (!map.path("plugin", use.file)) return false;
  if (use.file.empty()) throw map.error_at("plugin", "`plugin` is empty", "name a shared object");
  use.file = fs::absolute(use.file).lexically_normal().string();
  const YamlNode& node = *map.node().find("plugin");
  use.folder = folder_of(node);
  const auto has = [&](const char* key) { return map.node().find(key) != nullptr; };
  if (has("plugin_folder")) map.text("plugin_folder", use.folder);
  if (!has("plugin_digest") || !map.text("plugin_digest", use.digest))
    use.digest = look_at_plugin(use.file, node.place()).digest;
  return true;
}

void check_plugin_name(const MapReader& map, const std::string& key, PluginKind kind, const PluginUse& use) {
  if (map.node().find("plugin_digest") != nullptr) return;
  const PluginFile file = look_at_plugin(use.file, map.node().place());
  const auto found = file.names.find(kind);
  const std::vector<std::string> names = found == file.names.end() ? std::vector<std::string>() : found->second;
  if (std::find(names.begin(), names.end(), use.name) != names.end()) return;
  const std::string problem =
      fmt::format("{} has no {} `{}`", printable_path(use.file), to_string(kind), printable(use.name));
  throw map.error_at(key, problem, names.empty() ? fmt::format("it registers none") : did_you_mean(use.name, names));
}

PluginUse named_in(PluginUse use, const std::string& name) {
  use.name = name;
  use.options = {};
  use.options.kind = YamlNode::Kind::kMap;
  return use;
}

void take_plugin_options(const YamlNode& node, const std::vector<std::string>& ours, PluginUse& use) {
  use.options = node;
  for (const std::string& key : ours) use.options.erase(key);
  const YamlNode* const folders = node.find("plugin_folders");
  for (const char* key : {"plugin", "plugin_digest", "plugin_folder", "plugin_folders"}) use.options.erase(key);
  for (YamlNode::Entry& entry : use.options.entries) {
    std::string folder = use.folder;
    if (folders != nullptr) {
      if (const YamlNode* own = folders->find(entry.key)) folder = own->scalar;
    } else if (node.find("plugin_folder") == nullptr) {
      folder = folder_of(entry.value);  // what was put on the command line starts from where it was typed
    }
    const std::string name = entry.value.source ? entry.value.source->name : "";
    entry.value.source = std::make_shared<const YamlSource>(YamlSource{name, folder});
  }
}

std::string flow_text(const YamlNode& node) {
  std::vector<std::string> parts;
  switch (node.kind) {
    case YamlNode::Kind::kNull:
      return "null";
    case YamlNode::Kind::kScalar:
      if (is_plain(node)) return node.scalar;  // true and -1 stay what they are
      return node.quoted ? nlohmann::json(node.scalar).dump() : yaml_quote(node.scalar);
    case YamlNode::Kind::kSequence:
      for (const YamlNode& item : node.items) parts.push_back(flow_text(item));
      return fmt::format("[{}]", join(parts, ", "));
    case YamlNode::Kind::kMap:
      for (const YamlNode::Entry& entry : node.entries) {
        parts.push_back(yaml_quote(entry.key) + ": " + flow_text(entry.value));
      }
      return fmt::format("{{{}}}", join(parts, ", "));
  }
  return "";
}

YamlNode read_plugin_options(const std::string& text, const std::string& folder) {
  return parse_yaml(text, std::make_shared<const YamlSource>(YamlSource{"options", folder}));
}

std::string plugin_file_lines(const PluginUse& use, int indent) {
  return fmt::format("{0}plugin: {1}\n{0}plugin_digest: {2}\n{0}plugin_folder: {3}\n",
                     std::string(static_cast<std::size_t>(indent), ' '), yaml_quote(use.file), yaml_quote(use.digest),
                     yaml_quote(use.folder));
}

std::string plugin_lines(const PluginUse& use, int indent) {
  const std::string margin(static_cast<std::size_t>(indent), ' ');
  std::string text = plugin_file_lines(use, indent);
  std::vector<std::string> folders;
  for (const YamlNode::Entry& entry : use.options.entries) {
    const std::string folder = folder_of(entry.value);
    if (folder != use.folder) folders.push_back(yaml_quote(entry.key) + ": " + yaml_quote(folder));
    text += fmt::format("{}{}: {}\n", margin, yaml_quote(entry.key), flow_text(entry.value));
  }
  if (!folders.empty()) text += fmt::format("{}plugin_folders: {{{}}}\n", margin, join(folders, ", "));
  return text;
}

std::map<std::string, SourcePlace> places_of(const PluginUse& use) {
  std::map<std::string, SourcePlace> places;
  for (const YamlNode::Entry& entry : use.options.entries) places[entry.key] = entry.key_place;
  return places;
}

void restore_places(PluginUse& use, const std::map<std::string, SourcePlace>& places) {
  for (YamlNode::Entry& entry : use.options.entries) {
    const auto found = places.find(entry.key);
    if (found == places.end()) continue;
    entry.key_place = found->second;
    const std::string folder = entry.value.source ? entry.value.source->directory.string() : use.folder;
    entry.value.source = std::make_shared<const YamlSource>(YamlSource{found->second.file, folder});
    entry.value.line = found->second.line;
    entry.value.column = found->second.column;
  }
}

}  // namespace lockstep::spec
