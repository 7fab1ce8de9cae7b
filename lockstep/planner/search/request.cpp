// What a search is asked: defaults filled in, contradictions found.
#include "lockstep/planner/search/request.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/plan/fused_limits.h"
#include "lockstep/planner/capabilities.h"
#include "lockstep/planner/search/space.h"
#include "lockstep/spec/usual_precision.h"

namespace lockstep::planner {
namespace {

// Models without a published batch: 0.5M tokens, the smallest batch of Brown et al. 2020 (table 2.1); images 256 per
// device up to the 8192 that Goyal et al. 2017 train without loss of accuracy.
constexpr double kUsualTokens = 524288;
constexpr std::int64_t kImagesPerDevice = 256;
constexpr std::int64_t kMostImages = 8192;
// A default batch may be moved this far to divide by more of the devices.
constexpr double kBatchTolerance = 0.05;

// The batch within the tolerance of `wanted` that the largest divisor of `devices` divides.
std::int64_t round_batch(double wanted, std::int64_t devices) {
  const std::vector<std::int64_t> parts = divisors(devices);
  for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
    const std::int64_t batch = *part * std::llround(wanted / static_cast<double>(*part));
    if (batch > 0 && std::abs(static_cast<double>(batch) - wanted) <= kBatchTolerance * wanted) return batch;
  }
  return std::max<std::int64_t>(1, std::llround(wanted));
}

// The batch that a model was published with, by whatever door it came: a config.json has none, and is the preset that
// it has the shape of.
double usual_tokens(const spec::Model& model) {
  if (model.global_batch_tokens > 0) return static_cast<double>(model.global_batch_tokens);
  for (const std::string& name : spec::model_preset_names()) {
    const spec::Model preset = spec::load_model(name);
    const bool same = preset.arch == model.arch && preset.layers == model.layers && preset.hidden == model.hidden &&
                      preset.heads == model.heads && preset.ffn_hidden == model.ffn_hidden &&
                      preset.experts == model.experts;
    if (same && preset.global_batch_tokens > 0) return static_cast<double>(preset.global_batch_tokens);
  }
  return kUsualTokens;
}

std::int64_t usual_batch(const spec::Model& model, std::int64_t sequence_length, std::int64_t devices) {
  if (!model.is_language_model()) return std::min(kImagesPerDevice * devices, kMostImages);
  return round_batch(std::max(1.0, usual_tokens(model) / static_cast<double>(sequence_length)), devices);
}

// A micro-batch of which every limit on its tokens is a divisor.
constexpr std::int64_t kAnyMicro = plan::fused::kSizeUnitFp8;

// Plans for another framework, or by its profile, are that framework's.
bool is_of_engine(const SearchRequest& request) {
  if (request.framework != nullptr) return request.framework->name == "lockstep";
  const auto& fitted = request.profile.fitted;
  return !fitted || fitted->stack == "generic" || fitted->stack == "lockstep";
}

// Whether another layout may be the cure. Weights in host memory under any ZeRO stage are DeepSpeed's.
bool is_of_layout(const plan::Problem& problem) {
  return problem.key.starts_with("layout") && problem.key != "layout.offload";
}

// The first `devices` devices, in the order ranks are placed in.
spec::Cluster used_part(spec::Cluster cluster, std::int64_t devices) {
  std::int64_t missing = devices;
  for (spec::NodeGroup& group : cluster.groups) {
    if (missing >= group.nodes * group.devices_per_node) {
      missing -= group.nodes * group.devices_per_node;
      continue;
    }
    const bool whole = missing % group.devices_per_node == 0;
    group.nodes = whole ? missing / group.devices_per_node : 1;
    if (!whole) group.devices_per_node = missing;
    missing = 0;
  }
  std::erase_if(cluster.groups, [](const spec::NodeGroup& group) { return group.nodes == 0; });
  return cluster;
}

void require_precisions(const SearchRequest& request) {
  const bool fp8 = std::find(request.precisions.begin(), request.precisions.end(), spec::Precision::kFp8) !=
                   request.precisions.end();
  for (const spec::NodeGroup& group : request.cluster.groups) {
    if (fp8 && group.device.peak_fp8_flops <= 0) {
      throw bad_input(fmt::format("precision fp8: {} has no fp8", group.device.kind), "use bf16");
    }
  }
}

// A layout with everything that is fixed, to find the rule it breaks.
plan::Layout fixed_part(const SearchRequest& request, const Bounds& bounds) {
  plan::Layout layout;
  for (const Bounds::Key key :
       {Bounds::kPp, Bounds::kDp, Bounds::kShard, Bounds::kCp, Bounds::kTp, Bounds::kVirtualStages}) {
    if (const auto value = bounds.fixed(key)) plan::layout_fields()[key].set(layout, *value);
  }
  if (layout.pp > 1) layout.schedule = plan::Schedule::kOneForwardOneBackward;
  if (layout.pp > 1 && layout.virtual_stages > 1) layout.schedule = plan::Schedule::kInterleaved;
  if (layout.pp > 1) layout.schedule = request.constraints.schedule.value_or(layout.schedule);
  if (layout.pp > 1) layout.stage_layers = request.constraints.stage_layers.value_or(layout.stage_layers);
  if (layout.cp > 1) {
    layout.context_exchange = request.constraints.context_exchange.value_or(layout.context_exchange);
  }
  if (layout.tp > 1) layout.sequence_parallel = request.constraints.sequence_parallel.value_or(false);
  layout.offload = request.constraints.offload.value_or(layout.offload);
  layout.precision = request.precisions.front();
  layout.zero = bounds.fixed(Bounds::kZero).value_or(layout.sharding_ranks() > 1 ? 3 : 0);
  return layout;
}

// Micro-batch and accumulation that do not divide the sequences of one data rank; nothing where they do.
std::optional<std::string> why_no_batch(const SearchRequest& request, const Bounds& bounds, std::int64_t data_ranks) {
  const std::int64_t micro = bounds.fixed(Bounds::kMicro).value_or(1);
  const std::int64_t accumulation = bounds.fixed(Bounds::kAccumulation).value_or(1);
  const std::int64_t share = request.global_sequences / data_ranks;
  const bool both = bounds.fixed(Bounds::kMicro) && bounds.fixed(Bounds::kAccumulation);
  if (both ? share == micro * accumulation : share % (micro * accumulation) == 0) return std::nullopt;
  std::string what = fmt::format("micro-batch {}", micro);
  if (both) what += fmt::format(" x accumulation {}", accumulation);
  if (!bounds.fixed(Bounds::kMicro)) what = fmt::format("accumulation {}", accumulation);
  return fmt::format("{} does not divide a global batch of {} over {} data ranks ({} each)", what,
                     request.global_sequences, data_ranks, share);
}

std::string why_no_layout(const SearchRequest& request) {
  const Bounds bounds(request.constraints);
  const plan::Layout layout = fixed_part(request, bounds);
  const std::int64_t devices = request.cluster.devices();
  if (devices % layout.world() != 0) {
    return fmt::format("{} needs {} ranks (or a multiple), cluster {} has {}", plan::to_string(layout), layout.world(),
                       request.cluster.name, devices);
  }
  const bool open = !bounds.fixed(Bounds::kShard) || !bounds.fixed(Bounds::kDp);
  if (!open && layout.world() != devices && bounds.fixed(Bounds::kPp) && bounds.fixed(Bounds::kTp) &&
      bounds.fixed(Bounds::kCp)) {
    return fmt::format("layout {} needs {} ranks, cluster {} has {}", plan::to_string(layout), layout.world(),
                       request.cluster.name, devices);
  }
  plan::Layout filled = layout;
  if (!bounds.fixed(Bounds::kDp)) filled.dp *= devices / layout.world();
  const plan::BatchPlan batch{.sequence_length = request.sequence_length};
  if (const auto problem = find_refusal(request, filled, batch)) return problem->text;
  if (request.global_sequences % filled.data_ranks() != 0) {
    return fmt::format("a global batch of {} has no equal shares for {} data ranks", request.global_sequences,
                       filled.data_ranks());
  }
  if (auto problem = why_no_batch(request, bounds, filled.data_ranks())) return *problem;
  return fmt::format("no layout of {} on {} keeps to all of them with a global batch of {}", request.model.name,
                     request.cluster.name, request.global_sequences);
}

}  // namespace

