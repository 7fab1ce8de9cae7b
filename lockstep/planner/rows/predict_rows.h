// Published rows priced: what `lockstep predict` prints and the validation scores.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "lockstep/cost/pricer/pricer.h"
#include "lockstep/cost/profile/posterior.h"
#include "lockstep/planner/rows/rows.h"

namespace lockstep::planner {

// What is absent was not predicted; `note` says why.
struct RowPrediction {
  std::optional<plan::Interval> tokens_per_second_per_gpu;  // 90%
  std::optional<double> memory_gib;  // as the row's own figure was taken: peak allocated, or reserved and context too
  std::optional<bool> fits;          // also false for a layout that no memory would make run
  std::optional<double> out_of_memory_probability;
  std::string profile;  // identity of what priced it
  std::string note;
};

// One question under one profile, its facts included. `time_sigma` above 0 replaces the profile's. Throws UserError
// where the pricer does.
RowPrediction price_question(const RowQuestion& question, const cost::Profile& profile, double time_sigma = 0);

// Prices row after row; keeps the profiles it has met. Not thread-safe.
class RowPredictor {
 public:
  // With a profile every row is priced under it, stack facts included. Without one the profile of the row's hardware
  // and stack is used (cost::profile_for), with the facts known of the stack as the row ran it.
  explicit RowPredictor(std::optional<cost::Profile> profile = std::nullopt) : fixed_(std::move(profile)) {}
  // Measured runs of the same stack condition every prediction (observations.h).
  void observe(PublishedTable observed) { observed_ = std::move(observed); }
  // Of the profiles that were used: the runs that count, and those that are findings.
  std::vector<cost::RunVerdict> observed_runs() const;

  // Never throws for what a row says: a row that cannot be priced gets a note.
  RowPrediction predict(const PublishedRow& row);

 private:
  cost::Profile profile_for(const RowQuestion& question) const;
  const cost::Posterior& posterior_for(const RowQuestion& question);

  std::optional<cost::Profile> fixed_;
  PublishedTable observed_;
  std::map<std::string, cost::Posterior> met_;
};

}  // namespace lockstep::planner
