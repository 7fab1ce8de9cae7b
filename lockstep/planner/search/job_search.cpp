#include "lockstep/planner/search/job_search.h"

#include <algorithm>

#include "lockstep/planner/explain/explain.h"
#include "lockstep/planner/search/search.h"

namespace lockstep::planner {
namespace {

SearchRequest request_of(const spec::Job& job, const cost::Profile* profile) {
  const bool fitted = profile != nullptr && profile->fitted.has_value();
  SearchRequest request;
  request.model = job.model;
  request.cluster = job.cluster;
  request.profile = fitted ? *profile : cost::engine_profile_for(job.cluster);
  request.global_sequences = job.batch.micro * job.batch.accumulation * job.cluster.devices();
  request.sequence_length = job.batch.sequence_length;
  request.optimizer = job.optimizer.kind;
  request.state_precision = job.optimizer.state_precision;
  request.lora = job.lora;
  request.precisions = {job.precision};
  request = complete(request);
  const double work_per_step = static_cast<double>(request.global_sequences) *
                               static_cast<double>(std::max<std::int64_t>(1, request.sequence_length));
  request.tokens = job.tokens > 0 ? static_cast<double>(job.tokens) : static_cast<double>(job.steps) * work_per_step;
  return request;
}

}  // namespace

plan::Plan plan_by_search(const spec::Job& job, const cost::Profile* profile) {
  return explain(request_of(job, profile), {.what_ifs = false}).plan;
}

}  // namespace lockstep::planner
