// What a search is asked: defaults filled in, contradictions found.
#include "lockstep/planner/search/request.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/cost/fused/run.h"
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

std::int64_t usual_batch(const spec::Model& model, std::int64_t sequence_length, std::int64_t devices) {
  if (!model.is_language_model()) return std::min(kImagesPerDevice * devices, kMostImages);
  const double tokens = model.global_batch_tokens > 0 ? static_cast<double>(model.global_batch_tokens) : kUsualTokens;
  return round_batch(std::max(1.0, tokens / static_cast<double>(sequence_length)), devices);
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
  const auto take = [&](std::int64_t& axis, Bounds::Key key) { axis = bounds.fixed(key).value_or(axis); };
  take(layout.pp, Bounds::kPp);
  take(layout.dp, Bounds::kDp);
  take(layout.shard, Bounds::kShard);
  take(layout.cp, Bounds::kCp);
  take(layout.tp, Bounds::kTp);
  take(layout.virtual_stages, Bounds::kVirtualStages);
  if (layout.pp > 1) layout.schedule = plan::Schedule::kOneForwardOneBackward;
  if (layout.pp > 1 && layout.virtual_stages > 1) layout.schedule = plan::Schedule::kInterleaved;
  if (layout.pp > 1) layout.schedule = request.constraints.schedule.value_or(layout.schedule);
  if (layout.pp > 1) layout.stage_layers = request.constraints.stage_layers.value_or(layout.stage_layers);
  if (layout.cp > 1) {
    layout.context_exchange = request.constraints.context_exchange.value_or(layout.context_exchange);
  }
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
  if (const auto problem = plan::find_layout_problem(filled, &request.model)) return *problem;
  if (request.global_sequences % filled.data_ranks() != 0) {
    return fmt::format("a global batch of {} has no equal shares for {} data ranks", request.global_sequences,
                       filled.data_ranks());
  }
  if (auto problem = why_no_batch(request, bounds, filled.data_ranks())) return *problem;
  if (request.sequence_length % layout.cp != 0) {
    return fmt::format("cp={} does not divide the sequence of {}", layout.cp, request.sequence_length);
  }
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
    request.sequence_length = request.model.max_sequence;
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

Constraints constraints_of(const plan::Layout& layout, std::optional<std::int64_t> micro) {
  Constraints constraints;
  constraints.fixed = {
      {"pp", layout.pp}, {"dp", layout.dp}, {"shard", layout.shard}, {"zero", layout.zero},
      {"cp", layout.cp}, {"tp", layout.tp}, {"ep", layout.ep},       {"virtual_stages", layout.virtual_stages}};
  if (micro) constraints.fixed["micro"] = *micro;
  constraints.schedule = layout.schedule;
  constraints.recompute = layout.recompute;
  constraints.sequence_parallel = layout.sequence_parallel;
  constraints.context_exchange = layout.context_exchange;
  constraints.stage_layers = layout.stage_layers;
  constraints.offload = layout.offload;
  return constraints;
}

UserError contradiction(const SearchRequest& request) {
  return bad_input("constraints: " + why_no_layout(request), "relax a constraint, or change the batch or the cluster");
}

std::optional<std::string> find_untrained(const SearchRequest& request, const plan::Layout& layout,
                                          std::int64_t micro) {
  const bool fp8 = layout.precision == spec::Precision::kFp8;
  if (!fp8 && request.state_precision == spec::Precision::kFp32) return std::nullopt;
  const auto& fitted = request.profile.fitted;
  if (fitted && fitted->stack != "generic" && fitted->stack != "lockstep") return std::nullopt;
  const bool adapters = request.lora.rank > 0 || (fitted && fitted->facts.trained_share < 1);
  std::optional<std::string> why;
  if (request.cluster.groups.front().device.is_cpu()) why = "the device is no GPU";
  if (!why) why = cost::fused_problem(request.model, layout, request.optimizer, adapters);
  const std::int64_t unit = cost::fused_row_unit(layout.precision);
  if (!why && micro * request.sequence_length % unit != 0) why = fmt::format("a size is not a multiple of {}", unit);
  if (!why) return std::nullopt;
  return fp8 ? cost::fp8_refusal(*why) : cost::narrow_states_refusal(*why);
}

void require_trained(const SearchRequest& request) {
  if (request.cluster.devices() != 1) return;
  for (const spec::Precision precision : request.precisions) {
    plan::Layout layout;
    layout.precision = precision;
    layout.offload = request.constraints.offload.value_or(layout.offload);
    if (const auto problem = find_untrained(request, layout)) {
      throw bad_input(*problem, precision == spec::Precision::kFp8 ? "use bf16" : "use state_precision fp32");
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
