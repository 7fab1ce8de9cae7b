#include "lockstep/planner/planner.h"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/units.h"
#include "lockstep/cost/flops.h"
#include "lockstep/cost/fused/run.h"
#include "lockstep/cost/price.h"
#include "lockstep/cost/pricer/pricer.h"
#include "lockstep/cost/states.h"
#include "lockstep/cost/step_time.h"
#include "lockstep/plan/nearest_layout.h"
#include "lockstep/planner/search/job_search.h"
#include "lockstep/planner/suggest/recipe.h"

namespace lockstep::planner {
namespace {

plan::Layout choose_layout(const spec::Job& job, std::vector<std::string>& reasons) {
  const std::int64_t devices = job.cluster.devices();
  if (job.layout) {
    plan::Layout layout = plan::layout_from_request(*job.layout, job.precision);
    plan::require_runnable_layout(layout, job.model, devices);
    reasons.push_back(fmt::format("layout {}: given by the job", plan::to_string(layout)));
    return layout;
  }
  plan::Layout layout;
  layout.dp = devices;
  layout.precision = job.precision;
  reasons.push_back(
      fmt::format("layout {}: the model's state fits on every rank, so each holds a replica and only gradients travel",
                  plan::to_string(layout)));
  return layout;
}

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

struct Term {
  const char* name;
  double bytes;
  const char* fix;
};

Term largest_term(const plan::MemoryBreakdown& memory) {
  const std::array<Term, 6> terms{
      {{"parameters", memory.parameters, "use a smaller model or more memory per device"},
       {"gradients", memory.gradients, "use a smaller model or more memory per device"},
       {"optimizer state", memory.optimizer, "use optimizer.kind=sgd, a smaller model or more memory per device"},
       {"activations", memory.activations, "lower batch.micro and raise batch.accumulation"},
       {"buffers", memory.buffers, "lower communication.bucket_mib"},
       {"framework overhead", memory.overhead, "run fewer ranks on the node"}}};
  return *std::max_element(terms.begin(), terms.end(), [](const Term& a, const Term& b) { return a.bytes < b.bytes; });
}

void require_fit(const plan::MemoryBreakdown& memory, const plan::Layout& layout, const spec::Device& device) {
  if (memory.capacity <= 0 || memory.total() <= memory.capacity) return;
  const Term term = largest_term(memory);
  throw does_not_fit(
      fmt::format("plan {} needs {} per rank and {} has {}: {} too much, most of it {} ({})", plan::to_string(layout),
                  format_bytes(memory.total()), device.kind, format_bytes(memory.capacity),
                  format_bytes(memory.total() - memory.capacity), term.name, format_bytes(term.bytes)),
      term.fix);
}

std::int64_t steps_of(const spec::Job& job, const plan::BatchPlan& batch) {
  if (job.steps > 0) return job.steps;
  const std::int64_t tokens_per_step = batch.global_sequences * batch.sequence_length;
  if (job.tokens > 0 && tokens_per_step > 0) return (job.tokens + tokens_per_step - 1) / tokens_per_step;
  return 0;  // epochs: needs the size of the data, which the planner does not open
}

std::optional<plan::Cost> cost_of(const spec::Job& job, const plan::Candidate& candidate) {
  const std::int64_t steps = steps_of(job, candidate.batch);
  if (steps == 0 || !candidate.prediction) return std::nullopt;
  const double seconds = static_cast<double>(steps) * candidate.prediction->step_seconds.expected;
  double price_per_hour = 0;
  for (const spec::NodeGroup& group : job.cluster.groups) {
    price_per_hour += static_cast<double>(group.nodes * group.devices_per_node) * group.price_per_device_hour_usd;
  }
  return plan::Cost{.gpu_hours = seconds / 3600 * static_cast<double>(candidate.layout.world()),
                    .usd = seconds / 3600 * price_per_hour,
                    .days = seconds / 86400};
}

void append_time_reasons(const cost::Profile& profile, const spec::Model& model, const plan::Candidate& candidate,
                         std::vector<std::string>& reasons) {
  const plan::TimeBreakdown& time = *candidate.breakdown;
  const double total = time.total();
  reasons.push_back(fmt::format("step {}: {:.0f}% compute, {:.0f}% gradient all-reduce, {:.0f}% optimizer",
                                format_seconds(total), 100 * time.compute / total, 100 * time.dp_comm / total,
                                100 * time.optimizer / total));
  const cost::Correction correction = cost::correction_of(profile, model);
  if (correction.checks == 0) {
    reasons.emplace_back("interval: spread of the repetitions only; the profile has no check models of this family");
  } else {
    reasons.push_back(
        fmt::format("interval: {} check models of the profile took {:.2f} times the tables' sum, +-{:.0f}%",
                    correction.checks, correction.factor, 100 * correction.half_width));
  }
  const cost::Provenance& measured = profile.provenance;
  if (measured.ranks != candidate.layout.world()) {
    reasons.push_back(
        fmt::format("the profile was measured on {} ranks, the plan has {}", measured.ranks, candidate.layout.world()));
  }
}

bool has_cpu(const spec::Cluster& cluster) {
  return std::any_of(cluster.groups.begin(), cluster.groups.end(),
                     [](const spec::NodeGroup& group) { return group.device.is_cpu(); });
}

void append_interval_reason(const cost::Profile& profile, const cost::Price& price, std::vector<std::string>& reasons) {
  const char* what = price.fused ? "the engine's fused step of one GPU" : "the general formulas";
  const std::size_t steps = price.fused ? profile.dense->points.size() : 0;
  reasons.push_back(fmt::format("step priced by {} ({}{}), off by {:.0f}% (one sigma)", what,
                                profile.provenance.hardware, steps > 0 ? fmt::format(", {} measured steps", steps) : "",
                                100 * price.time_sigma));
}

void append_memory_reason(const spec::Job& job, plan::Candidate& candidate) {
  const plan::MemoryBreakdown& memory = candidate.memory;
  require_fit(memory, candidate.layout, binding_device(job.cluster));
  const Term term = largest_term(memory);
  candidate.reasons.push_back(fmt::format("memory {} of {} per rank, most of it {} ({})", format_bytes(memory.total()),
                                          format_bytes(memory.capacity), term.name, format_bytes(term.bytes)));
}

void price(const spec::Job& job, const cost::Profile* profile, plan::Candidate& candidate) {
  const plan::Run run = plan::run_of(job, candidate);
  if (profile == nullptr) {
    candidate.memory = cost::memory_of(run, nullptr);
    append_memory_reason(job, candidate);
    candidate.reasons.emplace_back("no time prediction without a profile; run `lockstep calibrate` on this machine");
    return;
  }
  const cost::RunPrice priced = cost::price(run, *profile);
  candidate.memory = priced.memory;
  append_memory_reason(job, candidate);
  candidate.prediction = priced.prediction;
  candidate.breakdown = priced.time;
  if (priced.by == cost::PricedBy::kTables) {
    append_time_reasons(*profile, job.model, candidate, candidate.reasons);
  } else if (!has_cpu(job.cluster)) {
    append_interval_reason(*profile, priced, candidate.reasons);
  }
  candidate.cost = cost_of(job, candidate);
}

// Tables measured on this machine price what they were measured for; everything else is a question for the search.
bool is_searched(const spec::Job& job, const cost::Profile* profile) {
  const bool tables = profile != nullptr && !profile->fitted;
  return !has_cpu(job.cluster) && !tables && !job.layout;
}

}  // namespace

const spec::Device& binding_device(const spec::Cluster& cluster) {
  LOCKSTEP_ASSERT(!cluster.groups.empty(), "a cluster without node groups");
  const auto smallest =
      std::min_element(cluster.groups.begin(), cluster.groups.end(),
                       [](const auto& a, const auto& b) { return a.device.memory_bytes < b.device.memory_bytes; });
  return smallest->device;
}

plan::Plan make_plan(const spec::Job& job, const cost::Profile* given) {
  const Stopwatch watch;
  std::optional<cost::Profile> of_kind;  // a GPU that was not measured is priced as others of its kind
  if (given != nullptr) {
    if (job.lora.rank > 0) of_kind = with_adapters(*given, job.lora, job.model);
  } else if (!has_cpu(job.cluster)) {
    of_kind = with_adapters(cost::engine_profile_for(job.cluster), job.lora, job.model);
  }
  const cost::Profile* profile = of_kind ? &*of_kind : given;
  plan::Plan plan;
  if (is_searched(job, profile)) {
    plan = plan_by_search(job, profile);
    plan.best.knobs = knobs_of(job);
    return plan;
  }
  plan.model = job.model;
  plan.cluster = job.cluster;
  plan.profile = profile != nullptr ? profile->identity() : "";
  plan.best.layout = choose_layout(job, plan.best.reasons);
  plan.best.batch = plan::batch_of(job, plan.best.layout);
  plan.best.knobs = knobs_of(job);
  price(job, profile, plan.best);
  plan.search = {.candidates = 1, .feasible = 1, .seconds = watch.seconds()};
  return plan;
}

}  // namespace lockstep::planner
