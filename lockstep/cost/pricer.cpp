#include "lockstep/cost/pricer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <vector>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/cost/constants_from_tables.h"
#include "lockstep/cost/flops.h"
#include "lockstep/cost/layer.h"
#include "lockstep/cost/links.h"
#include "lockstep/cost/schedule.h"
#include "lockstep/cost/stage_content.h"
#include "lockstep/cost/states.h"
#include "lockstep/cost/traffic.h"

namespace lockstep::cost {
namespace {

// CUDA (or HIP) context and the libraries' handles: what a process holds before it allocates anything.
constexpr double kContextBytes = 0.5 * kGiB;
// Gradient bucket of an overlapped reduction (PyTorch's and Megatron's defaults lie between 25 and 200 MB).
constexpr double kBucketBytes = 64 * kMiB;
// Offload: one device's share of PCIe and of the host's memory bandwidth for the optimizer (Ren et al. 2021,
// ZeRO-Offload, reaches about 1 G parameters per second and socket with AVX).
constexpr double kHostLinkBytesPerSecond = 20e9;
constexpr double kHostOptimizerParametersPerSecond = 0.25e9;
constexpr double kNinetyPercent = 1.6449;  // two-sided

// Two costs that overlap except near equality: (a^4 + b^4)^(1/4).
double smooth_max(double a, double b) {
  const double a2 = a * a;
  const double b2 = b * b;
  return std::sqrt(std::sqrt(a2 * a2 + b2 * b2));
}

// One node group as the formulas see it.
struct GroupRates {
  std::string kind;
  std::int64_t first_rank = 0;
  std::int64_t devices_per_node = 1;
  double memory_bytes = 0;
  double peak_bf16 = 0;
  std::array<DeviceRates, 5> rates;  // by spec::Precision
  DeviceRates wide;                  // the head and whatever fp8 leaves in 16 bits
  LinkRates links;
};

double peak_of(const spec::Device& device, spec::Precision precision, const Constants& constants) {
  switch (precision) {
    case spec::Precision::kFp64:
      return device.peak_fp32_flops / 2;
    case spec::Precision::kFp32:
      return device.peak_fp32_flops;
    case spec::Precision::kFp16:
    case spec::Precision::kBf16:
      return device.peak_bf16_flops;
    case spec::Precision::kFp8:
      return device.peak_fp8_flops > 0 ? device.peak_bf16_flops * constants.fp8_speedup : device.peak_bf16_flops;
  }
  return device.peak_bf16_flops;
}

DeviceRates rates_of(const spec::Device& device, spec::Precision precision, const Constants& constants) {
  DeviceRates rates;
  rates.gemm = FlopsPerSecond(peak_of(device, precision, constants) * constants.gemm_efficiency);
  const double attention_peak = is_narrow(precision) ? device.peak_bf16_flops : peak_of(device, precision, constants);
  rates.attention = FlopsPerSecond(attention_peak * constants.attention_efficiency);
  rates.vector = FlopsPerSecond(device.peak_fp32_flops);
  rates.memory = BytesPerSecond(device.memory_bytes_per_second * kStreamEfficiency);
  rates.m_half = constants.gemm_m_half;
  rates.n_half = constants.gemm_n_half;
  rates.k_half = constants.gemm_k_half;
  rates.attention_half = constants.attention_half;
  return rates;
}

GroupRates group_rates(const spec::NodeGroup& group, std::int64_t first_rank, const Constants& constants) {
  GroupRates out;
  out.kind = group.device.kind;
  out.first_rank = first_rank;
  out.devices_per_node = group.devices_per_node;
  out.memory_bytes = group.device.memory_bytes;
  out.peak_bf16 = group.device.peak_bf16_flops;
  for (std::size_t i = 0; i < out.rates.size(); ++i) {
    out.rates[i] = rates_of(group.device, static_cast<spec::Precision>(i), constants);
  }
  const double per_device = static_cast<double>(group.nics_per_node) / static_cast<double>(group.devices_per_node);
  out.links.intra = BytesPerSecond(std::max(1.0, group.intra.bytes_per_second) * constants.intra_efficiency);
  out.links.nic = BytesPerSecond(std::max(1.0, group.nic.bytes_per_second) * per_device * constants.inter_efficiency);
  out.links.intra_latency = Seconds(constants.intra_latency);
  out.links.inter_latency = Seconds(constants.inter_latency + group.nic.latency_seconds);
  out.links.node_falloff = constants.node_falloff;
  out.links.gather_efficiency = constants.gather_efficiency;
  return out;
}

// Seconds of one micro-batch on one stage; parts for the breakdown.
struct StageTime {
  double compute = 0;
  double tp = 0, cp = 0, ep = 0;
  double dp = 0;    // ZeRO-3 traffic that is not hidden
  double send = 0;  // pipeline sends that are not hidden
  double host = 0;  // beyond what the device takes
  double forward = 0, backward = 0;
  double weight_gradient = 0;
  double device_ahead = 0;  // share of the time in which the host waits for the device, 0 to 1
  double total() const { return forward + backward; }
};

// What does not change from stage to stage of one kind of device.
struct LayerPrices {
  LayerSeconds layer, head, embedding;
  LayerBytes bytes;
  double logits = 0;
};

}  // namespace

struct Pricer::State {
  spec::Model model;
  Dimensions dimensions;
  Fitted fitted;
  PricerOptions options;
  std::int64_t sequence = 0;
  spec::Cluster cluster;
  std::vector<GroupRates> groups;
  double between_bytes_per_second = 0;
  std::int64_t devices = 0;
  double context_bytes = 0;         // of a process before it allocates anything
  std::vector<Operator> operators;  // of one sample, image models
  double image_parameters = 0;
  double image_kept_elements = 0;  // of one sample

