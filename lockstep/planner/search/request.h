// What a search is asked, checked.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/plan/verdict.h"
#include "lockstep/planner/search/search.h"

namespace lockstep::planner {

// The error (exit code 2) of a complete() request that leaves no layout: names the rule that its constraints break.
UserError contradiction(const SearchRequest& request);

// What `lockstep train` says against the candidate (plan::first_refusal). Nothing where it trains, and where the
// profile is of another framework, whose plan this is then.
std::optional<plan::Problem> find_untrained(const SearchRequest& request, const plan::Layout& layout,
                                            const plan::BatchPlan& batch);
// The part of it that forbids the candidate as an answer: everything for a job, else what its layout is to blame for.
std::optional<plan::Problem> find_refusal(const SearchRequest& request, const plan::Layout& layout,
                                          const plan::BatchPlan& batch);
// Throws UserError (exit code 2) where no layout will do: a job's model, batch or precision that is refused, or fp8 and
// narrow optimizer states that the one device cannot train.
void require_trained(const SearchRequest& request);

// Sequences that models are pretrained with where they take longer ones: nobody starts at 32768.
inline constexpr std::int64_t kUsualLongest = 8192;
inline constexpr std::int64_t kUsualSequence = 4096;

// The keys of Constraints::fixed and at_most: axes, micro and accumulation.
std::vector<std::string> constraint_keys();
// Fixes a field of the layouts that are searched. Precisions are the request's and stay.
void fix_field(Constraints& constraints, const plan::LayoutField& field, std::int64_t value);

// Throws UserError for names of passes that do not exist or cannot be switched off.
void require_passes(const std::vector<std::string>& switched_off);

}  // namespace lockstep::planner
