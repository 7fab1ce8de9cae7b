// Earlier studies as evidence for a new one: ours, and Optuna's.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "lockstep/tune/space/space.h"
#include "lockstep/tune/study/store_journal.h"
#include "lockstep/tune/study/trial.h"

namespace lockstep::tune {

// A trial of another study, in that study's own words.
struct EarlierTrial {
  nlohmann::json config = nlohmann::json::object();  // {"knob": value}
  Outcome outcome = Outcome::kMeasured;
  double throughput = 0;  // where measured; in any unit: only ratios are used
  std::string message;
};

struct EarlierStudy {
  std::string name;  // for messages
  std::vector<EarlierTrial> trials;
};

EarlierStudy earlier_of(const StoredStudy& study);

// Optuna's SQLite storage. `study_name` "": the only study in it. Complete trials count with their (first) value, what
// is minimized as one over it; pruned ones with their last intermediate value; failed ones, and values that are not
// above 0, as failures. Running and waiting ones are left out. UserError: bad input for files that are none, and where
// the name is missing or not there (the message lists the names).
EarlierStudy read_optuna_storage(const std::filesystem::path& file, const std::string& study_name = {});

// A table of trials: CSV as `study.trials_dataframe()` or `tune --export csv:` write it, or JSON: a list of
// {"params": {...}, "value": x, "state": "COMPLETE"} or of rows of the data frame, or our `tune --show --json`.
// Values are taken as throughputs: higher is better.
EarlierStudy read_trial_table(const std::filesystem::path& file);

// Studies as a source names them: a file (.db or .sqlite3, with #NAME behind it where it holds several studies; .csv,
// .json). nullopt: not a file of these kinds, so that it is the id of a study of ours.
std::optional<EarlierStudy> read_earlier_file(const std::string& source);

// The trials that have a place in `space`: knobs by name, knobs that the earlier study did not know at their defaults,
// numbers at the nearest level within a tenth of the range. Others are left out.
// Throughputs become ratios to the study's median, so that trials of several studies can stand in one list.
std::vector<Trial> place_trials(const Space& space, const EarlierStudy& study);

}  // namespace lockstep::tune