  struct Context {
    const plan::Layout& layout;
    const plan::BatchPlan& batch;
    GroupPlacements placements;
    ParameterBytes bytes;
  };

  // The node group a stage binds on: the slowest it touches; `straddles` when it touches several.
  struct StagePlace {
    const GroupRates* group = nullptr;
    bool straddles = false;
    double memory_bytes = 0;
  };

  StagePlace place_of(const plan::Layout& layout, std::int64_t stage) const;
  GroupPlacements placements_of(const plan::Layout& layout, std::int64_t devices_per_node) const;
  std::int64_t layers_of(const plan::Layout& layout, std::int64_t stage) const {
    return layers_on_stage(dimensions, layout, fitted.facts.stage_split, stage);
  }
  double dense_parameters(const plan::Layout& layout, std::int64_t stage, std::int64_t layers) const {
    return dense_parameters_on_rank(dimensions, layout, stage, layers);
  }
  double expert_parameters(const plan::Layout& layout, std::int64_t layers) const {
    return expert_parameters_on_rank(dimensions, layout, layers);
  }
  LayerPrices layer_prices(const Context& context, const GroupRates& group, const LinkRates& links,
                           const GroupPlacements& placements) const;
  StageTime stage_time(const Context& context, const LayerPrices& prices, const LinkRates& links, std::int64_t stage,
                       std::int64_t layers) const;
  double send_seconds(const Context& context, std::int64_t stage, const LinkRates& links) const;
  plan::MemoryBreakdown stage_memory(const Context& context, const LayerPrices& prices, const StageTime& time,
                                     std::int64_t stage, std::int64_t layers) const;
  double data_parallel_seconds(const Context& context, const LinkRates& links, double dense, double expert,
                               double backward) const;
  double optimizer_seconds(const Context& context, const DeviceRates& rates, double dense, double expert) const;
  LinkRates links_of(const StagePlace& place, const plan::Layout& layout) const;
  void add_overhead(const plan::Layout& layout, plan::MemoryBreakdown& memory) const;
  template <bool kEveryStage, class Visit>
  Price walk(const plan::Layout& layout, const plan::BatchPlan& batch, Visit&& visit) const;
  Price price_image(const plan::Layout& layout, const plan::BatchPlan& batch) const;
  void finish(Price& price, const plan::Layout& layout) const;
};

Pricer::State::StagePlace Pricer::State::place_of(const plan::Layout& layout, std::int64_t stage) const {
  StagePlace place{.group = &groups.front(), .memory_bytes = groups.front().memory_bytes};
  if (groups.size() == 1) return place;
  const std::int64_t per_stage = layout.world() / layout.pp;
  const std::int64_t first = stage * per_stage;
  const std::int64_t last = first + per_stage - 1;
  bool found = false;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const std::int64_t end = i + 1 < groups.size() ? groups[i + 1].first_rank : devices;
    if (last < groups[i].first_rank || first >= end) continue;
    if (!found) {
      place = {.group = &groups[i], .memory_bytes = groups[i].memory_bytes};
      found = true;
      continue;
    }
    place.straddles = true;
    place.memory_bytes = std::min(place.memory_bytes, groups[i].memory_bytes);
    if (groups[i].peak_bf16 < place.group->peak_bf16) place.group = &groups[i];
  }
  return place;
}

GroupPlacements Pricer::State::placements_of(const plan::Layout& layout, std::int64_t node) const {
  const std::int64_t weights = layout.tp;  // stride between ranks that hold the same weights
  const std::int64_t same = layout.dp * layout.shard * layout.cp;
  return {.tp = place_group(layout.tp, 1, node),
          .cp = place_group(layout.cp, weights, node),
          .shard = place_group(layout.sharding_ranks(), weights, node),
          .replica = place_group(layout.dp, weights * layout.sharding_ranks(), node),
          .data = place_group(same, weights, node),
          .ep = place_group(layout.ep, weights, node),
          .expert_data = place_group(std::max<std::int64_t>(1, same / layout.ep), weights * layout.ep, node),
          .expert_shard =
              place_group(std::max<std::int64_t>(1, layout.sharding_ranks() / layout.ep), weights * layout.ep, node)};
}

