// The published runs as observations: read, turned into pricers, grouped into folds.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
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

// FNV-1a, 64 bits: choices that must not depend on what a run measured.
std::uint64_t hash_of(const std::string& text);
bool is_grid(const Measurement& m);

// Ids of measured runs, of each source the `most` with the lowest hashes.
std::set<std::string> ids_of_each_source(const std::vector<Measurement>& measurements, std::size_t most);

// Kinds that share constants: the same chip with another memory.
std::string hardware_family(const std::string& device_kind);

}  // namespace lockstep::validation
