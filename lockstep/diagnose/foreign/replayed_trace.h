// A trace of operations replayed step by step: how near the replay comes to what was measured, how much slower the job
// is than without stragglers, and what they are (docs/reference/simulate.md).
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/diagnose/diagnosis.h"
#include "lockstep/diagnose/foreign/operations_csv.h"
#include "lockstep/plan/layout.h"

namespace lockstep::diagnose {

struct ReplayedStep {
  StragglerFigures::Step figures;
  std::optional<Finding> worst;  // of this step alone; absent: nothing costs enough to be named
  // How far the simulated time is from the measured one, as a share of that.
  double error() const;
  double slow_down() const;
};

struct StepLeftOut {
  std::int64_t step = 0;
  std::string why;
};

// Means and the largest of a share.
struct ReplayError {
  double mean = 0.0, worst = 0.0;
};

struct ReplayedTrace {
  std::string name;
  std::optional<plan::Layout> mesh;   // as it was given
  int data_ranks = 0, stages = 0;     // as they are in the trace
  std::vector<ReplayedStep> steps;    // ascending
  std::vector<StepLeftOut> left_out;  // steps that are not whole
  StragglerFigures figures;           // of all steps together
  std::optional<Finding> worst;       // the same

  double simulated_seconds() const;    // mean over the steps
  ReplayError error() const;           // each step with its own pauses
  ReplayError error_foretold() const;  // each step with the pauses of the others; NaN for a single step
  ReplayError error_without_pauses() const;
};

// Throws UserError (exit 2): the operations contradict the mesh or each other, or no step is whole. Steps that are not
// whole (a worker or some of its operations are missing, one is there twice, operations wait in a circle) are left out
// and told.
ReplayedTrace replay_trace(const std::vector<sim::Operation>& operations, std::string name,
                           const std::optional<plan::Layout>& mesh = {});
// Of a CSV file, plain or gzip; exit 4 where it is not there.
ReplayedTrace replay_file(const std::filesystem::path& file, const std::optional<plan::Layout>& mesh = {});

nlohmann::json to_json(const ReplayedTrace& replayed);  // lockstep.replay/1

}  // namespace lockstep::diagnose
