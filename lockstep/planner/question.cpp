#include "lockstep/planner/question.h"

#include <algorithm>

#include "lockstep/plan/verdict.h"

namespace lockstep::planner {

double work_of_steps(std::int64_t steps, const SearchRequest& request) {
  return static_cast<double>(steps) * static_cast<double>(request.global_sequences) *
         static_cast<double>(std::max<std::int64_t>(1, request.sequence_length));
}

SearchRequest question_of(const spec::Job& job, const cost::Profile& profile) {
  SearchRequest request;
  request.model = job.model;
  request.cluster = job.cluster;
  request.profile = profile;
  request.sequence_length = job.batch.sequence_length;
  request.optimizer = job.optimizer.kind;
  request.state_precision = job.optimizer.state_precision;
  request.lora = job.lora;
  request.communication = job.communication;
  request.activation_offload = job.activation_offload;
  request.snapshots = job.recovery.snapshots;
  request.max_lost_seconds = job.checkpoint.max_lost_seconds;
  request.is_job = true;
  request.precisions = {job.precision};
  std::int64_t data_ranks = job.cluster.devices();
  if (const auto given = plan::given_layout(job)) {
    plan::require_runnable(plan::run_of(job, *given));
    data_ranks = given->data_ranks();
    fix_layout(request, *given, job.batch.micro);
  }
  // Tables of this machine price what the engine runs, without a search: the job's own micro-batch.
  if (!profile.fitted) request.constraints.fixed.try_emplace("micro", job.batch.micro);
  // The last phase of the batch. Samples that do not divide evenly are priced as the whole micro-batches they take.
  const spec::Batch& batch = job.batch;
  const std::int64_t whole = batch.micro * data_ranks;
  const bool fixed = request.constraints.fixed.contains("micro");
  request.global_sequences = batch.global > 0 ? batch.global : whole * batch.accumulation;
  const std::int64_t unit = std::max<std::int64_t>(1, fixed ? whole : data_ranks);
  if (request.global_sequences % unit != 0) {
    request.global_sequences = whole * spec::micro_steps_of(batch.global, batch.micro, data_ranks);
  }
  request = complete(std::move(request));
  request.tokens = job.tokens > 0 ? static_cast<double>(job.tokens) : work_of_steps(job.steps, request);
  return request;
}

}  // namespace lockstep::planner
