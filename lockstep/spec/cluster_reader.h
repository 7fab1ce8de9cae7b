// Cluster from YAML: a name ("4x8xH100", a kind, a file) or a map with `groups:`.
#pragma once

#include <string>

#include "lockstep/base/yaml.h"
#include "lockstep/spec/cluster.h"

namespace lockstep::spec {

// `path` is the dotted place in the file ("cluster", "" for a cluster file). `default_name` names a map without
// `name:`. A relative file name starts from the folder of the file the node was written in. Throws UserError.
Cluster read_cluster(const YamlNode& node, const std::string& path, const std::string& default_name);

// Everything known about a device kind: one usual node, and the storage that belongs to a node.
struct DeviceKind {
  NodeGroup node;
  Storage storage_per_node;
};

// Throws UserError with the nearest kind. `place` is where the name was written.
DeviceKind load_device_kind(const std::string& kind, const SourcePlace& place);

}  // namespace lockstep::spec
