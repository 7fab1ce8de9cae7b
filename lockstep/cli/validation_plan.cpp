// What is checked, and on which devices.
#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/cli/plan_request.h"
#include "lockstep/cli/trains_on_gpus.h"
#include "lockstep/cli/validation_session.h"
#include "lockstep/planner/explain/explain.h"
#include "lockstep/planner/planner.h"
#include "lockstep/planner/profile_source.h"
#include "lockstep/spec/discovery.h"

namespace lockstep::cli {
namespace {

// What a rank does while training, before anything is measured: one core of a server with small products; of a GPU the
// usual share of its peak.
constexpr double kFlopsOfCore = 20e9, kShareOfPeak = 0.4;

plan::Plan target_of(const ValidateFlags& flags, const spec::Job& job) {
  const std::string file = !flags.plan_file.empty() ? flags.plan_file : job.plan_file;
  if (!file.empty()) {
    plan::Plan plan = plan::load_plan(file);
    if (!(plan.model == job.model)) {
      throw bad_input(fmt::format("it is a plan for another model than {}", job.model.name),
                      "make a plan for this job, or leave --plan out", {file});
    }
    if (!plan.best.prediction || !plan.best.breakdown) {
      throw bad_input("has no prediction to check", "calibrate this machine, then plan again", {file});
    }
    return plan;
  }
  if (job.cluster.is_cpu()) {
    // Priced with what is measured on the way, where that is of as many ranks.
    return planner::make_plan(job);
  }
  PlanFlags asked;
  asked.job_file = flags.job_file;
  asked.overrides = flags.overrides;
  return planner::explain(request_of(asked)).plan;
}

planner::ProxyMachine gpus_here(const ValidateFlags& flags) {
  if (!kTrainsOnGpus) {
    throw environment_error("this build trains on CPUs", "build with `make cuda`, or use --device cpu", {"--device"});
  }
  const spec::Cluster here = spec::discover_cluster().cluster;
  if (here.is_cpu()) throw environment_error("no GPU was found", "check nvidia-smi, or use --device cpu", {"--device"});
  planner::ProxyMachine machine;
  machine.node = here.groups.front();
  const std::int64_t devices = machine.node.devices_per_node;
  if (flags.ranks > devices) {
    throw bad_input(fmt::format("{} ranks, and this machine has {} GPUs", flags.ranks, devices), "ask for fewer",
                    {"--ranks"});
  }
  if (flags.ranks > 0) machine.node.devices_per_node = flags.ranks;
  machine.flops_per_second = kShareOfPeak * machine.node.device.peak_bf16_flops;
  return machine;
}

planner::ProxyMachine cores_here(const ValidateFlags& flags) {
  const auto cores = static_cast<std::int64_t>(std::max(1U, std::thread::hardware_concurrency()));
  const std::int64_t ranks = flags.ranks > 0 ? flags.ranks : cores;
  planner::ProxyMachine machine;
  machine.node = spec::load_cluster(fmt::format("1x{}xcpu", ranks)).groups.front();
  machine.flops_per_second = kFlopsOfCore * static_cast<double>(cores) / static_cast<double>(ranks);
  return machine;
}

bool uses_gpus(const std::string& device) {
  if (!device.empty()) return device == "cuda";
  return kTrainsOnGpus && !spec::discover_cluster().cluster.is_cpu();
}

}  // namespace

ValidationPlan plan_validation(const ValidateFlags& flags) {
  ValidationPlan plan;
  plan.job = spec::load_job(flags.job_file, flags.overrides);
  plan.target = target_of(flags, plan.job);
  plan.machine = uses_gpus(flags.device) ? gpus_here(flags) : cores_here(flags);
  plan.choice = planner::choose_proxies(plan.job, plan.target.best, plan.machine, flags.limits);
  if (!plan.target.best.prediction) {
    // Only a profile of its own ranks prices a job on processors; the proxies' is one where they are as many.
    const std::int64_t world = plan.target.best.layout.world();
    const bool measured = std::any_of(plan.choice.proxies.begin(), plan.choice.proxies.end(),
                                      [&](const planner::Proxy& proxy) { return proxy.layout.world() == world; });
    if (!measured || flags.calibrating == Calibrating::kNever || !flags.profile.empty() ||
        !plan.machine.node.device.is_cpu()) {
      const cost::Profile profile =
          planner::require_profile(plan.job.cluster, plan.job.precision, planner::ranks_here(plan.job), flags.profile);
      plan.target = planner::make_plan(plan.job, &profile);
    }
  }
  return plan;
}

}  // namespace lockstep::cli
