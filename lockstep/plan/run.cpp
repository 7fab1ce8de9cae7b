#include "lockstep/plan/run.h"

#include <algorithm>

namespace lockstep::plan {
namespace {

Run run_of(const spec::Job& job, const Layout& layout, const BatchPlan& batch) {
  Run run{.model = job.model,
          .cluster = job.cluster,
          .layout = layout,
          .batch = batch,
          .schedule = spec::batch_schedule(job.batch, layout.data_ranks(), batch.sequence_length),
          .optimizer = job.optimizer,
          .lora = job.lora,
          .communication = job.communication,
          .health = job.health,
          .packing = job.data.packing,
          .activation_offload = job.activation_offload,
          .snapshots = job.recovery.snapshots};
  // What a plan decides wins; only the job knows of samples that do not divide evenly over the ranks.
  if (job.batch.global > 0) {
    set_schedule(run, run.schedule);
  } else {
    run.schedule.phases.back().global = batch.global_sequences;
  }
  run.executor = choose_executor(run);
  return run;
}

}  // namespace

bool Run::compares_replicas() const {
  const auto& groups = cluster.groups;
  const bool alike = std::all_of(groups.begin(), groups.end(),
                                 [&](const auto& group) { return group.device.kind == groups.front().device.kind; });
  using enum spec::Compression;
  const bool by_bucket = communication.compression == kPowerSgd || communication.compression == kOneBit;
  const bool same_buckets = !by_bucket || (layout.tp == 1 && layout.pp == 1);
  return health.replica_check_every > 0 && alike && same_buckets;
}

void set_schedule(Run& run, const spec::BatchSchedule& schedule) {
  run.schedule = schedule;
  run.batch.global_sequences = schedule.final();
  const std::int64_t ranks = run.layout.data_ranks();
  if (run.batch.micro < 1 || ranks < 1) return;  // the verdict says so
  run.batch.accumulation = spec::micro_steps_of(schedule.final(), run.batch.micro, ranks);
}

BatchPlan batch_of(const spec::Job& job, const Layout& layout) {
  BatchPlan batch;
  batch.micro = job.batch.micro;
  batch.accumulation = job.batch.accumulation;
  batch.global_sequences = batch.micro * batch.accumulation * layout.data_ranks();
  if (job.batch.global > 0) {
    batch.global_sequences = job.batch.global;
    batch.accumulation = spec::micro_steps_of(job.batch.global, batch.micro, layout.data_ranks());
  }
  if (job.model.is_language_model()) {
    batch.sequence_length = job.batch.sequence_length > 0 ? job.batch.sequence_length : job.model.max_sequence;
  }
  return batch;
}

Run run_of(const spec::Job& job, const Layout& layout) { return run_of(job, layout, batch_of(job, layout)); }

Run run_of(const spec::Job& job, const Candidate& planned) { return run_of(job, planned.layout, planned.batch); }

void follow(spec::Job& job, const Candidate& planned) {
  spec::Batch& batch = job.batch;
  // Phases keep their samples when the plan cuts them into other micro-batches.
  const std::int64_t unit = batch.global > 0
                                ? batch.micro * planned.layout.data_ranks()
                                : planned.batch.global_sequences / std::max<std::int64_t>(1, batch.accumulation);
  const bool same = batch.micro == planned.batch.micro && unit == batch.micro * planned.layout.data_ranks();
  for (spec::BatchPhase& phase : batch.schedule) {
    if (same || phase.global > 0) continue;
    phase.global = std::max<std::int64_t>(1, unit * phase.accumulation);
    phase.accumulation = 0;
  }
  batch.micro = planned.batch.micro;
  if (batch.global == 0) batch.accumulation = planned.batch.accumulation;
  if (planned.batch.sequence_length > 0) job.batch.sequence_length = planned.batch.sequence_length;
  job.precision = planned.layout.precision;
  job.layout = request_from_layout(planned.layout);
  job.plan_file.clear();
}

std::optional<Layout> given_layout(const spec::Job& job) {
  if (!job.layout) return std::nullopt;
  return layout_from_request(*job.layout, job.precision);
}

Layout layout_of(const spec::Job& job) {
  if (auto given = given_layout(job)) return std::move(*given);
  Layout layout;
  layout.dp = job.cluster.devices();
  layout.precision = job.precision;
  return layout;
}

}  // namespace lockstep::plan