LinkRates Pricer::State::links_of(const StagePlace& place, const plan::Layout& layout) const {
  LinkRates links = place.group->links;
  if (place.straddles) {
    // Every data group (one per tensor-parallel rank) crosses the one link between node groups.
    links.between = BytesPerSecond(between_bytes_per_second / static_cast<double>(layout.tp));
  }
  return links;
}

LayerPrices Pricer::State::layer_prices(const Context& context, const GroupRates& group, const LinkRates& links,
                                        const GroupPlacements& placements) const {
  const plan::Layout& layout = context.layout;
  LayerContext layer{.model = dimensions,
                     .layout = layout,
                     .constants = fitted.constants,
                     .facts = fitted.facts,
                     .rates = group.rates[static_cast<std::size_t>(layout.precision)],
                     .links = links,
                     .groups = placements,
                     .micro = static_cast<double>(context.batch.micro),
                     .sequence = static_cast<double>(sequence)};
  LayerPrices prices;
  prices.layer = layer_seconds(layer);
  prices.bytes = layer_bytes(layer);
  const DeviceRates& head_rates =
      is_narrow(layout.precision) ? group.rates[static_cast<std::size_t>(spec::Precision::kBf16)] : layer.rates;
  const LayerContext wide{.model = layer.model,
                          .layout = layout,
                          .constants = layer.constants,
                          .facts = layer.facts,
                          .rates = head_rates,
                          .links = links,
                          .groups = placements,
                          .micro = layer.micro,
                          .sequence = layer.sequence};
  prices.head = head_seconds(wide);
  prices.embedding = embedding_seconds(wide);
  prices.logits = logits_bytes(wide);
  return prices;
}

double Pricer::State::send_seconds(const Context& context, std::int64_t stage, const LinkRates& links) const {
  const plan::Layout& layout = context.layout;
  // Around the ring only with several chunks per rank; otherwise the last stage sends backward alone, over the link it
  // shares with the one before.
  const bool wraps = layout.virtual_stages > 1;
  if (layout.pp == 1) return 0;
  const Bytes bytes(boundary_bytes(dimensions, local_sizes(dimensions, layout, static_cast<double>(context.batch.micro),
                                                           static_cast<double>(sequence))));
  const std::int64_t stride = layout.world() / layout.pp;
  const std::int64_t from = !wraps && stage == layout.pp - 1 ? stage - 1 : stage;
  const StagePlace here = place_of(layout, from);
  const StagePlace next = place_of(layout, (from + 1) % layout.pp);
  if (here.group != next.group && between_bytes_per_second > 0) {
    return (bytes * static_cast<double>(stride) / BytesPerSecond(between_bytes_per_second) + links.inter_latency)
        .value();
  }
  const GroupPlacement pair{.ranks = 2, .per_node = 1, .nodes = stride >= here.group->devices_per_node ? 2 : 1};
  return collective_on_links(links, pair, CollectiveOp::kSendReceive, bytes).value();
}

