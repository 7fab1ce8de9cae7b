// Run: how a job is executed, completely resolved. The one value that verbs, cost, search, tuner and engine share: what
// is priced is what is judged (verdict.h) and what is trained. A plain value.
#pragma once

#include <optional>

#include "lockstep/plan/executor.h"
#include "lockstep/plan/plan.h"
#include "lockstep/spec/batch_schedule.h"
#include "lockstep/spec/job.h"

namespace lockstep::plan {

struct Run {
  spec::Model model;
  spec::Cluster cluster;
  Layout layout;                 // its precision is the run's
  BatchPlan batch;               // of the last phase of the schedule
  spec::BatchSchedule schedule;  // samples of every step
  spec::Optimizer optimizer;
  spec::Lora lora;
  spec::Communication communication;
  spec::Health health;
  spec::Packing packing = spec::Packing::kTogether;
  bool activation_offload = false;
  spec::Snapshots snapshots;
  Executor executor = Executor::kSharded;

  // Micro-batches of a data rank in the step that has the most.
  std::int64_t most_micro_steps() const {
    return spec::micro_steps_of(schedule.largest(), batch.micro, layout.data_ranks());
  }
  // Whether ranks compare what they hold alike. Different kinds of devices may round differently; and under tensor or
  // pipeline parallelism onebit and powersgd, which approximate whole buckets, do so for each rank's buckets by itself.
  bool compares_replicas() const;
  bool operator==(const Run&) const = default;
};

// The only way from a job to the run that it becomes under `layout`: batch from the job, the executor chosen.
Run run_of(const spec::Job& job, const Layout& layout);
// The same with the batch of a plan: what a plan decides wins over the job's own micro-batch and accumulation.
Run run_of(const spec::Job& job, const Candidate& planned);

// The steps of the run have the samples of `schedule` from now on (a run that goes on keeps those it had).
void set_schedule(Run& run, const spec::BatchSchedule& schedule);

// The plan decides batch, precision and layout, wherever it came from; the job follows it.
void follow(spec::Job& job, const Candidate& planned);

// The layout that the job's file gives; nothing where it leaves the choice to the planner.
std::optional<Layout> given_layout(const spec::Job& job);

// The same, and plain data parallelism over every device where it leaves the choice.
Layout layout_of(const spec::Job& job);

// batch.global or micro x accumulation x data ranks, the micro-steps that they take, and the sequence length (the
// model's own where the job has none).
BatchPlan batch_of(const spec::Job& job, const Layout& layout);

}  // namespace lockstep::plan
