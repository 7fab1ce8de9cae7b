// The `launch:` section of a job file: where and with what a job is submitted (docs/reference/launch.md). It says
// nothing about the training itself, so it is not part of the Job: the same job is submitted anywhere.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "lockstep/base/map_reader.h"
#include "lockstep/base/yaml.h"

namespace lockstep::schedulers {

struct LaunchSettings {
  std::string on;         // the scheduler to use; "": this machine
  std::string lockstep;   // the executable on the nodes; "": this one, in images `lockstep`
  std::string directory;  // that it runs in on the nodes; "": this one, in images the image's
  std::string image;      // container; "": none
  std::int64_t spares = 0;
  double time_seconds = 0.0;    // limit; 0: the scheduler's own
  double notice_seconds = 90;   // before the limit, for the run to save and be started again
  bool requeue = true;          // after a time limit or a lost node
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

}  // namespace lockstep::schedulers