StageTime Pricer::State::stage_time(const Context& context, const LayerPrices& prices, const LinkRates& links,
                                    std::int64_t stage, std::int64_t layers) const {
  const plan::Layout& layout = context.layout;
  const Constants& k = fitted.constants;
  const bool last = stage == layout.pp - 1;
  const double n = static_cast<double>(layers);
  const double with_head = last ? 1.0 : 0.0;
  const double with_embedding = stage == 0 ? 1.0 : 0.0;
  const auto sum = [&](double LayerSeconds::*part) {
    return n * prices.layer.*part + with_head * prices.head.*part + with_embedding * prices.embedding.*part;
  };
  const double dense = dense_parameters(layout, stage, layers);
  const double expert = expert_parameters(layout, layers);

  StageTime time;
  const double forward = sum(&LayerSeconds::forward);
  // Each micro-batch adds its weight gradients to the kept ones: read both, write one.
  const double accumulate = (dense + expert) * (2 * context.bytes.gradient + context.bytes.weight) /
                            place_of(layout, stage).group->rates[0].memory.value();
  const double backward = sum(&LayerSeconds::backward) + sum(&LayerSeconds::recompute) + accumulate;
  time.compute = forward + backward;
  time.weight_gradient = sum(&LayerSeconds::weight_gradient) + accumulate;
  const double tp_forward = k.tp_exposed * sum(&LayerSeconds::tp_forward);
  const double tp_backward = k.tp_exposed * sum(&LayerSeconds::tp_backward);
  const double cp_forward = k.cp_exposed * sum(&LayerSeconds::cp_forward);
  const double cp_backward = k.cp_exposed * sum(&LayerSeconds::cp_backward);
  const double ep_forward = k.ep_exposed * sum(&LayerSeconds::ep_forward);
  const double ep_backward = k.ep_exposed * sum(&LayerSeconds::ep_backward);
  time.tp = tp_forward + tp_backward;
  time.cp = cp_forward + cp_backward;
  time.ep = ep_forward + ep_backward;

  const double host_layers = n + with_head + with_embedding;
  const double again = layout.recompute == plan::Recompute::kFull ? 1.0 : 0.0;
  const double host_forward = host_layers * k.layer_host_seconds + n * prices.layer.tp_host_forward;
  const double host_backward =
      host_layers * k.layer_host_seconds * (k.layer_host_backward + again) + n * prices.layer.tp_host_backward;
  const double stream_forward = forward + tp_forward + cp_forward + ep_forward;
  const double stream_backward = backward + tp_backward + cp_backward + ep_backward;
  time.forward = smooth_max(stream_forward, host_forward) + k.micro_batch_seconds / 3;
  time.backward = smooth_max(stream_backward, host_backward) + k.micro_batch_seconds * 2 / 3;
  if (layout.pp > 1) {
    const double nodes =
        static_cast<double>(layout.world()) / static_cast<double>(place_of(layout, stage).group->devices_per_node);
    const double scale = std::min(1.0, nodes / 64);  // nobody has measured more
    const double slot = k.pipeline_scale_seconds * scale * scale * scale;
    time.forward += slot / 2;
    time.backward += slot / 2;
  }
  time.host = std::max(0.0, time.forward + time.backward - stream_forward - stream_backward);
  const double ratio = context.placements.tp.nodes > 1
                           ? 0.0  // a ring between nodes keeps the host in step
                           : 4.0 / 3 * (stream_forward + stream_backward) / (host_forward + host_backward);
  const double ratio4 = ratio * ratio * ratio * ratio;
  time.device_ahead = ratio4 / (1 + ratio4);

  if (layout.zero == 3) {
    const auto collective = [&](const GroupPlacement& group, CollectiveOp op, double bytes) {
      return bytes > 0 ? collective_on_links(links, group, op, Bytes(bytes)).value() : 0.0;
    };
    const GroupPlacement& shard = context.placements.shard;
    const GroupPlacement& expert_shard = context.placements.expert_shard;
    const DataTraffic traffic = data_traffic(layout, fitted.facts, context.bytes, dense, expert, 1);
    const double gather = collective(shard, CollectiveOp::kAllGather, traffic.gather.bytes) +
                          collective(expert_shard, CollectiveOp::kAllGather, traffic.expert_gather.bytes);
    const double scatter =
        traffic.scatters_each_micro_batch
            ? collective(shard, CollectiveOp::kReduceScatter, traffic.scatter.bytes) +
                  collective(expert_shard, CollectiveOp::kReduceScatter, traffic.expert_scatter.bytes)
            : 0.0;
    const double in_forward =
        exposed_seconds(Seconds(gather), Seconds(stream_forward), k.zero3_exposed, k.overlap_slowdown).value();
    const double in_backward =
        exposed_seconds(Seconds(gather + scatter), Seconds(stream_backward), k.zero3_exposed, k.overlap_slowdown)
            .value();
    time.dp = in_forward + in_backward;
    time.forward += in_forward;
    time.backward += in_backward;
  }
  if (layout.pp > 1) {
    const double send = k.pp_exposed * send_seconds(context, stage, links) * static_cast<double>(layout.virtual_stages);
    time.send = 2 * send;
    time.forward += send;
    time.backward += send;
  }
  return time;
}

// What traffic.h's DataTraffic takes, less what ZeRO-3 does inside the micro-batches.
double Pricer::State::data_parallel_seconds(const Context& context, const LinkRates& links, double dense, double expert,
                                            double backward) const {
  const plan::Layout& layout = context.layout;
  const StackFacts& facts = fitted.facts;
  const Constants& k = fitted.constants;
  const GroupPlacements& at = context.placements;
  const auto seconds = [&](const GroupPlacement& group, CollectiveOp op, const Transfer& transfer) {
    if (transfer.count <= 0) return 0.0;
    return transfer.count * collective_on_links(links, group, op, Bytes(transfer.bytes)).value();
  };
  const DataTraffic traffic =
      data_traffic(layout, facts, context.bytes, dense, expert, static_cast<double>(context.batch.accumulation));
  double total = seconds(at.data, CollectiveOp::kAllReduce, traffic.reduce) +
                 seconds(at.replica, CollectiveOp::kAllReduce, traffic.replicas) +
                 seconds(at.expert_data, CollectiveOp::kAllReduce, traffic.experts) +
                 seconds(at.replica, CollectiveOp::kAllReduce, traffic.expert_replicas);
  if (layout.zero < 3) total += seconds(at.shard, CollectiveOp::kAllGather, traffic.gather);
  const bool in_micro_batches = layout.zero == 3 && traffic.scatters_each_micro_batch;
  if (!in_micro_batches) total += seconds(at.shard, CollectiveOp::kReduceScatter, traffic.scatter);
  const bool overlaps =
      layout.zero == 1 || layout.zero == 2 ? facts.zero_overlaps && facts.dp_overlaps : facts.dp_overlaps;
  const double exposed = overlaps ? k.dp_exposed : 1.0;
  // Each micro-batch that scatters has its own backward to hide behind.
  const double windows = layout.zero == 2 ? std::max(1.0, traffic.scatter.count) : 1.0;
  const double window = overlaps ? windows * backward : 0.0;
  return exposed_seconds(Seconds(total), Seconds(window), exposed, k.overlap_slowdown).value();
}

