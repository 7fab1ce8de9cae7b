#include "lockstep/cost/pricer/pricer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <vector>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/cost/adapters.h"
#include "lockstep/cost/flops.h"
#include "lockstep/cost/fused/memory.h"
#include "lockstep/cost/layer.h"
#include "lockstep/cost/links.h"
#include "lockstep/cost/pricer/state.h"
#include "lockstep/cost/profile/constants_from_tables.h"
#include "lockstep/cost/schedule.h"
#include "lockstep/cost/stage_content.h"
#include "lockstep/cost/states.h"
#include "lockstep/cost/step_time.h"
#include "lockstep/cost/traffic.h"
#include "lockstep/plan/pipeline_schedule.h"

namespace lockstep::cost {
namespace {

// NVLink SHARP came with Hopper's switches; their devices are the first with fp8.
bool has_nvls(const spec::NodeGroup& group) {
  return group.intra.kind == spec::LinkKind::kNvlink && group.device.peak_fp8_flops > 0;
}

// What no product goes beyond: what one was measured to reach, else the peak. Of fp8 and fp32 only peaks are known, and
// of a machine that measured itself its own best.
double product_ceiling(const spec::Device& device, spec::Precision precision) {
  switch (precision) {
    case spec::Precision::kFp16:
    case spec::Precision::kBf16:
      return device.reached_bf16_flops > 0 ? device.reached_bf16_flops : device.peak_bf16_flops;
    case spec::Precision::kFp8:
      return device.peak_fp8_flops > 0 ? device.peak_fp8_flops : device.peak_bf16_flops;
    case spec::Precision::kFp32:
    case spec::Precision::kFp64:
      break;
  }
  return 0;
}

GroupRates group_rates(const spec::NodeGroup& group, std::int64_t first_rank, const Constants& constants) {
  GroupRates out;
  out.kind = group.device.kind;
  out.constants = constants;
  out.host_bytes = kHostShare * group.host_memory_bytes / static_cast<double>(group.devices_per_node);
  out.first_rank = first_rank;
  out.devices_per_node = group.devices_per_node;
  out.memory_bytes = group.device.memory_bytes;
  out.peak_bf16 = group.device.peak_bf16_flops;
  for (std::size_t i = 0; i < out.rates.size(); ++i) {
    out.rates[i] = rates_of(group.device, static_cast<spec::Precision>(i), constants);
    out.ceiling[i] = product_ceiling(group.device, static_cast<spec::Precision>(i));
  }
  const double per_device = static_cast<double>(group.nics_per_node) / static_cast<double>(group.devices_per_node);
  out.links.intra = BytesPerSecond(std::max(1.0, group.intra.bytes_per_second) * constants.intra_efficiency);
  out.links.nic = BytesPerSecond(std::max(1.0, group.nic.bytes_per_second) * per_device * constants.inter_efficiency);
  out.links.port = BytesPerSecond(std::max(1.0, group.nic.bytes_per_second) * constants.inter_efficiency);
  out.links.intra_latency = Seconds(constants.intra_latency);
  out.links.inter_latency = Seconds(constants.inter_latency + group.nic.latency_seconds);
  out.links.node_falloff = constants.node_falloff;
  out.links.gather_efficiency = constants.gather_efficiency;
  out.links.has_nvls = has_nvls(group);
  return out;
}

// Bytes of a gradient element on its way, of four: halved by 16-bit, all but gone by the others (Vogels et al. 2019,
// PowerSGD; Tang et al. 2021, 1-bit Adam).
double compressed_bytes(spec::Compression compression, double usual) {
  switch (compression) {
    case spec::Compression::kNone:
      return usual;
    case spec::Compression::kFp16:
    case spec::Compression::kBf16:
      return std::min(usual, 2.0);
    case spec::Compression::kPowerSgd:
      return usual / 16;
    case spec::Compression::kOneBit:
      return usual / 32;
  }
  return usual;
}

double host_fill(const plan::MemoryBreakdown& memory) {
  return memory.host_capacity > 0 ? memory.host / memory.host_capacity : memory.host;
}

PassSeconds passes_of(const StageTime& time) {
  return {time.forward, time.backward - time.weight_gradient, time.weight_gradient};
}

}  // namespace

template <bool kEveryStage, class Visit>
Price Pricer::State::walk(const plan::Layout& layout, const plan::BatchPlan& batch, Visit&& visit) const {
  Price price;
  const bool uniform = groups.size() == 1;
  const std::int64_t stages = layout.pp;
  Context context{.layout = layout,
                  .batch = batch,
                  .constants = &groups.front().constants,
                  .placements = placements_of(layout, groups.front(), {}),
                  .bytes = bytes_of(layout)};
  const std::int64_t node = groups.front().devices_per_node;
  // Memory as if there were enough of it: that a full one stalls runs is added below.
  context.stall_probability = stall_of(fitted.stalls, layout, batch.accumulation, node, 0).probability;
  StageLinks links{groups.front().links, groups.front().links};
  LayerPrices prices;
  if (uniform) prices = layer_prices(context, groups.front(), links.inner);
  StageTime slow;
  // The last inner stages whose messages stay in a node, and that leave it.
  std::array<StageTime, 2> before;
  std::array<std::int64_t, 2> layers_before{-1, -1};
  PassSeconds all;  // of all stages
  double reduction = 0;
  double optimizer = 0;
  double worst_fill = -1;
  double elastic = 0;
  plan::MemoryBreakdown host;  // of the stage that fills its node's memory most
  for (std::int64_t stage = 0; stage < stages; ++stage) {
    const std::int64_t layers = layers_of(layout, stage);
    const std::size_t kind = uniform && stages > 1 && boundary_of(layout, stage).between_nodes ? 1 : 0;
    // An inner stage with as many layers as the inner one before takes as long and, holding fewer micro-batches, less
    // memory.
    const bool inner = stage > 0 && stage < stages - 1;
    if (uniform && !kEveryStage && inner && layers == layers_before[kind]) {
      all += passes_of(before[kind]);
      continue;
    }
    const Span span = span_of(layout, stage);
    PricedStage priced;
    const GroupRates* slowest = &groups[span.first];
    double fill = -1;
    for (std::size_t i = span.first; i <= span.last; ++i) {
      if (!uniform) {
        links = links_of(layout, stage, groups[i], span);
        context.constants = &groups[i].constants;
        context.placements = placements_of(layout, groups[i], span);
        prices = layer_prices(context, groups[i], links.inner);
      }
      const PricedStage here = price_stage(context, prices, groups[i], links, stage, layers);
      reduction = std::max(reduction, here.reduction);
      optimizer = std::max(optimizer, here.optimizer);
      if (i == span.first || here.time.total() > priced.time.total()) {
        slowest = &groups[i];
        priced.time = here.time;
      }
      if (host_fill(here.memory) > host_fill(host)) host = here.memory;
      if (here.memory.fill() > fill) {
        fill = here.memory.fill();
        priced.memory = here.memory;
        priced.elastic = here.elastic;
      }
    }
    if (inner) {
      before[kind] = priced.time;
      layers_before[kind] = layers;
    }
    all += passes_of(priced.time);
    if (stage == 0 || priced.time.total() > slow.total()) {
      slow = priced.time;
      price.slow_stage = static_cast<std::int32_t>(stage);
    }
    if (fill > worst_fill) {
      worst_fill = fill;
      price.memory = priced.memory;
      elastic = priced.elastic;
      price.memory_stage = static_cast<std::int32_t>(stage);
    }
    if (span.straddles()) {
      links = links_of(layout, stage, *slowest, span);
      context.constants = &slowest->constants;
      context.placements = placements_of(layout, *slowest, span);
    }
    visit(VisitedStage{stage, layers, context, priced.time, priced.memory, *slowest, links});
  }

  price.memory.host = host.host;
  price.memory.host_capacity = host.host_capacity;
  price.time = step_time(context, slow, all, reduction, optimizer);
  price.fill = price.memory.capacity > 0 ? (price.allocated_bytes() + elastic) / price.memory.capacity : 0.0;
  price.stall = stall_of(fitted.stalls, layout, batch.accumulation, node, price.fill);
  price.stall_seconds = expected_stall_seconds(price.stall, price.time.total());
  price.time.other += price.stall_seconds;
  finish(price, layout);
  return price;
}

// The slowest stage sets the pace; the others make it wait (`all`: one micro-batch of every stage).
plan::TimeBreakdown Pricer::State::step_time(const Context& context, const StageTime& slow, PassSeconds all,
                                             double reduction, double optimizer) const {
  const plan::Layout& layout = context.layout;
  const double micro_batches = static_cast<double>(context.batch.accumulation);
  plan::TimeBreakdown time;
  time.compute = micro_batches * slow.compute;
  time.tp_comm = micro_batches * slow.tp;
  time.cp_comm = micro_batches * slow.cp;
  time.ep_comm = micro_batches * slow.ep;
  time.pp_comm = micro_batches * slow.send;
  time.dp_comm = micro_batches * slow.dp + reduction;
  PassSeconds others = all;
  others -= passes_of(slow);
  const Together& waits = together_of(layout);
  time.bubble = waits.bubble *
                bubble_seconds(layout.schedule, layout.pp, layout.virtual_stages, context.batch.accumulation, others);
  time.optimizer = optimizer;
  time.other = micro_batches * slow.host + waits.step_seconds + offload_seconds(context, time.compute);
  return time;
}

// Weights that come from host memory for every pass, as far as `compute` of the step does not hide it.
double Pricer::State::offload_seconds(const Context& context, double compute) const {
  const plan::Layout& layout = context.layout;
  if (layout.offload != plan::Offload::kParameters) return 0;
  const double weights = dense_parameters(layout, 0, layers_of(layout, 0)) * context.bytes.weight;
  const double moved = 2 * static_cast<double>(context.batch.accumulation) * weights / kHostLinkBytesPerSecond;
  return std::max(0.0, moved - compute);
}

// Stragglers: the step grows with the number of nodes that must agree.
double Pricer::State::spread_share(const plan::Layout& layout) const {
  return together_of(layout).jitter * std::log2(std::max(1.0, nodes_of(layout)));
}

void Pricer::State::finish(Price& price, const plan::Layout& layout) const {
  plan::TimeBreakdown& time = price.time;
  time.other += spread_share(layout) * time.total();
  const double total = time.total();
  price.exposed_share = total > 0 ? 1 - (time.compute + time.optimizer) / total : 0.0;
  const Residuals& residuals = together_of(layout).residuals;
  price.time_sigma = std::hypot(residuals.time, residuals.time_exposed * price.exposed_share);
  price.memory_sigma = residuals.memory;
}

double Price::out_of_memory_probability() const {
  if (memory.capacity <= 0 || memory.total() <= 0) return 0;
  const double margin = std::log(memory.capacity / memory.total());
  if (memory_sigma <= 0) return margin < 0 ? 1.0 : 0.0;
  return 0.5 * std::erfc(margin / memory_sigma / std::sqrt(2.0));
}

bool is_of_this_engine(const Profile& profile) { return !profile.fitted || profile.fitted->stack == "lockstep"; }

bool Price::fits() const {
  const bool on_host = memory.host_capacity <= 0 || memory.host <= memory.host_capacity;
  return on_host && (memory.capacity <= 0 || memory.total() <= memory.capacity);
}

Pricer::Pricer(const spec::Model& model, const spec::Cluster& cluster, const Profile& profile,
               const PricerOptions& options)
    : state_(std::make_unique<State>()) {
  LOCKSTEP_ASSERT(!cluster.groups.empty(), "a cluster without node groups");
  State& state = *state_;
  state.model = model;
  state.options = options;
  state.cluster = with_measured_speeds(cluster, profile);
  for (const spec::NodeGroup& group : state.cluster.groups) {
    if (group.device.peak_bf16_flops <= 0 || group.device.memory_bytes_per_second <= 0) {
      throw bad_input(fmt::format("cluster {}: no speeds are known for {}", cluster.name, group.device.kind),
                      "give peak_bf16 and memory_bandwidth in the cluster file, or calibrate this machine");
    }
  }
  const spec::NodeGroup& node = state.cluster.groups.front();
  state.is_published = profile.fitted.has_value();
  state.fitted = profile.fitted ? *profile.fitted : fitted_from_tables(profile, node);
  state.by_group = fitted_by_group(state.fitted, state.cluster);
  state.context_bytes = node.device.is_cpu() ? 0.0 : kContextBytes;
  state.set_options(profile);
  recalibrate(state.fitted.constants);
  if (model.is_language_model()) {
    state.dimensions = dimensions_of(model);
    state.sequence =
        options.sequence_length > 0 ? options.sequence_length : std::max<std::int64_t>(1, model.max_sequence);
  } else {
    state.operators = list_operators(model, 1, 0);
    state.image_parameters = static_cast<double>(spec::parameter_count(model));
    for (const Operator& op : state.operators) {
      state.image_kept_elements += static_cast<double>(op.count) * static_cast<double>(op.saved_elements);
    }
  }
}

// What the run is told, as facts of the stack. The engine of this repository is known from its source.
void Pricer::State::set_options(const Profile& profile) {
  const spec::Communication& choices = options.communication;
  StackFacts& facts = fitted.facts;
  if (options.lora.rank > 0 && facts.trained_share == 1) {
    facts.trained_share = trained_share(options.lora, model);
    facts.reduced_gradient_bytes *= facts.trained_share;
  }
  if (!choices.reshard_after_forward) facts.reshards_after_forward = false;
  if (choices.reduce_each_micro_step) facts.reduces_each_micro_batch = true;
  replica_facts = facts;
  replica_facts.reduced_gradient_bytes = compressed_bytes(choices.compression, facts.reduced_gradient_bytes);
  plan::Run run;
  run.model = model;
  run.cluster = cluster;
  run.optimizer.kind = options.optimizer;
  run.lora = options.lora;
  run.communication = choices;
  run.activation_offload = options.activation_offload;
  set_fused(profile, run);
  if (!is_of_this_engine(profile)) return;
  engine.emplace(run);
  engine->trained_share = facts.trained_share;
  framework_bytes = profile.framework_bytes;
}

void Pricer::recalibrate(const Constants& constants, const Stalls& stalls) {
  state_->fitted.stalls = stalls;
  recalibrate(constants);
}

void Pricer::recalibrate(const Constants& constants) {
  State& state = *state_;
  state.groups.clear();
  state.together.clear();
  state.devices = 0;
  double border_efficiency = 1;
  Together all{.bubble = 0, .residuals = {.time = 0, .time_exposed = 0, .memory = 0}};
  for (std::size_t i = 0; i < state.cluster.groups.size(); ++i) {
    const spec::NodeGroup& group = state.cluster.groups[i];
    Fitted& own = state.by_group[i];
    if (own.hardware == state.fitted.hardware) own.constants = constants;
    const Constants used = state.constants_of(own, group.device);
    state.groups.push_back(group_rates(group, state.devices, used));
    state.groups.back().links.nccl = state.options.nccl;
    state.devices += group.nodes * group.devices_per_node;
    border_efficiency = std::min(border_efficiency, used.inter_efficiency);
    all.step_seconds = std::max(all.step_seconds, used.step_seconds);
    all.bubble = std::max(all.bubble, used.bubble);
    all.jitter = std::max(all.jitter, used.jitter);
    all.residuals.time = std::max(all.residuals.time, own.residuals.time);
    all.residuals.time_exposed = std::max(all.residuals.time_exposed, own.residuals.time_exposed);
    all.residuals.memory = std::max(all.residuals.memory, own.residuals.memory);
    state.together.push_back(all);
  }
  if (state.groups.size() > 1) {
    state.between_bytes_per_second = std::max(1.0, state.cluster.between_groups.bytes_per_second) * border_efficiency;
  }
}

// Published ones within what is possible; as NCCL's variables change them.
Constants Pricer::State::constants_of(const Fitted& own, const spec::Device& device) const {
  Constants constants = is_published ? physical(own.constants) : own.constants;
  // Without runs nothing says that a product gets further than one was measured to.
  if (own.runs == 0 && device.reached_bf16_flops > 0) {
    constants.gemm_efficiency = std::min(constants.gemm_efficiency, device.reached_bf16_flops / device.peak_bf16_flops);
  }
  if (options.nccl.is_set()) {
    double& slowdown = constants.overlap_slowdown;
    slowdown = 1 + (slowdown - 1) * nccl_contention(options.nccl);
  }
  return constants;
}

Pricer::~Pricer() = default;
Pricer::Pricer(Pricer&&) noexcept = default;
Pricer& Pricer::operator=(Pricer&&) noexcept = default;

Price Pricer::price(const plan::Layout& layout, const plan::BatchPlan& batch) const {
  if (!state_->model.is_language_model()) return state_->price_image(layout, batch);
  if (state_->is_fused(layout, batch)) return state_->price_fused(layout, batch);
  return state_->walk<false>(layout, batch, [](const State::VisitedStage&) {});
}

std::vector<StagePrice> Pricer::stages(const plan::Layout& layout, const plan::BatchPlan& batch) const {
  std::vector<StagePrice> out;
  if (!state_->model.is_language_model()) return out;
  if (state_->is_fused(layout, batch)) return {state_->fused_stage(layout, batch)};
  state_->walk<true>(layout, batch, [&](const State::VisitedStage& visited) {
    StagePrice price;
    price.forward_seconds = visited.time.forward;
    price.backward_seconds = visited.time.backward;
    price.weight_gradient_seconds = visited.time.weight_gradient;
    price.send_seconds = visited.time.send / 2;
    price.layers = visited.layers;
    price.in_flight =
        plan::chunks_in_flight(layout.schedule, layout.pp, visited.stage, layout.virtual_stages, batch.accumulation);
    price.device = visited.group.kind;
    price.memory = visited.memory;
    out.push_back(std::move(price));
  });
  return out;
}

StepWork Pricer::work(const plan::Layout& layout, const plan::BatchPlan& batch) const {
  if (!state_->model.is_language_model()) return state_->image_work(layout, batch);
  if (state_->is_fused(layout, batch)) return state_->fused_work(layout, batch);
  StepWork work = state_->step_work(layout);
  double compute = 0;
  const Price price = state_->walk<true>(layout, batch, [&](const State::VisitedStage& visited) {
    work.stages.push_back(state_->stage_work(visited));
    compute = std::max(compute, visited.time.compute);
    if (visited.stage + 1 == layout.pp) {
      work.host_seconds += state_->offload_seconds(visited.context, static_cast<double>(batch.accumulation) * compute);
    }
  });
  work.host_seconds += price.stall_seconds;
  return work;
}

double Pricer::memory_floor(const plan::Layout& layout) const {
  const State& state = *state_;
  ParameterBytes bytes = state.bytes_of(layout);
  // The engine leaves gradients that nothing is added to as products made them.
  if (state.engine && layout.world() == 1) bytes.gradient = std::min(bytes.gradient, bytes.weight);
  const Dimensions& d = state.dimensions;
  double dense = 0;
  double expert = 0;
  if (!state.model.is_language_model()) {
    dense = state.image_parameters;
  } else {
    const double pp = static_cast<double>(layout.pp);
    const double around = d.embedding_parameters + (d.tied && layout.pp == 1 ? 0.0 : d.head_parameters);
    dense = (d.layers * d.dense_parameters_per_layer + around) / (static_cast<double>(layout.tp) * pp);
    expert = d.layers * d.expert_parameters_per_layer / (static_cast<double>(layout.tp * layout.ep) * pp);
  }
  const bool divided = layout.zero >= 2;  // the least any batch holds
  const StateBytesOnRank a = state_on_rank(dense, dense_shards(layout), layout, bytes, divided);
  const StateBytesOnRank b = state_on_rank(expert, expert_shards(layout), layout, bytes, divided);
  const double states = (a.parameters + a.gradients + a.optimizer + b.parameters + b.gradients + b.optimizer).value();
  // The least of any group.
  double reserve = state.groups.front().constants.reserve_factor;
  double framework = state.groups.front().constants.framework_bytes;
  for (const GroupRates& group : state.groups) {
    reserve = std::min(reserve, group.constants.reserve_factor);
    framework = std::min(framework, group.constants.framework_bytes);
  }
  if (state.runs_fused(layout) && (state.fused_pricing || state.engine)) {
    FusedRun run = fused_run(state.model);
    run.bf16_states = state.options.state_precision == spec::Precision::kBf16;
    return fused_memory_floor(run) + state.context_bytes;
  }
  if (state.engine)
    return (state.engine->is_gpu ? reserve : 1.0) * states + state.framework_bytes + state.context_bytes;
  return reserve * (states + framework) + state.context_bytes;
}

std::int64_t Pricer::sequence_length() const { return state_->sequence; }

}  // namespace lockstep::cost
