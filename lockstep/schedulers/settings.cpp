#include "lockstep/schedulers/settings.h"

#include <cctype>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/schedulers/scheduler.h"

namespace lockstep::schedulers {
namespace {

// Names the agents set themselves; another value would take a node out of the run.
constexpr const char* kReserved[] = {"LOCKSTEP_NODES", "LOCKSTEP_NODE", "LOCKSTEP_TOKEN", "LOCKSTEP_SUBMISSION"};

bool is_variable_name(const std::string& name) {
  if (name.empty() || std::isdigit(static_cast<unsigned char>(name.front()))) return false;
  for (const char c : name) {
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '_') return false;
  }
  return true;
}

std::map<std::string, std::string> read_environment(const MapReader& reader, const YamlNode& node) {
  if (!node.is_map()) throw reader.error_at("environment", "is not a map", "write {NAME: value}");
  std::map<std::string, std::string> environment;
  for (const YamlNode::Entry& entry : node.entries) {
    const auto wrong = [&](const std::string& what, const std::string& fix) {
      return bad_input(what, fix, entry.key_place);
    };
    if (!is_variable_name(entry.key)) {
      throw wrong("`" + printable(entry.key) + "` is not the name of a variable", "use letters, digits and _");
    }
    for (const char* reserved : kReserved) {
      if (entry.key == reserved) throw wrong(entry.key + " is set by the launcher", "leave it out");
    }
    if (!entry.value.is_scalar() || !is_printable(entry.value.scalar)) {
      throw wrong("the value of " + entry.key + " is not one line of text", "write NAME: value");
    }
    environment[entry.key] = entry.value.scalar;
  }
  return environment;
}

const YamlNode& empty_map() {
  static const YamlNode kEmpty = [] {
    YamlNode node;
    node.kind = YamlNode::Kind::kMap;
    return node;
  }();
  return kEmpty;
}

}  // namespace

MapReader LaunchSettings::section(const std::string& scheduler) const {
  const auto found = sections.find(scheduler);
  return {found == sections.end() ? empty_map() : found->second, "launch." + scheduler};
}

LaunchSettings read_settings(const YamlNode* launch) {
  LaunchSettings settings;
  if (launch == nullptr) return settings;
  MapReader reader(*launch, "launch");
  std::vector<std::string> names = scheduler_names();
  for (const std::string& name : names) {
    if (const YamlNode* section = reader.find(name)) settings.sections[name] = *section;
  }
  names.emplace_back("local");
  std::vector<const char*> words;
  words.reserve(names.size());
  for (const std::string& name : names) words.push_back(name.c_str());
  reader.word("on", settings.on, words);
  reader.name("lockstep", settings.lockstep);
  reader.name("directory", settings.directory);
  reader.name("image", settings.image);
  reader.count("spares", settings.spares, 0, 10'000);
  reader.seconds("time", settings.time_seconds);
  reader.seconds("notice", settings.notice_seconds);
  reader.boolean("requeue", settings.requeue);
  reader.count("cpus_per_node", settings.cpus_per_node, 1);
  reader.bytes("memory_per_node", settings.memory_per_node);
  if (const YamlNode* environment = reader.find("environment")) {
    settings.environment = read_environment(reader, *environment);
  }
  reader.finish();
  return settings;
}

}  // namespace lockstep::schedulers
