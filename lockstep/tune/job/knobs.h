// JobKnobs: what a configuration of a Space means for a Job. One mapping for everything that prices or runs jobs.
//
// A knob's `target` names the field of the job file it turns ("batch.micro", "layout.zero"), "ranks" (devices in use),
// "env" (environment variables) or, where the space gives none, follows from the knob's name: micro_batch,
// accumulation, num_workers, prefetch_factor, bucket_mib, zero, tp, pp, recompute, precision, ranks, threads ... and
// UPPER_CASE names, which are environment variables (docs/reference/tuning-evaluators.md has the table).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/plan/layout.h"
#include "lockstep/spec/job.h"
#include "lockstep/tune/space/space.h"

namespace lockstep::tune {

// The target of a knob: as the space says, else by its name; "": no job has such a knob.
std::string job_target(const Knob& knob);

// Immutable after construction, thread-safe.
class JobKnobs {
 public:
  // `base` is the job with no knob turned. Throws UserError (exit code 2) for knobs that no job has, and for levels
  // that their field cannot take (zero 4, micro-batch 0).
  JobKnobs(Space space, spec::Job base);

  // The job as configured. Axes of the layout follow the knobs: the ranks that tp, pp and cp leave go to `shard` with
  // ZeRO and to `dp` without, unless a knob says otherwise; what cannot mean anything (ZeRO over one rank, a schedule
  // without a pipeline) is left out. The result need not be valid: plan::find_layout_problem() tells.
  spec::Job apply(const Config& config) const;

  // The same as `key=value` words for `lockstep train JOB.yaml`, only for what knobs turn.
  std::vector<std::string> overrides(const Config& config) const;

  // Knobs of target "env", active ones; `auto` is a variable that is not set.
  std::map<std::string, std::string> environment(const Config& config) const;

  // Devices that the configuration holds.
  std::int64_t ranks(const Config& config) const;

  // The value of the knob with this target; nullptr: no knob has it, or it is inactive.
  const Value* find(const Config& config, const std::string& target) const;

  // What the job itself says for a target; nullopt for targets that have no field (env).
  static std::optional<Value> value_in(const spec::Job& job, const std::string& target);

  const Space& space() const { return space_; }
  const spec::Job& base() const { return base_; }

 private:
  void check_levels(std::size_t knob) const;
  void set(spec::Job& job, std::size_t knob, const Value& value) const;
  bool turns_layout() const;
  void complete_layout(spec::Job& job) const;

  Space space_;
  spec::Job base_;
  std::vector<std::string> targets_;  // by knob
};

// "layout={dp: 1, shard: 8, zero: 3}": a layout as an override that takes the whole place of the file's.
std::string layout_override(const spec::LayoutRequest& layout);

}  // namespace lockstep::tune
