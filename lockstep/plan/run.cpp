#include "lockstep/plan/run.h"

namespace lockstep::plan {
namespace {

Run run_of(const spec::Job& job, const Layout& layout, const BatchPlan& batch) {
  Run run{.model = job.model,
          .cluster = job.cluster,
          .layout = layout,
          .batch = batch,
          .optimizer = job.optimizer,
          .lora = job.lora,
          .communication = job.communication,
          .activation_offload = job.activation_offload,
          .snapshots = job.recovery.snapshots};
  run.executor = choose_executor(run);
  return run;
}

}  // namespace

BatchPlan batch_of(const spec::Job& job, const Layout& layout) {
  BatchPlan batch;
  batch.micro = job.batch.micro;
  batch.accumulation = job.batch.accumulation;
  batch.global_sequences = batch.micro * batch.accumulation * layout.data_ranks();
  if (job.model.is_language_model()) {
    batch.sequence_length = job.batch.sequence_length > 0 ? job.batch.sequence_length : job.model.max_sequence;
  }
  return batch;
}

Run run_of(const spec::Job& job, const Layout& layout) { return run_of(job, layout, batch_of(job, layout)); }

Run run_of(const spec::Job& job, const Candidate& planned) { return run_of(job, planned.layout, planned.batch); }

void follow(spec::Job& job, const Candidate& planned) {
  job.batch.micro = planned.batch.micro;
  job.batch.accumulation = planned.batch.accumulation;
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
