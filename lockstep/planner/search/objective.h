// Objective: what makes one candidate better than another, as one number.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/planner/cadence.h"
#include "lockstep/planner/search/search.h"

namespace lockstep::planner {

// What a score needs to know about the number of devices in use.
struct WorldTerms {
  std::int64_t devices = 0;
  double usd_per_hour = 0;
  CadenceQuestion cadence;  // step_seconds left open
};

// What a step counts as when candidates are compared: divided by the chance that it runs at all (1 - probability of
// running out of memory), and stretched a little for every mechanism it needs: a gain below what the cost model can
// resolve does not pay for a higher ZeRO stage, a pipeline, context parallelism on short sequences, a zero-bubble
// schedule or tensor parallelism between nodes.
double considered_seconds(const plan::Layout& layout, const cost::Price& price, std::int64_t devices_per_node);

// Thread-safe after construction.
class Scorer {
 public:
  // `request` is complete(). Throws UserError (exit code 2): dollars without prices, a deadline without tokens.
  Scorer(const SearchRequest& request, const std::vector<std::int64_t>& worlds);

  const WorldTerms& world(std::int64_t devices) const;

  // Higher is better, in the unit of the objective.
  double score(const WorldTerms& world, double step_seconds) const;
  // Dollars for the whole job (or a billion tokens where its length is not given).
  double usd(const WorldTerms& world, double step_seconds) const;
  // Tokens (samples for images) per second.
  double per_second(double step_seconds) const { return work_per_step_ / step_seconds; }
  // Checkpoints for a step of that length.
  plan::CheckpointCadence cadence(const WorldTerms& world, double step_seconds) const;

 private:
  double job_seconds(const WorldTerms& world, double step_seconds) const;

  Objective objective_;
  double work_per_step_ = 0;  // tokens or samples
  double work_ = 0;           // of the job
  double deadline_seconds_ = 0;
  std::vector<WorldTerms> worlds_;
};

// Checkpoints of `candidate` at that step time and, where the request says how long the job is, its days and dollars.
void add_money(const SearchRequest& request, plan::Candidate& candidate, double step_seconds);

}  // namespace lockstep::planner