// AdamW reads gradient, master weight and both moments and writes the last three and the narrow weight; the gradient
// norm reads the gradient once more.
double Pricer::State::optimizer_seconds(const Context& context, const DeviceRates& rates, double dense,
                                        double expert) const {
  const plan::Layout& layout = context.layout;
  const double mine = dense / dense_shards(layout) + expert / expert_shards(layout);
  const double traffic = 2 * context.bytes.gradient + 2 * (context.bytes.optimizer + context.bytes.weight);
  const double here = fitted.constants.optimizer_passes * mine * traffic / rates.memory.value();
  if (layout.offload == plan::Offload::kNone) return here;
  const double moved = mine * (context.bytes.gradient + context.bytes.weight) / kHostLinkBytesPerSecond;
  return std::max(moved, mine / kHostOptimizerParametersPerSecond);
}

plan::MemoryBreakdown Pricer::State::stage_memory(const Context& context, const LayerPrices& prices,
                                                  const StageTime& time, std::int64_t stage,
                                                  std::int64_t layers) const {
  const plan::Layout& layout = context.layout;
  const Constants& k = fitted.constants;
  const double dense = dense_parameters(layout, stage, layers);
  const double expert = expert_parameters(layout, layers);
  const bool divided = divides_gradients(layout, fitted.facts, context.batch.accumulation);
  const StateBytesOnRank a = state_on_rank(dense, dense_shards(layout), layout, context.bytes, divided);
  const StateBytesOnRank b = state_on_rank(expert, expert_shards(layout), layout, context.bytes, divided);
  plan::MemoryBreakdown memory;
  memory.parameters = k.state_factor * (a.parameters + b.parameters).value();
  memory.gradients = k.state_factor * (a.gradients + b.gradients).value();
  memory.optimizer = k.state_factor * (a.optimizer + b.optimizer).value();

  const double chunks = static_cast<double>(
      chunks_in_flight(layout.schedule, layout.pp, stage, layout.virtual_stages, context.batch.accumulation));
  const double held = chunks / static_cast<double>(layout.virtual_stages);
  const double n = static_cast<double>(layers);
  const double gathered = prices.bytes.gathered * (layout.pp > 1 ? time.device_ahead : 1.0);
  memory.activations = k.activation_factor * held * n * (prices.bytes.kept + gathered);
  double transient = k.transient_factor * prices.bytes.transient;
  // A host that runs ahead starts the next micro-batch before the device has let go of the last one's logits.
  const bool runs_ahead = fitted.facts.keeps_gathered_inputs && layout.pp == 1 && context.batch.accumulation > 1;
  const double logits = prices.logits * (runs_ahead ? 1.5 : 1.0);
  if (stage == layout.pp - 1) transient = std::max(transient, k.logits_factor * logits);
  memory.activations += transient;

  const double per_layer = dimensions.dense_parameters_per_layer / static_cast<double>(layout.tp) +
                           dimensions.expert_parameters_per_layer / static_cast<double>(layout.tp * layout.ep);
  const double largest = std::max(per_layer, stage == 0 || stage == layout.pp - 1
                                                 ? dimensions.head_parameters / static_cast<double>(layout.tp)
                                                 : 0.0);
  // ZeRO-3 holds the block at work and the one being gathered, and the gradient of one before it is scattered; weights
  // kept in host memory come the same way.
  if (layout.zero == 3 || layout.offload == plan::Offload::kParameters) {
    memory.buffers += 2 * largest * context.bytes.weight;
  }
  if (layout.zero >= 2) memory.buffers += largest * context.bytes.gradient;
  if (layout.data_ranks() * layout.cp > 1) memory.buffers += kBucketBytes;
  memory.buffers += k.framework_bytes;
  return memory;
}

void Pricer::State::add_overhead(const plan::Layout& layout, plan::MemoryBreakdown& memory) const {
  const Constants& k = fitted.constants;
  const double communicators = (layout.tp > 1 ? 1 : 0) + (layout.cp > 1 ? 1 : 0) + (layout.data_ranks() > 1 ? 1 : 0) +
                               (layout.pp > 1 ? 2 : 0) + (layout.ep > 1 ? 2 : 0);
  memory.overhead += (k.reserve_factor - 1) * memory.total() + communicators * k.communicator_bytes + context_bytes;
}

