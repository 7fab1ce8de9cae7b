// Which proxies a job gets: layouts first, then the largest model of its shape that all of them can train here.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "lockstep/base/error.h"
#include "lockstep/base/units.h"
#include "lockstep/cost/engine_memory.h"
#include "lockstep/cost/flops.h"
#include "lockstep/plan/run.h"
#include "lockstep/plan/verdict.h"
#include "lockstep/planner/proxy/differences.h"
#include "lockstep/planner/proxy/proxy.h"
#include "lockstep/planner/proxy/shrink.h"

namespace lockstep::planner {
namespace {

constexpr std::int64_t kMostAccumulation = 4;
constexpr double kMemoryShare = 0.7;
constexpr double kRecomputedForward = 4.0 / 3;
constexpr double kSmallerThanJob = 10;

spec::Cluster cluster_of(const ProxyMachine& machine, std::int64_t ranks) {
  spec::Cluster cluster;
  cluster.name = fmt::format("1x{}x{}", ranks, machine.node.device.kind);
  cluster.groups = {machine.node};
  cluster.groups.front().nodes = 1;
  cluster.groups.front().devices_per_node = ranks;
  return cluster;
}

spec::Precision precision_on(const spec::Device& device, spec::Precision wanted) {
  if (device.is_cpu()) return wanted == spec::Precision::kFp64 ? wanted : spec::Precision::kFp32;
  return wanted == spec::Precision::kFp8 && device.peak_fp8_flops <= 0 ? spec::Precision::kBf16 : wanted;
}

spec::DataKind generated_kind(const spec::Model& model) {
  if (model.is_image_model()) return spec::DataKind::kImages;
  return model.classes > 0 ? spec::DataKind::kClassification : spec::DataKind::kText;
}

// What a proxy leaves out, whatever its size: the job's data and weights, and all that happens between steps.
spec::Job bare_job(const spec::Job& job, const ProxyMachine& machine, const ProxyLimits& limits) {
  spec::Job bare = job;
  bare.plan_file.clear();
  bare.weights.clear();
  bare.data = {.kind = generated_kind(job.model), .holdout = 0};
  bare.evaluation = {};
  bare.checkpoint = {.every_seconds = 0, .at_end = false};
  bare.recovery.snapshots.every = 0;
  bare.recovery.restarts = 0;
  bare.recovery.standby = 0;
  bare.health.node_checks = spec::NodeChecks::kOff;
  bare.alerts = {};
  bare.activation_offload = false;
  bare.batch.schedule.clear();
  bare.tokens = 0;
  bare.epochs = 0;
  bare.steps = limits.steps;
  bare.threads_per_rank = 0;
  if (machine.node.device.is_cpu()) {
    bare.optimizer.state_precision = spec::Precision::kFp32;
    if (bare.communication.backend == "nccl") bare.communication.backend.clear();
  }
  return bare;
}

// Bubbles are what a pipeline shows: enough micro-batches that it fills.
std::int64_t accumulation_of(const plan::Candidate& planned, const plan::Layout& layout) {
  const std::int64_t most = std::max(kMostAccumulation, 2 * layout.pp * layout.virtual_stages);
  return std::min(planned.batch.accumulation, most);
}

spec::Job proxy_job(const spec::Job& bare, const plan::Candidate& planned, const ProxyMachine& machine,
                    const SmallModel& small, plan::Layout layout) {
  spec::Job job = bare;
  job.model = small.model;
  job.model.name = bare.model.name + "-proxy";
  job.cluster = cluster_of(machine, layout.world());
  const double micro = static_cast<double>(planned.batch.micro) * small.share_of_micro;
  job.batch = {.micro = std::max<std::int64_t>(1, static_cast<std::int64_t>(micro)),
               .accumulation = accumulation_of(planned, layout),
               .sequence_length = small.sequence};
  layout.precision = precision_on(machine.node.device, planned.layout.precision);
  job.precision = layout.precision;
  job.layout = plan::request_from_layout(layout);
  return job;
}

double assumed_step_seconds(const spec::Job& job, const plan::Layout& layout, const ProxyMachine& machine) {
  const plan::BatchPlan batch = plan::batch_of(job, layout);
  const auto samples = static_cast<double>(batch.global_sequences);
  const double flops = job.model.is_image_model() ? samples * cost::training_flops(job.model, 1, 0)
                                                  : samples * static_cast<double>(batch.sequence_length) *
                                                        cost::mfu_flops_per_token(job.model, batch.sequence_length);
  const double again = layout.recompute == plan::Recompute::kFull ? kRecomputedForward : 1.0;
  return again * flops / (static_cast<double>(layout.world()) * machine.flops_per_second);
}

bool fits(const spec::Job& job, const plan::Layout& layout) {
  const plan::MemoryBreakdown memory = cost::engine_memory(plan::run_of(job, layout));
  return memory.capacity <= 0 || memory.total() <= kMemoryShare * memory.capacity;
}

Proxy make_proxy(const spec::Job& job, const plan::Layout& layout, std::vector<Parallelism> checks,
                 const ProxyMachine& machine) {
  Proxy proxy;
  proxy.job = job;
  proxy.layout = layout;
  proxy.layout.precision = job.precision;
  proxy.checks = std::move(checks);
  proxy.assumed_step_seconds = assumed_step_seconds(job, proxy.layout, machine);
  return proxy;
}

// All layouts over one model; nothing where one does not fit the memory.
std::optional<std::vector<Proxy>> proxies_of(const spec::Job& bare, const plan::Candidate& planned,
                                             const ProxyMachine& machine, const SmallModel& small,
                                             const std::vector<ProxyLayout>& layouts) {
  std::vector<Proxy> proxies;
  proxies.reserve(layouts.size());
  for (const ProxyLayout& layout : layouts) {
    Proxy proxy =
        make_proxy(proxy_job(bare, planned, machine, small, layout.layout), layout.layout, layout.checks, machine);
    if (!fits(proxy.job, proxy.layout)) return std::nullopt;
    proxies.push_back(std::move(proxy));
  }
  return proxies;
}

double total_seconds(const std::vector<Proxy>& proxies, const ProxyLimits& limits) {
  double step = 0;
  for (const Proxy& proxy : proxies) step += proxy.assumed_step_seconds;
  return step * static_cast<double>(limits.steps * limits.repetitions);
}

// The job itself, where this machine has its ranks, its memory and the time.
std::optional<Proxy> own_proxy(const spec::Job& job, const spec::Job& bare, const plan::Candidate& planned,
                               const ProxyMachine& machine, const ProxyLimits& limits) {
  const plan::Layout& target = planned.layout;
  const bool same_precision = precision_on(machine.node.device, target.precision) == target.precision;
  if (limits.parameters > 0 || target.world() > machine.node.devices_per_node || !same_precision) return std::nullopt;
  if (target.offload != plan::Offload::kNone || job.activation_offload) return std::nullopt;
  spec::Job own = bare;
  own.cluster = cluster_of(machine, target.world());
  own.batch = {.micro = planned.batch.micro,
               .accumulation = planned.batch.accumulation,
               .sequence_length = planned.batch.sequence_length};
  own.precision = target.precision;
  own.layout = plan::request_from_layout(target);
  Proxy proxy = make_proxy(own, target, kinds_of(planned), machine);
  proxy.is_job = true;
  if (!fits(proxy.job, proxy.layout) || total_seconds({proxy}, limits) > limits.budget_seconds) return std::nullopt;
  if (plan::first_refusal(plan::run_of(proxy.job, proxy.layout))) return std::nullopt;
  return proxy;
}

// What the verdict refuses of a model is left out, and said.
void drop_refused(std::vector<Proxy>& proxies, std::vector<Unchecked>& unchecked) {
  std::vector<Proxy> kept;
  std::vector<std::pair<Parallelism, std::string>> refused;
  for (Proxy& proxy : proxies) {
    const auto problem = plan::first_refusal(plan::run_of(proxy.job, proxy.layout));
    if (!problem) {
      kept.push_back(std::move(proxy));
      continue;
    }
    for (const Parallelism kind : proxy.checks) refused.emplace_back(kind, problem->text);
  }
  for (const auto& [kind, why] : refused) {
    const bool elsewhere = std::any_of(kept.begin(), kept.end(), [kind = kind](const Proxy& proxy) {
      return std::find(proxy.checks.begin(), proxy.checks.end(), kind) != proxy.checks.end();
    });
    if (!elsewhere) unchecked.push_back({to_string(kind), why});
  }
  proxies = std::move(kept);
}

std::int64_t most_parameters(const spec::Job& job, const ProxyLimits& limits) {
  if (limits.parameters > 0) return limits.parameters;
  return static_cast<std::int64_t>(static_cast<double>(spec::parameter_count(job.model)) / kSmallerThanJob);
}

// The largest that keeps every limit; else the smallest that the memory holds.
std::vector<Proxy> largest_proxies(const spec::Job& job, const spec::Job& bare, const plan::Candidate& planned,
                                   const ProxyMachine& machine, const ProxyLimits& limits,
                                   const std::vector<ProxyLayout>& layouts) {
  std::vector<plan::Layout> meshes;
  meshes.reserve(layouts.size());
  for (const ProxyLayout& layout : layouts) meshes.push_back(layout.layout);
  const Divisors divisors = divisors_of(meshes, job.model);
  const bool counted = job.model.is_language_model() || limits.parameters > 0;
  const std::int64_t most = counted ? most_parameters(job, limits) : spec::parameter_count(job.model);
  std::vector<Proxy> smallest;
  for (const SmallModel& small : smaller_models(job.model, planned.batch.sequence_length, divisors)) {
    auto proxies = proxies_of(bare, planned, machine, small, layouts);
    if (!proxies) continue;
    smallest = std::move(*proxies);
    const bool few = spec::parameter_count(small.model) <= most;
    if (few && total_seconds(smallest, limits) <= limits.budget_seconds) return smallest;
  }
  if (smallest.empty()) {
    throw does_not_fit(fmt::format("no copy of {} is small enough for a rank of this machine with {}", job.model.name,
                                   format_bytes(machine.node.device.memory_bytes)),
                       "use fewer ranks: --ranks 1");
  }
  return smallest;
}

std::string why_unchecked(const ProxyMachine& machine, const ProxyLimits& limits) {
  if (machine.node.devices_per_node == 1) return "one rank has nobody to share the work with";
  if (limits.proxies > 0) return fmt::format("--proxies {} leaves no proxy for it", limits.proxies);
  return fmt::format("it needs more than {} ranks", machine.node.devices_per_node);
}

}  // namespace

ProxyChoice choose_proxies(const spec::Job& job, const plan::Candidate& planned, const ProxyMachine& machine,
                           const ProxyLimits& limits) {
  if (job.model.is_scripted()) {
    throw bad_input(fmt::format("{} is {}, whose inside is not known: no smaller copy of it can be made",
                                job.model.name, origin_of(job.model)),
                    "train a few steps of it and compare: lockstep train JOB steps=20, then lockstep report last",
                    {"model"});
  }
  const spec::Job bare = bare_job(job, machine, limits);
  ProxyChoice choice;
  if (auto own = own_proxy(job, bare, planned, machine, limits)) {
    choice.proxies = {std::move(*own)};
  } else {
    const ProxyLayouts layouts = proxy_layouts(planned, machine.node.devices_per_node, limits.proxies);
    for (const Parallelism kind : layouts.without) {
      choice.unchecked.push_back({to_string(kind), why_unchecked(machine, limits)});
    }
    choice.proxies = largest_proxies(job, bare, planned, machine, limits, layouts.layouts);
    drop_refused(choice.proxies, choice.unchecked);
  }
  if (choice.proxies.empty()) {
    throw does_not_fit(fmt::format("no proxy of {} trains here: {}", job.name, choice.unchecked.front().why),
                       "check another plan of the job with --plan");
  }
  int number = 0;
  for (Proxy& proxy : choice.proxies) {
    proxy.job.name = fmt::format("{}-proxy-{}", job.name, ++number);
    proxy.differences = differences(job, planned, proxy);
  }
  choice.assumed_seconds = total_seconds(choice.proxies, limits);
  choice.over_budget = choice.assumed_seconds > limits.budget_seconds;
  return choice;
}

spec::Model timed_relative(const spec::Model& model) {
  spec::Model relative = model;
  switch (model.arch) {
    case spec::Arch::kMoe:
      relative.arch = spec::Arch::kLlama;
      relative.experts = relative.experts_per_token = relative.shared_experts = 0;
      break;
    case spec::Arch::kBert:
      relative.arch = spec::Arch::kGpt;
      relative.type_vocab = relative.classes = 0;
      break;
    case spec::Arch::kMamba: {  // its products have the widths of a gated MLP
      constexpr std::int64_t kHead = 16;
      relative.arch = spec::Arch::kLlama;
      relative.head_dim = kHead;
      relative.heads = relative.kv_heads = std::max<std::int64_t>(1, model.hidden / kHead);
      relative.ffn_hidden = std::max<std::int64_t>(1, model.expand) * model.hidden;
      relative.state_size = relative.conv_kernel = relative.expand = relative.dt_rank = 0;
      relative.activation = spec::Activation::kSilu;
      break;
    }
    case spec::Arch::kMnistCnn:
    case spec::Arch::kCifarCnn:
    case spec::Arch::kResNet:
    case spec::Arch::kTorchScript:
    case spec::Arch::kPlugin:
    case spec::Arch::kGpt:
    case spec::Arch::kLlama:
      break;
  }
  return relative;
}

}  // namespace lockstep::planner
