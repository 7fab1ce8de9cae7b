#include "lockstep/tune/job/pricer.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/base/units.h"
#include "lockstep/cost/loader.h"
#include "lockstep/cost/price.h"
#include "lockstep/plan/verdict.h"
#include "lockstep/planner/planner.h"
#include "lockstep/tune/job/fields.h"

namespace lockstep::tune {
namespace {

JobPrice refused(std::string problem) {
  JobPrice price;
  price.outcome = Outcome::kInvalid;
  price.problem = std::move(problem);
  price.out_of_memory_probability = 0;
  return price;
}

bool has_nvls(const spec::Cluster& cluster) {
  return std::all_of(cluster.groups.begin(), cluster.groups.end(), [](const spec::NodeGroup& group) {
    return group.intra.kind == spec::LinkKind::kNvlink && group.device.peak_fp8_flops > 0;
  });
}

std::int64_t nodes_of(const spec::Cluster& cluster) {
  std::int64_t nodes = 0;
  for (const spec::NodeGroup& group : cluster.groups) nodes += group.nodes;
  return nodes;
}

}  // namespace

JobPricer::JobPricer(JobKnobs knobs, FindProfile find_profile)
    : knobs_(std::move(knobs)), find_profile_(std::move(find_profile)) {
  if (!find_profile_) {
    find_profile_ = [](const spec::Job& job) -> std::optional<cost::Profile> {
      if (job.cluster.is_cpu()) return std::nullopt;
      return cost::engine_profile_for(job.cluster);
    };
  }
}

const cost::Profile* JobPricer::profile_of(const spec::Job& job) const {
  const std::string key = fmt::format("{}|{}|{}|{}", job.cluster.devices(), job.threads_per_rank,
                                      job.communication.backend, spec::to_string(job.precision));
  const std::lock_guard lock(mutex_);
  auto found = profiles_.find(key);
  if (found == profiles_.end()) found = profiles_.emplace(key, find_profile_(job)).first;
  return found->second ? &*found->second : nullptr;
}

std::optional<JobPrice> JobPricer::price(const Config& config) const {
  try {
    const spec::Job job = knobs_.apply(config);
    if (auto problem = plan::first_refusal(plan::run_of(job, plan::layout_of(job)))) {
      return refused(problem->fix.empty() ? problem->text : problem->text + "; " + problem->fix);
    }
    const cost::Profile* profile = profile_of(job);
    if (job.cluster.is_cpu() || (profile != nullptr && !profile->fitted)) return price_by_plan(job, profile);
    if (profile == nullptr) return std::nullopt;
    return price_on_devices(config, job, *profile);
  } catch (const UserError& error) {
    return refused(error.what());
  }
}

JobPrice JobPricer::price_on_devices(const Config& config, const spec::Job& job, const cost::Profile& profile) const {
  const plan::Run run = plan::run_of(job, plan::layout_of(job));
  cost::NcclKnobs nccl;
  for (const auto& [name, value] : knobs_.environment(config)) cost::set_nccl_variable(nccl, name, value);
  if (auto problem = cost::find_nccl_problem(nccl, nodes_of(job.cluster), has_nvls(job.cluster))) {
    return refused(std::move(*problem));
  }
  const cost::RunPrice price = cost::price(run, profile, nccl);
  JobPrice out;
  out.layout = run.layout;
  out.batch = run.batch;
  out.planned_seconds = price.step_seconds();
  out.step_seconds = out.planned_seconds + loading_seconds(config, job, price, out.batch);
  const double items = static_cast<double>(out.batch.global_sequences) *
                       static_cast<double>(std::max<std::int64_t>(1, out.batch.sequence_length));
  out.per_second = items / out.step_seconds;
  out.memory_bytes = price.memory.total();
  out.capacity_bytes = price.memory.capacity;
  out.out_of_memory_probability = price.out_of_memory_probability();
  if (price.fits()) return out;
  out.outcome = Outcome::kOutOfMemory;
  out.problem = fmt::format("{} needs {} of {}", plan::to_string(out.layout), format_bytes(out.memory_bytes),
                            format_bytes(out.capacity_bytes));
  return out;
}

// What the loader and the host's threads add, where the space turns them.
double JobPricer::loading_seconds(const Config& config, const spec::Job& job, const cost::Price& price,
                                  const plan::BatchPlan& batch) const {
  const bool loader =
      knobs_.find(config, "loader.num_workers") != nullptr || knobs_.find(config, "loader.prefetch_factor") != nullptr;
  const Value* pinned = knobs_.find(config, "loader.pin_memory");
  const bool threads = knobs_.find(config, "threads_per_rank") != nullptr;
  if (!loader && pinned == nullptr && !threads) return 0;
  cost::LoaderKnobs knobs;
  knobs.workers = job.loader.num_workers;
  knobs.prefetch = job.loader.prefetch_factor;
  knobs.pinned = pinned == nullptr || to_text(*pinned) == "true" || to_text(*pinned) == "1";
  knobs.threads = threads ? job.threads_per_rank : 1;
  const bool language = job.model.is_language_model();
  const double items = static_cast<double>(batch.micro) * (language ? static_cast<double>(batch.sequence_length) : 1.0);
  const double pixels = static_cast<double>(job.model.image_size * job.model.image_size * job.model.image_channels);
  const double micro_batches = static_cast<double>(batch.accumulation);
  const cost::LoaderDemand demand{
      .items = items,
      .items_per_second = language ? cost::kTokensPerWorkerSecond : cost::kImagesPerWorkerSecond,
      .bytes = language ? 16 * items : 4 * pixels * items,  // tokens and targets as 64-bit numbers
      .compute_seconds = price.step_seconds() / micro_batches};
  const double stall = loader || pinned != nullptr ? micro_batches * cost::loader_stall_seconds(knobs, demand) : 0.0;
  return stall + (cost::host_slowdown(knobs) - 1) * price.time.other;
}

// Kind cpu: as make_plan() prices it from this machine's tables.
std::optional<JobPrice> JobPricer::price_by_plan(const spec::Job& job, const cost::Profile* profile) const {
  JobPrice out;
  out.layout = plan::layout_of(job);
  out.batch = plan::batch_of(job, out.layout);
  try {
    const plan::Plan plan = planner::make_plan(job, profile);
    out.memory_bytes = plan.best.memory.total();
    out.capacity_bytes = plan.best.memory.capacity;
    out.out_of_memory_probability = plan.best.out_of_memory_probability.value_or(0);
    if (!plan.best.prediction) return std::nullopt;
    out.step_seconds = out.planned_seconds = plan.best.prediction->step_seconds.expected;
    const plan::Prediction& prediction = *plan.best.prediction;
    out.per_second =
        job.model.is_language_model() ? prediction.tokens_per_second.expected : prediction.samples_per_second.expected;
    return out;
  } catch (const UserError& error) {
    out.outcome = error.code() == ExitCode::kAnswerIsNo ? Outcome::kOutOfMemory : Outcome::kInvalid;
    out.out_of_memory_probability = out.outcome == Outcome::kOutOfMemory ? 1 : 0;
    out.problem = error.what();
    return out;
  }
}

}  // namespace lockstep::tune
