// What the flags of `lockstep plan` ask, as questions for the planner.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/planner/search/search.h"

namespace lockstep::cli {

// As written on the command line; "" and 0: not given.
struct PlanFlags {
  std::string job_file;
  std::vector<std::string> overrides;  // of the job file
  std::string model, cluster, profile;
  std::string stack;                 // of planner::find_capabilities()
  std::string global_batch;          // "1024" sequences, "4Mtok" tokens
  std::int64_t sequence_length = 0;  // tokens
  std::int64_t micro = 0;
  std::string layout, fix, at_most, precision;
  std::string tokens, deadline, max_lost;
  std::string objective = "throughput";
  std::vector<std::string> switch_off;
};

// Model, cluster, profile, batch, constraints and goals, from the job file first and the flags over it. Throws
// UserError (exit code 2) naming the flag and the nearest right word.
planner::SearchRequest request_of(const PlanFlags& flags);

// What was settled without being asked and a reader should know, one line each: a sequence as long as the model takes
// or longer, micro-batch and accumulation of the job file not kept; and what `lockstep train` refuses of the plan
// `best`. `request` is the plan's.
std::vector<std::string> notices_of(const PlanFlags& flags, const planner::SearchRequest& request,
                                    const plan::Candidate& best);

// The same question for another cluster, with that cluster's own profile unless --profile names one.
planner::SearchRequest request_on(const planner::SearchRequest& request, const std::string& cluster,
                                  const PlanFlags& flags);

// "8,16,...,1024": two neighbours before the dots give the factor (or, where it is not a whole number, the difference).
// Ascending. Throws UserError.
std::vector<std::int64_t> parse_sizes(const std::string& text);

// Sequences in `text`: a plain count is sequences, "4Mtok" or "4M tokens" is tokens, to
// within 5%: the multiple of the highest power of two, as round batches divide over ranks ("4M tokens" of sequences of
// 4096 is 1024, not 977).
std::int64_t parse_global_batch(const std::string& text, std::int64_t sequence_length);

}  // namespace lockstep::cli