template <bool kEveryStage, class Visit>
Price Pricer::State::walk(const plan::Layout& layout, const plan::BatchPlan& batch, Visit&& visit) const {
  Price price;
  const bool uniform = groups.size() == 1;
  const std::int64_t stages = layout.pp;
  const double micro_batches = static_cast<double>(batch.accumulation);

  LayerPrices prices;
  const GroupRates* priced_on = nullptr;
  LinkRates links;
  Context context{.layout = layout,
                  .batch = batch,
                  .placements = placements_of(layout, groups.front().devices_per_node),
                  .bytes = parameter_bytes(layout.precision, options.optimizer, fitted.facts)};
  StageTime slow;
  StageTime before;
  std::int64_t layers_before = -1;
  double all = 0;
  double all_weight = 0;
  double reduction = 0;
  double optimizer = 0;
  double worst_excess = -1e300;
  for (std::int64_t stage = 0; stage < stages; ++stage) {
    const StagePlace place =
        uniform ? StagePlace{&groups.front(), false, groups.front().memory_bytes} : place_of(layout, stage);
    if (place.group != priced_on || place.straddles || links.between.value() > 0) {
      links = links_of(place, layout);
      if (!uniform) context.placements = placements_of(layout, place.group->devices_per_node);
      prices = layer_prices(context, *place.group, links, context.placements);
      priced_on = place.group;
    }
    const std::int64_t layers = layers_of(layout, stage);
    // An inner stage with as many layers as the inner one before takes as long and, holding fewer micro-batches, less
    // memory.
    if (uniform && !kEveryStage && stage > 1 && stage < stages - 1 && layers == layers_before) {
      all += before.total();
      all_weight += before.weight_gradient;
      continue;
    }
    const StageTime time = stage_time(context, prices, links, stage, layers);
    before = time;
    layers_before = layers;
    all += time.total();
    all_weight += time.weight_gradient;
    if (stage == 0 || time.total() > slow.total()) {
      slow = time;
      price.slow_stage = static_cast<std::int32_t>(stage);
    }
    const double dense = dense_parameters(layout, stage, layers);
    const double expert = expert_parameters(layout, layers);
    reduction = std::max(reduction, data_parallel_seconds(context, links, dense, expert, time.backward));
    optimizer = std::max(
        optimizer,
        optimizer_seconds(context, place.group->rates[static_cast<std::size_t>(layout.precision)], dense, expert));
    plan::MemoryBreakdown memory = stage_memory(context, prices, time, stage, layers);
    memory.capacity = place.memory_bytes;
    add_overhead(layout, memory);
    const double excess = memory.total() - place.memory_bytes;
    if (excess > worst_excess) {
      worst_excess = excess;
      price.memory = memory;
      price.memory_stage = static_cast<std::int32_t>(stage);
    }
    visit(stage, layers, time, memory, *place.group);
  }

  plan::TimeBreakdown& time = price.time;
  time.compute = micro_batches * slow.compute;
  time.tp_comm = micro_batches * slow.tp;
  time.cp_comm = micro_batches * slow.cp;
  time.ep_comm = micro_batches * slow.ep;
  time.pp_comm = micro_batches * slow.send;
  time.dp_comm = micro_batches * slow.dp + reduction;
  time.bubble = fitted.constants.bubble * bubble_seconds(layout.schedule, layout.virtual_stages, all - slow.total(),
                                                         all_weight - slow.weight_gradient);
  time.optimizer = optimizer;
  time.other = micro_batches * slow.host + fitted.constants.step_seconds;
  if (layout.offload == plan::Offload::kParameters) {
    const double weights = dense_parameters(layout, 0, layers_of(layout, 0)) * context.bytes.weight;
    const double moved = 2 * micro_batches * weights / kHostLinkBytesPerSecond;
    time.other += std::max(0.0, moved - time.compute);
  }
  finish(price, layout);
  return price;
}

// Stragglers: the step grows with the number of nodes that must agree.
void Pricer::State::finish(Price& price, const plan::Layout& layout) const {
  const double nodes =
      std::max(1.0, static_cast<double>(layout.world()) / static_cast<double>(groups.front().devices_per_node));
  plan::TimeBreakdown& time = price.time;
  time.other += fitted.constants.jitter * std::log2(nodes) * time.total();
  const double total = time.total();
  price.exposed_share = total > 0 ? 1 - (time.compute + time.optimizer) / total : 0.0;
  const Residuals& residuals = fitted.residuals;
  price.time_sigma = std::hypot(residuals.time, residuals.time_exposed * price.exposed_share);
  price.memory_sigma = std::hypot(residuals.memory, residuals.memory_bytes / std::max(1.0, price.memory.total()));
}

