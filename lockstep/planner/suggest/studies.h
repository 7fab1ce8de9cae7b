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
  std::int64_t sequence_length = 0;   // 0: not said
  std::optional<bool> adapters = {};  // were adapters trained, or every weight? nullopt: not said
};

// From `options.about` {"parameters", "gpu", "gpus"; "sequence_length" and "adapters" where known} or the job of
// `options.evaluator` (`job_yaml`, or `job`: a file that is still there, or a preset); nullopt when it says none of
// them.
std::optional<StudiedJob> studied_job(const nlohmann::json& options);

// Within a factor of two in parameters, the same GPU and number of GPUs; where the study says them, also the same
// sequence length, and adapters where adapters are asked for.
bool is_alike(const StudiedJob& studied, const Suggestion& suggestion, std::int64_t sequence_length);

// The knobs of a finished study (schema lockstep.study/1) whose set-back costs at least 1% with an interval above zero,
// dearest first. A conclusion that does not read gives none.
std::vector<StudiedKnob> knobs_that_matter(const std::string& study, const nlohmann::json& conclusion);

// Of the newest finished study alike under `home` that measured something (a simulated one repeats the planner); empty
// where there is none, no store, or one that cannot be read (which becomes a warning of the suggestion).
std::vector<StudiedKnob> studied_knobs(const std::filesystem::path& home, Suggestion& suggestion,
                                       std::int64_t sequence_length);

}  // namespace lockstep::planner
