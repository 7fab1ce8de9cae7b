#include "lockstep/planner/planner.h"

#include <fmt/format.h>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/units.h"
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

// From what costs least in time to what holds least: the same data ranks and batch in every one.
std::vector<plan::Layout> layouts_to_try(const spec::Job& job) {
  const plan::Layout plain = plan::layout_of(job);
  std::vector<plan::Layout> layouts{plain};
  plan::Layout sharded = plain;
  if (plain.dp > 1) {
    std::swap(sharded.dp, sharded.shard);
    for (sharded.zero = 1; sharded.zero <= 3; ++sharded.zero) layouts.push_back(sharded);
    sharded.zero = 3;
  }
  if (!job.model.is_language_model()) return layouts;
  for (const plan::Recompute recompute : {plan::Recompute::kSelective, plan::Recompute::kFull}) {
    sharded.recompute = recompute;
    layouts.push_back(sharded);
  }
  return layouts;
}

// What it says without its fix.
std::string problem_of(const UserError& error) {
  const std::string text = error.what(), tail = "; " + error.fix();
  return text.ends_with(tail) ? text.substr(0, text.size() - tail.size()) : text;
}

bool is_too_large(const UserError& error) { return error.code() == ExitCode::kAnswerIsNo; }

struct Fitting {
  plan::Run run;
  plan::Candidate candidate;
  std::size_t tried = 0;
};

// The first that fits; nothing where none does. What is wrong with the job itself is thrown.
std::optional<Fitting> first_that_fits(const spec::Job& job, const std::optional<cost::Profile>& profile) {
  std::size_t tried = 0;
  for (const plan::Layout& layout : layouts_to_try(job)) {
    const plan::Run run = plan::run_of(job, layout);
    if (tried++ == 0) plan::require_runnable(run);
    if (plan::first_refusal(run)) continue;
    try {
      return Fitting{run, price(job, run, profile), tried};
    } catch (const UserError& error) {
      if (!is_too_large(error)) throw;
    }
  }
  return std::nullopt;
}

spec::Job without_layout(spec::Job job) {
  job.layout.reset();
  return job;
}

// The job's layout or, where it has none, the first that fits.
Fitting judged(const spec::Job& job, const std::optional<cost::Profile>& profile) {
  const plan::Run run = plan::run_of(job, plan::layout_of(job));
  plan::require_runnable(run);
  try {
    return {run, price(job, run, profile), 1};
  } catch (const UserError& error) {
    if (!is_too_large(error) || !job.cluster.is_cpu()) throw;
    const auto fitting = first_that_fits(without_layout(job), profile);
    if (fitting && !job.layout) return *fitting;
    const std::string fix = fitting
                                ? fmt::format("use layout {}, which fits in {}", plan::to_string(fitting->run.layout),
                                              format_bytes(fitting->candidate.memory.total()))
                                : "neither ZeRO-3 nor recomputation makes it fit: " + error.fix();
    throw does_not_fit(problem_of(error), fix);
  }
}

std::string reason_of(const spec::Job& job, const Fitting& chosen) {
  if (chosen.tried == 1) return layout_reason(chosen.run.layout, job.layout.has_value());
  return fmt::format("layout {}: a replica on every rank ({}) does not fit, this is the first that does",
                     plan::to_string(chosen.run.layout), plan::to_string(plan::layout_of(job)));
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
    const Fitting chosen = judged(job, profile);
    plan.model = job.model;
    plan.cluster = job.cluster;
    plan.profile = profile ? profile->identity() : "";
    plan.best = chosen.candidate;
    plan.best.reasons.insert(plan.best.reasons.begin(), reason_of(job, chosen));
    plan.search = {.candidates = static_cast<std::int64_t>(chosen.tried), .feasible = 1, .seconds = watch.seconds()};
  }
  plan.best.knobs = knobs_of(job);
  return plan;
}

}  // namespace lockstep::planner