// Image networks: every operator of one sample, scaled to the micro-batch; convolutions as the products they amount to.
Price Pricer::State::price_image(const plan::Layout& layout, const plan::BatchPlan& batch) const {
  const GroupRates* group = &groups.front();
  double memory_bytes = group->memory_bytes;
  for (const GroupRates& other : groups) {
    if (other.peak_bf16 < group->peak_bf16) group = &other;
    memory_bytes = std::min(memory_bytes, other.memory_bytes);
  }
  const DeviceRates& rates = group->rates[static_cast<std::size_t>(layout.precision)];
  const Constants& k = fitted.constants;
  const double samples = static_cast<double>(batch.micro);
  const double element = element_bytes(layout.precision);
  double forward = 0;
  double backward = 0;
  double kernels = 0;
  for (const Operator& op : operators) {
    const double count = static_cast<double>(op.count);
    kernels += count;
    if (op.kind == OperatorKind::kPointwise) {
      const double seconds =
          stream_seconds(rates, Bytes(2 * static_cast<double>(op.elements) * samples * element)).value();
      forward += count * seconds;
      backward += 2 * count * seconds;
      continue;
    }
    const double m = static_cast<double>(op.m) * samples;
    const double n = static_cast<double>(op.n);
    const double inner = static_cast<double>(op.k);
    // Few channels leave a convolution bound by its traffic.
    const double traffic = stream_seconds(rates, Bytes((m * n + m * inner) * element)).value();
    forward += count * smooth_max(gemm_seconds(rates, m, n, inner).value(), traffic);
    backward += count * k.gemm_backward *
                ((op.needs_input_gradient ? smooth_max(gemm_seconds(rates, m, inner, n).value(), traffic) : 0.0) +
                 smooth_max(gemm_seconds(rates, n, inner, m).value(), traffic));
  }
  // A layer's host cost in Constants is that of about a dozen kernels.
  const double host = kernels * k.layer_host_seconds / 12;
  const double gpu = forward + backward;
  const double micro = smooth_max(gpu, host * (1 + k.layer_host_backward)) + k.micro_batch_seconds;
  const double micro_batches = static_cast<double>(batch.accumulation);

  Context context{.layout = layout,
                  .batch = batch,
                  .placements = placements_of(layout, group->devices_per_node),
                  .bytes = parameter_bytes(layout.precision, options.optimizer, fitted.facts)};
  const StagePlace place{.group = group, .straddles = groups.size() > 1, .memory_bytes = memory_bytes};
  const LinkRates links = links_of(place, layout);
  Price price;
  price.time.compute = micro_batches * gpu;
  price.time.dp_comm = data_parallel_seconds(context, links, image_parameters, 0, backward);
  if (layout.zero == 3) {
    const double gather = collective_on_links(links, context.placements.shard, CollectiveOp::kAllGather,
                                              Bytes(image_parameters * context.bytes.weight))
                              .value();
    const DataTraffic traffic = data_traffic(layout, fitted.facts, context.bytes, image_parameters, 0, 1);
    const double scatter = traffic.scatters_each_micro_batch
                               ? collective_on_links(links, context.placements.shard, CollectiveOp::kReduceScatter,
                                                     Bytes(traffic.scatter.bytes))
                                     .value()
                               : 0.0;
    const auto exposed = [&](double communication, double compute) {
      return exposed_seconds(Seconds(communication), Seconds(compute), k.zero3_exposed, k.overlap_slowdown).value();
    };
    price.time.dp_comm += micro_batches * (exposed(gather, forward) + exposed(gather + scatter, backward));
  }
  price.time.optimizer = optimizer_seconds(context, rates, image_parameters, 0);
  price.time.other = micro_batches * std::max(0.0, micro - gpu) + k.step_seconds;

  const StateBytesOnRank state = state_on_rank(image_parameters, dense_shards(layout), layout, context.bytes,
                                               divides_gradients(layout, fitted.facts, batch.accumulation));
  price.memory.parameters = state.parameters.value();
  price.memory.gradients = state.gradients.value();
  price.memory.optimizer = state.optimizer.value();
  const double kept = layout.recompute == plan::Recompute::kFull        ? 0.25
                      : layout.recompute == plan::Recompute::kSelective ? 0.6
                                                                        : 1.0;
  price.memory.activations = k.activation_factor * kept * image_kept_elements * samples * element;
  // Selective keeps the convolutions' outputs and redoes normalisation and activation, about a third of forward.
  if (layout.recompute == plan::Recompute::kFull) price.time.compute += micro_batches * forward;
  if (layout.recompute == plan::Recompute::kSelective) price.time.compute += micro_batches * forward / 3;
  price.memory.buffers = k.framework_bytes + (layout.data_ranks() > 1 ? kBucketBytes : 0.0);
  price.memory.capacity = memory_bytes;
  add_overhead(layout, price.memory);
  finish(price, layout);
  return price;
}

double Price::out_of_memory_probability() const {
  if (memory.capacity <= 0 || memory.total() <= 0) return 0;
  const double margin = std::log(memory.capacity / memory.total());
  if (memory_sigma <= 0) return margin < 0 ? 1.0 : 0.0;
  return 0.5 * std::erfc(margin / memory_sigma / std::sqrt(2.0));
}

