// The `launch:` section of a job file: where and with what a job is submitted (docs/reference/launch.md). It says
// nothing about the training itself, so it is not part of the Job: the same job is submitted anywhere.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "lockstep/base/map_reader.h"
#include "lockstep/base/yaml.h"

namespace lockstep::schedulers {

// A machine to start an agent on.
struct Host {
  std::string name;        // or address; what the others reach it by
  std::int64_t slots = 0;  // ranks it takes; 0: not said
  bool operator==(const Host&) const = default;
};

struct LaunchSettings {
  std::string on;         // the scheduler to use; "": this machine
  std::string lockstep;   // the executable on the nodes; "": this one, in images `lockstep`
  std::string directory;  // that it runs in on the nodes; "": this one, in images the image's
  std::string image;      // container; "": none
  std::int64_t spares = 0;
  std::string hostfile;            // ssh, mpi
  std::vector<Host> hosts;         // of the hostfile, or given otherwise; those beyond the job's nodes are spare
  double time_seconds = 0.0;       // limit; 0: the scheduler's own
  double notice_seconds = 90;      // before the limit, for the run to save and be started again
  bool requeue = true;             // after a time limit or a lost node
  std::int64_t gpus_per_node = 0;  // of a foreign program; a job's cluster says it itself
  std::int64_t cpus_per_node = 0;  // 0: the scheduler's own
  double memory_per_node = 0.0;    // bytes; 0: the scheduler's own
  std::map<std::string, std::string> environment;  // of every node; for anything but secrets
  // What only one scheduler understands, by its name; read by that scheduler.
  std::map<std::string, YamlNode> sections;

  // The section of `scheduler` to read, an empty map when there is none. Call finish() on it.
  MapReader section(const std::string& scheduler) const;
};

// `launch` is the value of the key in the job file, nullptr when it is absent. Throws UserError for unknown keys,
// environment names that are not names, and values that do not fit on one line.
LaunchSettings read_settings(const YamlNode* launch);

// One machine per line, `name [slots=4]`, `#` begins a comment. Throws UserError with the line for anything else.
std::vector<Host> read_hostfile(const std::filesystem::path& file);
// A name or address that can be handed to a program: letters, digits and ". : _ % -", not beginning with '-'.
bool is_host_name(const std::string& name);

}  // namespace lockstep::schedulers
