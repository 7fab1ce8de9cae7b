// Two profiles, before and after: what changed, and what that is worth.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/diagnose/foreign/trace.h"

namespace lockstep::diagnose {

// A line of the comparison: seconds per step (per recording where steps are not marked) on one device.
struct ChangedTime {
  std::string what;
  double before = 0.0;
  double after = 0.0;
  double change() const { return after - before; }
};

struct ChangedKernel {
  std::string name;
  double before_seconds = 0.0;  // per step; 0: was not there
  double after_seconds = 0.0;   // 0: is gone
  double before_count = 0.0;
  double after_count = 0.0;
  double change() const { return after_seconds - before_seconds; }
};

struct DiagnosisDiff {
  std::string before;  // files
  std::string after;
  int before_steps = 0;  // that were marked; 0: whole recordings are compared
  int after_steps = 0;
  ChangedTime step;
  // step = computing + exposed communication + exposed copies + idle parts + the rest of the device's work.
  std::vector<ChangedTime> parts;
  std::vector<ChangedTime> more;       // that overlaps with the parts: communication, loader
  std::vector<ChangedKernel> kernels;  // the largest changes first, at most 20
};

// Traces of one job each; means over its devices.
DiagnosisDiff diff_traces(const std::vector<Trace>& before, const std::vector<Trace>& after);
// Each a file or a folder with profiles (PyTorch profiler, Nsight Systems). Throws UserError.
DiagnosisDiff diff_files(const std::filesystem::path& before, const std::filesystem::path& after);

std::string to_text(const DiagnosisDiff& diff);
nlohmann::json to_json(const DiagnosisDiff& diff);  // lockstep.diagnosis_diff/1

}  // namespace lockstep::diagnose