SearchRequest complete(SearchRequest request) {
  if (request.cluster.groups.empty()) throw bad_input("the cluster has no node groups", "name at least one");
  if (request.global_sequences < 0 || request.sequence_length < 0) {
    throw bad_input(fmt::format("a batch of {} sequences of {}", request.global_sequences, request.sequence_length),
                    "give positive numbers");
  }
  if (!request.model.is_language_model()) {
    request.sequence_length = 0;
  } else if (request.sequence_length == 0) {
    const std::int64_t longest = request.model.max_sequence;
    request.sequence_length = longest <= kUsualLongest ? longest : kUsualSequence;
  }
  if (request.model.is_language_model() && request.sequence_length <= 0) {
    throw bad_input(fmt::format("model {} does not say how long its sequences are", request.model.name),
                    "give the sequence length");
  }
  if (request.global_sequences == 0) {
    request.global_sequences = usual_batch(request.model, request.sequence_length, request.cluster.devices());
  }
  if (request.precisions.empty()) request.precisions = {spec::usual_precision(request.cluster)};
  require_precisions(request);
  return request;
}

std::vector<std::string> constraint_keys() {
  std::vector<std::string> keys;
  keys.reserve(Bounds::kKeys);
  for (int key = 0; key < Bounds::kKeys; ++key) keys.emplace_back(Bounds::name(static_cast<Bounds::Key>(key)));
  return keys;
}