bool Price::fits() const { return memory.capacity <= 0 || memory.total() <= memory.capacity; }

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
  state.fitted = profile.fitted ? *profile.fitted : fitted_from_tables(profile, node);
  state.context_bytes = node.device.is_cpu() ? 0.0 : kContextBytes;
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

void Pricer::recalibrate(const Constants& constants) {
  State& state = *state_;
  state.fitted.constants = constants;
  state.groups.clear();
  state.devices = 0;
  for (const spec::NodeGroup& group : state.cluster.groups) {
    state.groups.push_back(group_rates(group, state.devices, constants));
    state.devices += group.nodes * group.devices_per_node;
  }
  if (state.groups.size() > 1) {
    state.between_bytes_per_second =
        std::max(1.0, state.cluster.between_groups.bytes_per_second) * constants.inter_efficiency;
  }
}

Pricer::~Pricer() = default;
Pricer::Pricer(Pricer&&) noexcept = default;
Pricer& Pricer::operator=(Pricer&&) noexcept = default;

Price Pricer::price(const plan::Layout& layout, const plan::BatchPlan& batch) const {
  if (state_->model.is_image_model()) return state_->price_image(layout, batch);
  return state_->walk<false>(
      layout, batch,
      [](std::int64_t, std::int64_t, const StageTime&, const plan::MemoryBreakdown&, const GroupRates&) {});
}

std::vector<StagePrice> Pricer::stages(const plan::Layout& layout, const plan::BatchPlan& batch) const {
  std::vector<StagePrice> out;
  if (state_->model.is_image_model()) return out;
  state_->walk<true>(layout, batch,
                     [&](std::int64_t stage, std::int64_t layers, const StageTime& time,
                         const plan::MemoryBreakdown& memory, const GroupRates& group) {
                       StagePrice price;
                       price.forward_seconds = time.forward;
                       price.backward_seconds = time.backward;
                       price.weight_gradient_seconds = time.weight_gradient;
                       price.send_seconds = time.send / 2;
                       price.layers = layers;
                       price.in_flight = chunks_in_flight(layout.schedule, layout.pp, stage, layout.virtual_stages,
                                                          batch.accumulation);
                       price.device = group.kind;
                       price.memory = memory;
                       out.push_back(std::move(price));
                     });
  return out;
}

double Pricer::memory_floor(const plan::Layout& layout) const {
  const State& state = *state_;
  const ParameterBytes bytes = parameter_bytes(layout.precision, state.options.optimizer, state.fitted.facts);
  const Dimensions& d = state.dimensions;
  double dense = 0;
  double expert = 0;
  if (state.model.is_image_model()) {
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
  const Constants& k = state.fitted.constants;
  const double factor = state.model.is_image_model() ? 1.0 : k.state_factor;
  return k.reserve_factor * (factor * states + k.framework_bytes) + state.context_bytes;
}

plan::Prediction Pricer::predict(const Price& price, const plan::Layout& layout, const plan::BatchPlan& batch) const {
  const double expected = price.step_seconds();
  const double width = std::exp(kNinetyPercent * price.time_sigma);
  plan::Prediction prediction;
  // No interval reaches beyond compute at the peak.
  const double fastest = std::min(expected, price.time.compute * state_->fitted.constants.gemm_efficiency);
  const double low = std::max(expected / width, fastest);
  prediction.step_seconds = {low, expected, expected * width};
  const double samples = static_cast<double>(batch.global_sequences);
  const auto rate = [&](double amount) {
    return plan::Interval{amount / (expected * width), amount / expected, amount / low};
  };
  prediction.samples_per_second = rate(samples);
  if (state_->model.is_language_model()) {
    const double tokens = samples * static_cast<double>(state_->sequence);
    prediction.tokens_per_second = rate(tokens);
    double peak = 0;  // of the whole world
    for (std::size_t i = 0; i < state_->groups.size(); ++i) {
      const std::int64_t end = i + 1 < state_->groups.size() ? state_->groups[i + 1].first_rank : state_->devices;
      const std::int64_t used = std::clamp<std::int64_t>(layout.world() - state_->groups[i].first_rank, 0,
                                                         end - state_->groups[i].first_rank);
      peak += static_cast<double>(used) * state_->groups[i].peak_bf16;
    }
    if (peak > 0) {
      const double flops = mfu_flops_per_token(state_->model, state_->sequence);
      const plan::Interval& tokens_rate = prediction.tokens_per_second;
      prediction.mfu = {tokens_rate.low * flops / peak, tokens_rate.expected * flops / peak,
                        tokens_rate.high * flops / peak};
    }
  }
  return prediction;
}

std::int64_t Pricer::sequence_length() const { return state_->sequence; }

}  // namespace lockstep::cost
