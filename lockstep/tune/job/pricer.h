// JobPricer: what the planner's cost model says about a configuration of a job. The evaluator of `--simulate` and the
// planner's prior are thin over it.
//
// Devices with figures are priced as `lockstep plan JOB --layout ... --micro ...` prices them, to the digit; kind cpu
// as `lockstep plan` prices it with a calibrated profile of this machine. Knobs that plans do not have are priced by
// the terms of cost/nccl_knobs.h and cost/loader.h, and only where the space turns
// them.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "lockstep/cost/pricer/pricer.h"
#include "lockstep/cost/profile/profile.h"
#include "lockstep/tune/job/knobs.h"
#include "lockstep/tune/study/trial.h"

namespace lockstep::tune {

struct JobPrice {
  Outcome outcome = Outcome::kMeasured;  // or kOutOfMemory, kInvalid
  std::string problem;                   // one line about a failure
  plan::Layout layout;
  plan::BatchPlan batch;
  double step_seconds = 0;     // 0 when invalid
  double planned_seconds = 0;  // the part that `lockstep plan` knows
  double per_second = 0;       // tokens, samples for images, of the whole job; also where it does not fit
  double memory_bytes = 0;     // of the rank that needs most
  double capacity_bytes = 0;
  double out_of_memory_probability = 0;
};

// Thread-safe.
class JobPricer {
 public:
  // The profile that prices a job; nullopt: there is none (a CPU that was not calibrated so). Called once for each
  // number of ranks, threads, backend and precision.
  using FindProfile = std::function<std::optional<cost::Profile>(const spec::Job& job)>;

  // Without `find_profile` the fitted profile of the devices is taken.
  explicit JobPricer(JobKnobs knobs, FindProfile find_profile = {});

  // nullopt: nothing is known. Never throws for what a configuration can be.
  std::optional<JobPrice> price(const Config& config) const;

  const JobKnobs& knobs() const { return knobs_; }

 private:
  const cost::Profile* profile_of(const spec::Job& job) const;
  JobPrice price_on_devices(const Config& config, const spec::Job& job, const cost::Profile& profile) const;
  std::optional<JobPrice> price_by_plan(const spec::Job& job, const cost::Profile* profile) const;
  double loading_seconds(const Config& config, const spec::Job& job, const cost::Price& price,
                         const plan::BatchPlan& batch) const;

  JobKnobs knobs_;
  FindProfile find_profile_;
  mutable std::mutex mutex_;
  mutable std::map<std::string, std::optional<cost::Profile>> profiles_;  // entries stay where they are
};

}  // namespace lockstep::tune
