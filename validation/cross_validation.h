// Fits with and without each fold, in parallel, and what they predict.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "validation/hierarchical_fit.h"
#include "validation/measurements.h"
#include "validation/stall_fit.h"

namespace lockstep::validation {

// Constants of time and of memory; the latter were fitted under the former.
struct Fit {
  PooledConstants time;
  PooledConstants memory;
  std::map<std::pair<std::string, std::string>, cost::Stalls> stalls;  // of stacks whose runs say something of them
  cost::Stalls stalls_at(const std::string& hardware, const std::string& stack) const;
  cost::Constants at(const std::string& hardware, const std::string& stack) const;
};

// Rows whose `group` (fold, or stack) is left out when they are predicted.
using GroupOf = std::function<std::string(const Measurement&)>;

struct FitProgress {
  std::function<void(std::size_t done, std::size_t total)> report;
};

// Rows that a fit uses; empty: all.
using Accept = std::function<bool(const Measurement&)>;

// Everything in `folder`.
Fit fit_all(const std::string& folder, int threads, std::size_t most_rows_of_a_source = 1'000'000,
            const Accept& accept = nullptr);

// The run beside what its pricer, which must have no stalls at the moment, expects of an ordinary one.
StallExample stall_example(const Measurement& m);

// What a fold starts from has seen it: so many iterations at each widening of the sigmas make it forget.
struct FoldEffort {
  int iterations = 12;
  std::vector<double> widenings{3, 1};
  std::size_t most_rows_of_a_source = 1'000'000;  // those with the lowest hash of their id
  Accept accept = nullptr;
};

// One fit per group, without it, warm from `whole`. Keys are the groups that have something to fit.
std::map<std::string, Fit> fit_without_each(const std::string& folder, const Fit& whole, const GroupOf& group,
                                            int threads, const FitProgress& progress, const FoldEffort& effort = {});

}  // namespace lockstep::validation
