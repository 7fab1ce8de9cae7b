// Runs that were seen, kept under $LOCKSTEP_HOME, and the profile after them: what `plan`, `train`, `tune` and
// `suggest` price with. Two kinds: rows that `lockstep observe` keeps (observations.csv, the columns of published
// rows), and the runs of our own engine in the run store, which count by themselves.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/cost/profile/posterior.h"
#include "lockstep/planner/rows/rows.h"

namespace lockstep::planner {

// $LOCKSTEP_HOME/observations.csv
std::filesystem::path observations_path();

// What is kept; an empty table where nothing is.
PublishedTable kept_observations();

struct KeptRows {
  std::size_t added = 0, known = 0;   // known: a row that says the same was there
  std::vector<std::string> left_out;  // "line 3: no throughput": rows that say nothing
};
// Adds the rows that have a rate, a step time or memory and can be priced. Throws UserError where it cannot write.
KeptRows keep_observations(const PublishedTable& table);

// Removes kept rows and ignores recorded runs whose name is `name` ("all": every one). How many there were.
std::size_t forget_observations(const std::string& name);

// $LOCKSTEP_NO_OBSERVATIONS is set: what --no-observations does, for this process and those it starts.
bool observations_are_off();
void switch_observations_off();

// The rows of `table` with a measurement, as runs for the posterior of `target`: each by the profile of its own
// hardware and stack, `target` where that is of the same hardware; the last row first, other hardware behind.
std::vector<cost::ObservedRun> observed_rows(const PublishedTable& table, const cost::Profile& target);

struct Conditioned {
  cost::Profile profile;
  std::vector<cost::RunVerdict> runs;  // used, outliers included
  std::vector<cost::ChangedConstant> changes;
};

// `profile` after the rows of `table` (each by the profile of its own hardware and stack, `profile` where that is of
// the same hardware). Its provenance names the runs.
Conditioned conditioned_on_rows(const cost::Profile& profile, const PublishedTable& table);

// The same after everything that is kept about this profile: rows for a fitted one, recorded runs of our engine for one
// of this engine. Unchanged where there is nothing or observations are off. Never throws for what is kept.
Conditioned conditioned(const cost::Profile& profile);

// Those that count, by name: "4 observed runs: a, b, c and 1 more"; "" for none.
std::string said_of(const std::vector<cost::RunVerdict>& runs);

// A sentence for each run that is not an ordinary one: how far off, and what to look at.
std::vector<std::string> findings_of(const std::vector<cost::RunVerdict>& runs);

}  // namespace lockstep::planner
