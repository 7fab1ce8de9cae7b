// The published runs as observations: read, turned into pricers, grouped into folds.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/cost/pricer/pricer.h"
#include "lockstep/planner/rows/rows.h"

namespace lockstep::validation {

struct Measurement {
  std::string file;
  planner::PublishedRow row;
  planner::RowReading reading;
  std::string fold;
  std::string hardware;  // family: A100 of either memory size is one
  bool strict = false;
  bool failed = false;                   // out of memory or crashed
  std::shared_ptr<cost::Pricer> pricer;  // none where the row cannot be priced
  std::optional<double> step_seconds;    // measured
  std::optional<double> memory_bytes;    // measured; reserved where the question says so
};

// The four files of validation/published.
std::vector<Measurement> load_measurements(const std::string& folder);

// Kinds that share constants: the same chip with another memory.
std::string hardware_family(const std::string& device_kind);

}  // namespace lockstep::validation
