#include "lockstep/planner/planner.h"

#include "lockstep/base/clock.h"
#include "lockstep/plan/verdict.h"
#include "lockstep/planner/candidate.h"
#include "lockstep/planner/explain/explain.h"
#include "lockstep/planner/question.h"

namespace lockstep::planner {
namespace {

plan::Knobs knobs_of(const spec::Job& job) {
  plan::Knobs knobs;
  knobs.backend = job.communication.backend;
  knobs.bucket_mib = job.communication.bucket_mib;
  knobs.compression = spec::to_string(job.communication.compression);
  knobs.num_workers = job.loader.num_workers;
  knobs.prefetch_factor = job.loader.prefetch_factor;
  knobs.threads_per_rank = job.threads_per_rank;
  return knobs;
}

// Tables measured on this machine price what they were measured for; everything else is a question for the search.
bool is_searched(const spec::Job& job, const std::optional<cost::Profile>& profile) {
  return !job.layout && !job.cluster.is_cpu() && profile->fitted.has_value();
}

plan::Candidate price(const spec::Job& job, const plan::Run& run, const std::optional<cost::Profile>& profile) {
  if (!profile) return counted_candidate(run);
  return candidate_of(question_of(job, *profile), run);
}

}  // namespace

plan::Plan make_plan(const spec::Job& job, const cost::Profile* given) {
  const Stopwatch watch;
  std::optional<cost::Profile> profile;  // a GPU that was not measured is priced as others of its kind
  if (given != nullptr) {
    profile = *given;
  } else if (!job.cluster.is_cpu()) {
    profile = cost::engine_profile_for(job.cluster);
  }
  plan::Plan plan;
  if (is_searched(job, profile)) {
    plan = explain(question_of(job, *profile), {.what_ifs = false}).plan;
  } else {
    const plan::Run run = plan::run_of(job, plan::layout_of(job));
    plan::require_runnable(run);
    plan.model = job.model;
    plan.cluster = job.cluster;
    plan.profile = profile ? profile->identity() : "";
    plan.best = price(job, run, profile);
    plan.best.reasons.insert(plan.best.reasons.begin(), layout_reason(run.layout, job.layout.has_value()));
    plan.search = {.candidates = 1, .feasible = 1, .seconds = watch.seconds()};
  }
  plan.best.knobs = knobs_of(job);
  return plan;
}

}  // namespace lockstep::planner