void fix_field(Constraints& constraints, const plan::LayoutField& field, std::int64_t value) {
  plan::Layout layout;
  field.set(layout, value);
  const std::string_view name = field.name();
  if (field.is_axis()) constraints.fixed[field.name()] = value;
  if (name == "schedule") constraints.schedule = layout.schedule;
  if (name == "recompute") constraints.recompute = layout.recompute;
  if (name == "sequence_parallel") constraints.sequence_parallel = layout.sequence_parallel;
  if (name == "context_exchange") constraints.context_exchange = layout.context_exchange;
  if (name == "offload") constraints.offload = layout.offload;
}

Constraints constraints_of(const plan::Layout& layout, std::optional<std::int64_t> micro) {
  Constraints constraints;
  for (const plan::LayoutField& field : plan::layout_fields()) fix_field(constraints, field, field.get(layout));
  constraints.stage_layers = layout.stage_layers;
  if (micro) constraints.fixed["micro"] = *micro;
  return constraints;
}

void fix_layout(SearchRequest& request, const plan::Layout& layout, std::optional<std::int64_t> micro) {
  request.constraints = constraints_of(layout, micro);
  request.constraints.allow_idle_devices = layout.world() < request.cluster.devices();
  request.constraints.largest_out_of_memory_probability = 0.5;
}

UserError contradiction(const SearchRequest& request) {
  return bad_input("constraints: " + why_no_layout(request), "relax a constraint, or change the batch or the cluster");
}

plan::Run run_of(const SearchRequest& request, const plan::Layout& layout, const plan::BatchPlan& batch) {
  plan::Run run;
  run.model = request.model;
  run.cluster = used_part(request.cluster, layout.world());
  run.layout = layout;
  run.batch = batch;
  run.lora = request.lora;
  run.communication = request.communication;
  run.activation_offload = request.activation_offload;
  run.snapshots = request.snapshots;
  run.optimizer.kind = request.optimizer;
  run.optimizer.state_precision = request.state_precision;
  run.executor = plan::choose_executor(run);
  return run;
}

std::optional<plan::Problem> find_untrained(const SearchRequest& request, const plan::Layout& layout,
                                            const plan::BatchPlan& batch) {
  if (!is_of_engine(request)) return std::nullopt;
  return plan::first_refusal(run_of(request, layout, batch));
}

std::optional<plan::Problem> find_refusal(const SearchRequest& request, const plan::Layout& layout,
                                          const plan::BatchPlan& batch) {
  if (request.framework != nullptr) {
    if (const auto problem = request.framework->find_problem(layout, request.model)) {
      return plan::Problem{.key = "layout",
                           .text = fmt::format("layout: {} has no {}", request.framework->title, *problem),
                           .fix = "choose another layout, or another --stack"};
    }
  }
  std::optional<plan::Problem> first = find_untrained(request, layout, batch);
  if (!first || request.is_job || is_of_layout(*first)) return first;
  for (plan::Problem& problem : plan::problems(run_of(request, layout, batch))) {
    if (problem.severity == plan::Severity::kRefused && is_of_layout(problem)) return std::move(problem);
  }
  return std::nullopt;
}

// Judged with the plainest layout: what is refused then, and not for its layout, no other layout helps.
void require_trained(const SearchRequest& request) {
  if (!is_of_engine(request)) return;
  const bool alone = request.cluster.devices() == 1;
  for (const spec::Precision precision : request.precisions) {
    plan::Layout layout;
    layout.dp = request.cluster.devices();
    layout.precision = precision;
    layout.offload = request.constraints.offload.value_or(layout.offload);
    const auto micro = request.constraints.fixed.find("micro");
    const plan::BatchPlan batch{.micro = micro != request.constraints.fixed.end() ? micro->second : kAnyMicro,
                                .sequence_length = request.sequence_length};
    for (const plan::Problem& problem : plan::problems(run_of(request, layout, batch))) {
      if (problem.severity != plan::Severity::kRefused || problem.key.starts_with("layout")) continue;
      const bool only_fused = problem.key == "precision" || problem.key == "optimizer.state_precision";
      if (request.is_job || (alone && only_fused)) throw bad_input(problem.text, problem.fix);
    }
  }
}

void require_passes(const std::vector<std::string>& switched_off) {
  const std::vector<std::string> all{"enumerate", "divide", "floor", "outgrow", "price", "rank"};
  for (const std::string& name : switched_off) {
    if (name == "floor" || name == "outgrow") continue;
    if (std::find(all.begin(), all.end(), name) == all.end()) {
      throw bad_input(fmt::format("search: unknown pass \"{}\"", printable(name)), did_you_mean(name, all));
    }
    throw bad_input(fmt::format("search: pass \"{}\" cannot be switched off", name),
                    "floor and outgrow save time only, and can");
  }
}

}  // namespace lockstep::planner
