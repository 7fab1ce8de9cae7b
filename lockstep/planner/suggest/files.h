// A suggestion as files that tools read.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "lockstep/planner/suggest/suggest.h"

namespace lockstep::planner {

enum class SuggestionFile { kJob, kTorchrun, kDeepspeed, kAccelerate };

SuggestionFile parse_suggestion_file(std::string_view text);  // "job", "torchrun", ...; UserError with the nearest
// By the name: *.sh torchrun, *.json DeepSpeed, *accelerate*.yaml Accelerate, other *.yaml and *.yml a job file.
// Throws UserError (exit code 2) for other names.
SuggestionFile file_kind_of(const std::filesystem::path& path);
Stack stack_of(SuggestionFile kind);

// The same question for a stack: `suggestion` itself where it was asked for that one.
Suggestion for_stack(const Suggestion& suggestion, Stack stack);

// Each is for the layout of its stack: where `suggestion` is for another, for_stack() answers first.
std::string job_yaml(const Suggestion& suggestion);         // any suggestion; load_job() reads it
std::string torchrun_script(const Suggestion& suggestion);  // of lockstep: runs `lockstep train`
nlohmann::ordered_json deepspeed_config(const Suggestion& suggestion);
std::string accelerate_config(const Suggestion& suggestion);
std::string file_text(const Suggestion& suggestion, SuggestionFile kind);

}  // namespace lockstep::planner
