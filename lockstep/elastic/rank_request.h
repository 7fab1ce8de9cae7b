// What one rank is told: the same text whether the local agent spawned it or an external launcher did.
// Written as JSON by the command line, read by the engine.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "lockstep/elastic/rank_environment.h"

namespace lockstep::elastic {

struct RankRequest {
  std::string verb = "train";  // or "calibrate"
  std::string job_yaml;        // spec::parse_job() reads it
  nlohmann::json plan;         // plan::Plan as JSON; null: none
  RankEnvironment ranks;
  std::string backend = "gloo";
  std::string run_id;
  std::string home;                  // telemetry::home_directory() of the first rank; "": do not record
  std::string run_directory;         // logs, JSON lines
  std::string checkpoint_directory;  // "": no checkpoints
  std::string resume_from;           // a checkpoint folder; "": start fresh
  bool owns_run = false;             // this process creates and closes the run in the store (no agent does)
  int threads = 1;                   // compute threads of this rank
  nlohmann::json options;            // verb-specific: calibrate's {quick}
};

nlohmann::json to_json(const RankRequest& request);

// Throws UserError naming the field that is missing or of the wrong type.
RankRequest rank_request_from_json(const nlohmann::json& value);

}  // namespace lockstep::elastic
