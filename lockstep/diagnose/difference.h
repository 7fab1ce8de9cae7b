// What changed from one run to another: how long a step takes and in which phase, settings, versions, and what is wrong
// with each.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/diagnose/diagnosis.h"
#include "lockstep/diagnose/evidence.h"

namespace lockstep::diagnose {

struct PhaseChange {
  std::string phase;                 // "step", "compute", ...: the metric without its unit
  double before = 0.0, after = 0.0;  // usual seconds of a step, median of the ranks
  double share_of_change = 0.0;      // percent of how much the step changed
  bool clear = false;                // beyond what steps scatter by
};

struct SettingChange {
  std::string key;            // "batch.micro"; "version lockstep"
  std::string before, after;  // "": not there
};

struct Difference {
  std::string first, second;        // ids
  std::vector<PhaseChange> phases;  // the step first, then the largest change first
  std::vector<SettingChange> settings;
  Diagnosis before, after;
};

// Ids as diagnose_run() takes them.
Difference compare_runs(const telemetry::RunStore& store, const std::string& first, const std::string& second,
                        const StepRange& range = {});

std::string to_text(const Difference& difference, const telemetry::TerminalStyle& style = {});
nlohmann::json to_json(const Difference& difference);  // lockstep.difference/1

}  // namespace lockstep::diagnose
