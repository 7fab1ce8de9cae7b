// What a section of a job takes from a plugin: a shared object of the user's (lockstep/plugin/register.h), the name
// under which it registered something there, and the keys of the section that are the plugin's own. The file is looked
// at here without being opened, so that what it holds is known without libtorch.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "lockstep/base/enum_names.h"
#include "lockstep/base/map_reader.h"
#include "lockstep/base/yaml.h"

namespace lockstep::spec {

enum class PluginKind { kModel, kDataset, kLoss, kMetric, kSchedule };
constexpr auto names_of(PluginKind) {
  return enum_names<PluginKind::kSchedule>("model", "dataset", "loss", "metric", "schedule");
}

struct PluginUse {
  std::string file;    // absolute; "": none
  std::string digest;  // of the file
  std::string name;    // as registered
  std::string folder;  // that relative paths among the options start from
  YamlNode options;    // a map
  bool used() const { return !file.empty(); }
  // Whether the same is asked for: the file may lie elsewhere, and be built again.
  bool operator==(const PluginUse& other) const;
};

// What the strings that plugin/register.h leaves in a shared object say.
struct PluginFile {
  std::string path, digest;
  int interface = 0;     // 0: it is no plugin
  std::string lockstep;  // versions that it was built against
  std::string torch;
  std::map<PluginKind, std::vector<std::string>> names;
};

// Throws UserError at `place`: exit 4 where the file is missing, 2 where it is no plugin or one of another interface.
PluginFile look_at_plugin(const std::string& path, const SourcePlace& place = {});

// Reads `plugin`, `plugin_digest` and `plugin_folder` of a section; false where it has no plugin. The digest is there
// when the job was written by to_yaml(): then the file is not looked at, and its names are not checked.
bool read_plugin_file(MapReader& map, PluginUse& use);
// `key` names what is taken: checked against the file's names, with the nearest in the error.
void check_plugin_name(const MapReader& map, const std::string& key, PluginKind kind, const PluginUse& use);
// The same file's other name, without options.
PluginUse named_in(PluginUse use, const std::string& name);
// Every key of the section but `ours` is the plugin's.
void take_plugin_options(const YamlNode& node, const std::vector<std::string>& ours, PluginUse& use);

// `plugin`, `plugin_digest` and `plugin_folder`, and these with the options, as lines of a YAML map that read back to
// the same.
std::string plugin_file_lines(const PluginUse& use, int indent);
std::string plugin_lines(const PluginUse& use, int indent);
// A map or list in one line, and options from such a line.
std::string flow_text(const YamlNode& node);
YamlNode read_plugin_options(const std::string& text, const std::string& folder);

// Places of options in the file that the user wrote, by key: a job that was sent as text has lost them.
std::map<std::string, SourcePlace> places_of(const PluginUse& use);
void restore_places(PluginUse& use, const std::map<std::string, SourcePlace>& places);

}  // namespace lockstep::spec
