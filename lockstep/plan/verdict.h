// The verdict: everything that speaks against a Run, found before anything starts. Search, `plan`, `train`, `tune` and
// the engine ask this one function, so they cannot disagree.
//
//   for (const Problem& problem : problems(run)) ...
//   require_runnable(run);     // throws the first refusal
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/plan/run.h"

namespace lockstep::plan {

enum class Severity {
  kRefused,  // no launch of this run works
  kWarning,  // it trains, but not as the user may think; said once
};

struct Problem {
  std::string key;   // field of the job file it is about: "layout.cp", "communication.compression"
  std::string text;  // one sentence with the values
  std::string fix;   // what to change; may be empty
  Severity severity = Severity::kRefused;
  bool operator==(const Problem&) const = default;
};

// In the order a user would want to fix them; empty: the run trains. Memory is cost's to judge. Pure and cheap (search
// calls it for what it returns).
std::vector<Problem> problems(const Run& run);

// The first refusal; nothing where the run trains. Cheaper than problems() where one is enough.
std::optional<Problem> first_refusal(const Run& run);

// Throws the first refusal as a UserError (exit code 2) with its fix.
void require_runnable(const Run& run);

}  // namespace lockstep::plan
