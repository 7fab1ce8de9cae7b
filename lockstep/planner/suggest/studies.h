// What stored studies say about a job alike.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/planner/suggest/suggest.h"

namespace lockstep::planner {

// What a study was about, as far as its record says.
struct StudiedJob {
  double parameters = 0;
  std::string gpu;
  std::int64_t gpus = 0;
};

// From `options.about` {"parameters", "gpu", "gpus"} or the job of `options.evaluator` (`job_yaml`, or `job`: a file
// that is still there, or a preset); nullopt when it says none of them.
std::optional<StudiedJob> studied_job(const nlohmann::json& options);

// Within a factor of two in parameters, the same GPU and number of GPUs.
bool is_alike(const StudiedJob& studied, const Suggestion& suggestion);

// The knobs of a finished study (schema lockstep.study/1) whose set-back costs at least 1% with an interval above zero,
// dearest first. A conclusion that does not read gives none.
std::vector<StudiedKnob> knobs_that_matter(const std::string& study, const nlohmann::json& conclusion);

// Of the newest finished study alike under `home`; empty where there is none, no store, or one that cannot be read
// (which becomes a warning of the suggestion).
std::vector<StudiedKnob> studied_knobs(const std::filesystem::path& home, Suggestion& suggestion);

}  // namespace lockstep::planner
