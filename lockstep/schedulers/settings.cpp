#include "lockstep/schedulers/settings.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <sstream>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/schedulers/scheduler.h"

namespace lockstep::schedulers {
namespace {

constexpr std::uint64_t kMostHostfileBytes = 1u << 20;

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
  if (reader.path("hostfile", settings.hostfile)) settings.hosts = read_hostfile(settings.hostfile);
  reader.seconds("time", settings.time_seconds);
  reader.seconds("notice", settings.notice_seconds);
  reader.boolean("requeue", settings.requeue);
  reader.count("gpus_per_node", settings.gpus_per_node, 1, 4096);
  reader.count("cpus_per_node", settings.cpus_per_node, 1);
  reader.bytes("memory_per_node", settings.memory_per_node);
  if (const YamlNode* environment = reader.find("environment")) {
    settings.environment = read_environment(reader, *environment);
  }
  reader.finish();
  return settings;
}

bool is_host_name(const std::string& name) {
  if (name.empty() || name.front() == '-' || name.size() > 255) return false;
  return std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return c < 128 && (std::isalnum(c) || c == '.' || c == ':' || c == '_' || c == '%' || c == '-');
  });
}

namespace {

void read_slots(const std::string& word, const SourcePlace& place, Host& host) {
  const std::size_t equals = word.find('=');
  const std::string key = word.substr(0, equals);
  if (key == "max_slots" || key == "max-slots") return;  // how far mpirun may go beyond the slots
  std::int64_t slots = 0;
  const char* const begin = word.data() + (equals == std::string::npos ? word.size() : equals + 1);
  const auto [end, error] = std::from_chars(begin, word.data() + word.size(), slots);
  if (key != "slots" || error != std::errc() || end != word.data() + word.size() || slots < 1) {
    throw bad_input("`" + printable(word) + "` is not understood", "write a line like `n1 slots=4`", place);
  }
  host.slots = slots;
}

}  // namespace

std::vector<Host> read_hostfile(const std::filesystem::path& file) {
  std::vector<Host> hosts;
  int number = 0;
  for (const std::string& line : split(read_file(file, kMostHostfileBytes), '\n')) {
    const SourcePlace place{file.string(), ++number, 1};
    std::istringstream words(line.substr(0, line.find('#')));
    Host host;
    if (!(words >> host.name)) continue;
    if (!is_host_name(host.name)) {
      throw bad_input("`" + printable(host.name) + "` is not the name of a machine", "write a line like `n1 slots=4`",
                      place);
    }
    for (std::string word; words >> word;) read_slots(word, place, host);
    hosts.push_back(host);
  }
  if (hosts.empty()) throw bad_input(printable_path(file) + " names no machine", "write one per line: n1 slots=4");
  return hosts;
}

}  // namespace lockstep::schedulers
