// One pipeline stage: what it takes, sends, reduces and holds.
#include "lockstep/cost/pricer/state.h"

#include <algorithm>
#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/cost/flops.h"
#include "lockstep/cost/fused/memory.h"
#include "lockstep/cost/layer.h"
#include "lockstep/cost/links.h"
#include "lockstep/cost/profile/constants_from_tables.h"
#include "lockstep/cost/stage_content.h"
#include "lockstep/cost/states.h"
#include "lockstep/cost/traffic.h"
#include "lockstep/plan/pipeline_schedule.h"

namespace lockstep::cost {

LayerPrices Pricer::State::layer_prices(const Context& context, const GroupRates& group, const LinkRates& links) const {
  const plan::Layout& layout = context.layout;
  LayerContext layer{.model = dimensions,
                     .layout = layout,
                     .constants = *context.constants,
                     .facts = fitted.facts,
                     .rates = group.rates[static_cast<std::size_t>(layout.precision)],
                     .links = links,
                     .groups = context.placements,
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
                          .groups = context.placements,
                          .micro = layer.micro,
                          .sequence = layer.sequence};
  prices.head = head_seconds(wide);
  prices.embedding = embedding_seconds(wide);
  prices.logits = logits_bytes(wide);
  return prices;
}

LinkSeconds Pricer::State::send_seconds(const Context& context, std::int64_t stage, const LinkRates& links) const {
  const plan::Layout& layout = context.layout;
  if (layout.pp == 1) return {};
  const LocalSizes local =
      local_sizes(dimensions, layout, static_cast<double>(context.batch.micro), static_cast<double>(sequence));
  const Bytes bytes(boundary_bytes(dimensions, local, fitted.facts));
  const std::int64_t stride = layout.world() / layout.pp;
  const Boundary boundary = boundary_of(layout, stage);
  LinkRates used = links;
  // The message goes at the pace of the slower end.
  const auto meet = [&](const GroupRates& end, bool is_first) {
    BytesPerSecond nic = end.links.nic;
    if (stride < end.devices_per_node) {
      // The other stages of the node are silent on the NICs meanwhile.
      const double share = static_cast<double>(end.devices_per_node) / static_cast<double>(stride);
      nic = std::max(nic, std::min(end.links.port, nic * share));
    }
    used.nic = is_first ? nic : std::min(used.nic, nic);
    used.inter_latency = is_first ? end.links.inter_latency : std::max(used.inter_latency, end.links.inter_latency);
  };
  if (boundary.between_nodes) {
    meet(groups[boundary.from.first], true);
    for (const Span& span : {boundary.from, boundary.to}) {
      for (std::size_t i = span.first; i <= span.last; ++i) meet(groups[i], false);
    }
  }
  const GroupPlacement pair{.ranks = 2, .per_node = 1, .nodes = boundary.between_nodes ? 2 : 1};
  Seconds seconds = collective_on_links(used, pair, CollectiveOp::kSendReceive, bytes);
  if (boundary.between_groups && between_bytes_per_second > 0) {
    const BytesPerSecond border(between_bytes_per_second);
    seconds = std::max(seconds, bytes * static_cast<double>(stride) / border + used.inter_latency);
  }
  return boundary.between_nodes ? LinkSeconds{0, seconds.value()} : LinkSeconds{seconds.value(), 0};
}

StreamTime Pricer::State::stream_time(const Context& context, const LayerPrices& prices, const GroupRates& group,
                                      std::int64_t stage, std::int64_t layers, StageTime& time) const {
  const plan::Layout& layout = context.layout;
  const Constants& k = *context.constants;
  const double n = static_cast<double>(layers);
  const double with_head = stage == plan::head_rank(layout) ? 1.0 : 0.0;
  const double with_embedding = stage == 0 ? 1.0 : 0.0;
  const auto sum = [&](double LayerSeconds::*part) {
    return n * prices.layer.*part + with_head * prices.head.*part + with_embedding * prices.embedding.*part;
  };
  const double forward = sum(&LayerSeconds::forward);
  // Each micro-batch adds its weight gradients to the kept ones: read both, write one.
  const double accumulate = (dense_parameters(layout, stage, layers) + expert_parameters(layout, layers)) *
                            (2 * context.bytes.gradient + context.bytes.weight) / group.rates[0].memory.value();
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
  time.exchange_forward = tp_forward + cp_forward + ep_forward;
  time.exchange_backward = tp_backward + cp_backward + ep_backward;
  time.compute_backward = backward;
  const GroupPlacements& at = context.placements;
  const auto by_link = [&](double tp, double cp, double ep) {
    LinkSeconds seconds;
    (at.tp.nodes > 1 ? seconds.between : seconds.inside) += tp;
    (at.cp.nodes > 1 ? seconds.between : seconds.inside) += cp;
    (at.ep.nodes > 1 ? seconds.between : seconds.inside) += ep;
    return seconds;
  };
  return {.forward = forward + time.exchange_forward,
          .backward = backward + time.exchange_backward,
          .compute_forward = forward,
          .compute_backward = backward,
          .exchange_forward = by_link(tp_forward, cp_forward, ep_forward),
          .exchange_backward = by_link(tp_backward, cp_backward, ep_backward)};
}

// Forward and backward of a stage: what its device or its host takes, whichever is longer.
void Pricer::State::add_host(const Context& context, const LayerPrices& prices, const StreamTime& stream,
                             std::int64_t stage, std::int64_t layers, StageTime& time) const {
  const plan::Layout& layout = context.layout;
  const Constants& k = *context.constants;
  const double n = static_cast<double>(layers);
  const double host_layers = n + (stage == plan::head_rank(layout) ? 1.0 : 0.0) + (stage == 0 ? 1.0 : 0.0);
  const double again = layout.recompute == plan::Recompute::kFull ? 1.0 : 0.0;
  const double host_forward = host_layers * k.layer_host_seconds + n * prices.layer.tp_host_forward;
  const double host_backward =
      host_layers * k.layer_host_seconds * (k.layer_host_backward + again) + n * prices.layer.tp_host_backward;
  time.forward = smooth_max(stream.forward, host_forward) + k.micro_batch_seconds / 3;
  time.backward = smooth_max(stream.backward, host_backward) + k.micro_batch_seconds * 2 / 3;
  if (groups.size() == 1) {
    const auto longer = [](double pass, double part, double host) {
      return part > 0 ? smooth_max(pass, host) - smooth_max(pass - part, host) : 0.0;
    };
    const auto both = [&](const LinkSeconds& parts, double pass, double host) {
      return LinkSeconds{longer(pass, parts.inside, host), longer(pass, parts.between, host)};
    };
    time.longer_forward = both(stream.exchange_forward, stream.forward, host_forward);
    time.longer_backward = both(stream.exchange_backward, stream.backward, host_backward);
  }
  if (layout.pp > 1) {
    const double scale = std::min(1.0, nodes_of(layout) / 64);  // nobody has measured more
    const double slot = k.pipeline_scale_seconds * scale * scale * scale;
    time.forward += slot / 2;
    time.backward += slot / 2;
  }
  time.host = std::max(0.0, time.forward + time.backward - stream.forward - stream.backward);
  const double ratio = context.placements.tp.nodes > 1
                           ? 0.0  // a ring between nodes keeps the host in step
                           : 4.0 / 3 * (stream.forward + stream.backward) / (host_forward + host_backward);
  const double ratio4 = ratio * ratio * ratio * ratio;
  time.device_ahead = ratio4 / (1 + ratio4);
}

// What ZeRO-3 gathers and scatters inside a micro-batch, less what compute hides.
void Pricer::State::add_sharded_traffic(const Context& context, const LinkRates& links, const StreamTime& stream,
                                        double dense, double expert, StageTime& time) const {
  const Constants& k = *context.constants;
  const auto collective = [&](const GroupPlacement& group, CollectiveOp op, double bytes) {
    return bytes > 0 ? collective_on_links(links, group, op, Bytes(bytes)).value() : 0.0;
  };
  const GroupPlacement& shard = context.placements.shard;
  const GroupPlacement& expert_shard = context.placements.expert_shard;
  const double micro_batches = static_cast<double>(context.batch.accumulation);
  const DataTraffic traffic = data_traffic(context.layout, fitted.facts, context.bytes, dense, expert, micro_batches);
  // Forward and backward gather alike; weights that stay gathered are spread over all passes of the step.
  const double gathers = traffic.gather.count / (2 * micro_batches);
  const double gather = gathers * (collective(shard, CollectiveOp::kAllGather, traffic.gather.bytes) +
                                   collective(expert_shard, CollectiveOp::kAllGather, traffic.expert_gather.bytes));
  const double scatter = traffic.scatters_each_micro_batch
                             ? collective(shard, CollectiveOp::kReduceScatter, traffic.scatter.bytes) +
                                   collective(expert_shard, CollectiveOp::kReduceScatter, traffic.expert_scatter.bytes)
                             : 0.0;
  const auto exposed = [&](double moved, double window) {
    return exposed_seconds(Seconds(moved), Seconds(window), k.zero3_exposed, k.overlap_slowdown).value();
  };
  const double in_forward = exposed(gather, stream.compute_forward + beside(time.longer_forward, shard));
  const double in_backward = exposed(gather + scatter, stream.compute_backward + beside(time.longer_backward, shard));
  time.dp = in_forward + in_backward;
  time.dp_forward = in_forward;
  time.gather = gather;
  time.scatter = scatter;
  time.forward += in_forward;
  time.backward += in_backward;
}

StageTime Pricer::State::stage_time(const Context& context, const LayerPrices& prices, const GroupRates& group,
                                    const StageLinks& links, std::int64_t stage, std::int64_t layers) const {
  const plan::Layout& layout = context.layout;
  StageTime time;
  const StreamTime stream = stream_time(context, prices, group, stage, layers, time);
  add_host(context, prices, stream, stage, layers, time);
  if (layout.zero == 3) {
    add_sharded_traffic(context, links.data, stream, dense_parameters(layout, stage, layers),
                        expert_parameters(layout, layers), time);
  }
  if (layout.pp > 1) {
    const double send = context.constants->pp_exposed * send_seconds(context, stage, links.inner).total() *
                        static_cast<double>(layout.virtual_stages);
    time.send = 2 * send;
    time.forward += send;
    time.backward += send;
  }
  return time;
}

Pricer::State::PricedStage Pricer::State::price_stage(const Context& context, const LayerPrices& prices,
                                                      const GroupRates& group, const StageLinks& links,
                                                      std::int64_t stage, std::int64_t layers) const {
  const plan::Layout& layout = context.layout;
  PricedStage priced;
  priced.time = stage_time(context, prices, group, links, stage, layers);
  const double dense = dense_parameters(layout, stage, layers);
  const double expert = expert_parameters(layout, layers);
  const double window = priced.time.compute_backward + beside(priced.time.longer_backward, context.placements.data);
  priced.reduction = data_parallel_seconds(context, links.data, dense, expert, window);
  const DeviceRates& rates = group.rates[static_cast<std::size_t>(layout.precision)];
  priced.optimizer = optimizer_seconds(context, rates, dense, expert);
  priced.memory = engine ? engine_stage_memory(layout, context.batch, stage)
                         : stage_memory(context, prices, priced.time, stage, layers);
  priced.memory.capacity = group.memory_bytes;
  if (!engine && !fitted.facts.keeps_gathered_until_backward) {
    // Gathered inputs of a host that runs ahead are given back when nothing else is free.
    const double gathered = gathered_bytes(context, prices, priced.time, stage, layers);
    const double over = priced.memory.total() - kFilledShare * group.memory_bytes;
    if (gathered > 0 && over > 0 && group.memory_bytes > 0) priced.elastic = std::min(gathered, over);
    priced.memory.activations -= priced.elastic;
  }
  add_overhead(layout, group, priced.memory);
  if (layout.offload != plan::Offload::kNone) add_host_memory(context, group, dense, expert, priced.memory);
  return priced;
}

// Buckets smaller than the usual ones: their collectives in messages of that size, less the same for the usual size.
// Larger ones save nothing: prices count the gradients as one message.
double Pricer::State::bucket_extra_seconds(const Context& context, const LinkRates& links,
                                           const DataTraffic& traffic) const {
  const double bucket = bucket_bytes();
  if (bucket == kUsualBucketBytes || context.layout.zero > 2) return 0;
  const bool whole = context.layout.zero == 0;
  const Transfer& sum = whole ? traffic.reduce : traffic.scatter;
  const GroupPlacement& group = whole ? context.placements.data : context.placements.shard;
  const CollectiveOp op = whole ? CollectiveOp::kAllReduce : CollectiveOp::kReduceScatter;
  const auto in_pieces = [&](double piece) {
    const double bytes = std::min(piece, sum.bytes);
    return bytes > 0 ? sum.total() / bytes * collective_on_links(links, group, op, Bytes(bytes)).value() : 0.0;
  };
  return std::max(0.0, in_pieces(bucket) - in_pieces(kUsualBucketBytes));
}

// The last bucket has no backward left to hide behind.
double Pricer::State::bucket_exposed(const Context& context, const DataTraffic& traffic) const {
  const double exposed = context.constants->dp_exposed;
  const double bytes = std::max(traffic.reduce.bytes, traffic.scatter.bytes);
  if (bucket_bytes() == kUsualBucketBytes || bytes <= 0) return exposed;
  const auto last = [&](double bucket) { return std::min(1.0, bucket / bytes); };
  return std::clamp(exposed + (1 - exposed) * (last(bucket_bytes()) - last(kUsualBucketBytes)), 0.0, 1.0);
}

// What traffic.h's DataTraffic takes, less what ZeRO-3 does inside the micro-batches.
DataSeconds Pricer::State::data_parallel(const Context& context, const LinkRates& links, double dense,
                                         double expert) const {
  const plan::Layout& layout = context.layout;
  const StackFacts& facts = layout.zero == 0 ? replica_facts : fitted.facts;
  const GroupPlacements& at = context.placements;
  const auto add = [&](LinkSeconds& to, const GroupPlacement& group, CollectiveOp op, double bytes) {
    if (bytes <= 0) return;
    const double seconds = collective_on_links(links, group, op, Bytes(bytes)).value();
    (group.nodes > 1 ? to.between : to.inside) += seconds;
  };
  const DataTraffic traffic =
      data_traffic(layout, facts, context.bytes, dense, expert, static_cast<double>(context.batch.accumulation));
  DataSeconds data;
  (at.data.nodes > 1 ? data.reduce.between : data.reduce.inside) += bucket_extra_seconds(context, links, traffic);
  add(data.reduce, at.data, CollectiveOp::kAllReduce, traffic.reduce.total());
  add(data.reduce, at.replica, CollectiveOp::kAllReduce, traffic.replicas.total());
  add(data.reduce, at.expert_data, CollectiveOp::kAllReduce, traffic.experts.total());
  add(data.reduce, at.replica, CollectiveOp::kAllReduce, traffic.expert_replicas.total());
  if (layout.zero < 3) {
    add(data.publish, at.shard, CollectiveOp::kAllGather, traffic.gather.total());
    add(data.publish, at.expert_shard, CollectiveOp::kAllGather, traffic.expert_gather.total());
  }
  const bool in_micro_batches = layout.zero == 3 && traffic.scatters_each_micro_batch;
  if (!in_micro_batches) {
    LinkSeconds& scatter = traffic.scatters_each_micro_batch ? data.each : data.reduce;
    add(scatter, at.shard, CollectiveOp::kReduceScatter, traffic.scatter.bytes);
    add(scatter, at.expert_shard, CollectiveOp::kReduceScatter, traffic.expert_scatter.bytes);
    data.micro_batches = traffic.scatters_each_micro_batch ? traffic.scatter.count : 0;
  }
  data.overlaps = layout.zero == 1 || layout.zero == 2 ? facts.zero_overlaps && facts.dp_overlaps : facts.dp_overlaps;
  data.exposed = data.overlaps ? bucket_exposed(context, traffic) : 1.0;
  return data;
}

double Pricer::State::data_parallel_seconds(const Context& context, const LinkRates& links, double dense, double expert,
                                            double backward) const {
  const DataSeconds data = data_parallel(context, links, dense, expert);
  // Each micro-batch that scatters has its own backward to hide behind.
  const double window = data.overlaps ? std::max(1.0, data.micro_batches) * backward : 0.0;
  return exposed_seconds(Seconds(data.total()), Seconds(window), data.exposed, context.constants->overlap_slowdown)
      .value();
}

// AdamW reads gradient, master weight and both moments and writes the last three and the narrow weight; the gradient
// norm reads the gradient once more.
double Pricer::State::optimizer_seconds(const Context& context, const DeviceRates& rates, double dense,
                                        double expert) const {
  const plan::Layout& layout = context.layout;
  const double mine = dense / dense_shards(layout) + expert / expert_shards(layout);
  const double traffic = 2 * context.bytes.gradient + 2 * (context.bytes.optimizer + context.bytes.weight);
  const double here = context.constants->optimizer_passes * mine * traffic / rates.memory.value();
  if (layout.offload == plan::Offload::kNone) return here;
  const double moved = mine * (context.bytes.gradient + context.bytes.weight) / kHostLinkBytesPerSecond;
  return std::max(moved, mine / kHostOptimizerParametersPerSecond);
}

// Gathered inputs live on as far as the host runs ahead of the device: without a pipeline until backward; in one where
// the device is the slower of the two and the pipeline goes on after it was filled; and in the warm-up of deep ones,
// whose first stages wait for nobody, unless rings over many nodes hold them up. A single micro-batch begins with both
// in step. Where a run stalls it is the device that waits, and they are freed at once.
double Pricer::State::gathered_share(const Context& context, const StageTime& time) const {
  const plan::Layout& layout = context.layout;
  if (fitted.facts.keeps_gathered_until_backward) return 1;
  const std::int64_t tensor_nodes = context.placements.tp.nodes;
  const double ordinary = 1 - context.stall_probability;
  if (layout.pp == 1) {
    return ordinary * (context.batch.accumulation > 1 || tensor_nodes > 1 ? 1.0 : time.device_ahead);
  }
  const double steady = context.batch.accumulation > layout.pp ? time.device_ahead : 0.0;
  const double warm_up =
      tensor_nodes > 2 ? 0.0 : context.constants->warm_up_ahead * (1 - 2 / static_cast<double>(layout.pp));
  return ordinary * (1 - (1 - steady) * (1 - warm_up));
}

// Micro-batches whose activations a stage holds at the peak.
double Pricer::State::held_micro_batches(const Context& context, std::int64_t stage) const {
  const plan::Layout& layout = context.layout;
  const double chunks = static_cast<double>(
      plan::chunks_in_flight(layout.schedule, layout.pp, stage, layout.virtual_stages, context.batch.accumulation));
  return chunks / static_cast<double>(layout.virtual_stages);
}

// Of gathered inputs, at the peak.
double Pricer::State::gathered_bytes(const Context& context, const LayerPrices& prices, const StageTime& time,
                                     std::int64_t stage, std::int64_t layers) const {
  if (prices.bytes.gathered <= 0) return 0;
  return context.constants->activation_factor * held_micro_batches(context, stage) * static_cast<double>(layers) *
         prices.bytes.gathered * gathered_share(context, time);
}

double Pricer::State::activation_bytes(const Context& context, const LayerPrices& prices, const StageTime& time,
                                       std::int64_t stage, std::int64_t layers) const {
  const plan::Layout& layout = context.layout;
  const Constants& k = *context.constants;
  const double kept =
      k.activation_factor * held_micro_batches(context, stage) * static_cast<double>(layers) * prices.bytes.kept;
  double transient = k.transient_factor * prices.bytes.transient;
  // A host that runs ahead starts the next micro-batch before the device has let go of the last one's logits.
  const bool runs_ahead = fitted.facts.keeps_gathered_inputs && layout.pp == 1 && context.batch.accumulation > 1;
  const double logits = prices.logits * (runs_ahead ? 1.5 - 0.5 * context.stall_probability : 1.0);
  if (stage == plan::head_rank(layout)) transient = std::max(transient, k.logits_factor * logits);
  return kept + gathered_bytes(context, prices, time, stage, layers) + transient;
}

double Pricer::State::buffer_bytes(const Context& context, std::int64_t stage, double parameters) const {
  const plan::Layout& layout = context.layout;
  const double per_layer = dimensions.dense_parameters_per_layer / static_cast<double>(layout.tp) +
                           dimensions.expert_parameters_per_layer / static_cast<double>(layout.tp * layout.ep);
  const double largest = std::max(per_layer, stage == 0 || stage == plan::head_rank(layout)
                                                 ? dimensions.head_parameters / static_cast<double>(layout.tp)
                                                 : 0.0);
  double bytes = 0;
  // ZeRO-3 holds the block at work and the one being gathered, and the gradient of one before it is scattered; weights
  // kept in host memory come the same way.
  if (layout.zero == 3 || layout.offload == plan::Offload::kParameters) bytes += 2 * largest * context.bytes.weight;
  if (layout.zero >= 2) bytes += largest * context.bytes.gradient;
  if (layout.data_ranks() * layout.cp > 1) {
    bytes += kBucketBytes + bucket_bytes() - kUsualBucketBytes + parameters * fitted.facts.bucket_gradient_bytes;
  }
  // The run asked for weights that stay gathered from forward to backward.
  if (layout.zero == 3 && !options.communication.reshard_after_forward) bytes += parameters * context.bytes.weight;
  return bytes + context.constants->framework_bytes;
}

plan::MemoryBreakdown Pricer::State::stage_memory(const Context& context, const LayerPrices& prices,
                                                  const StageTime& time, std::int64_t stage,
                                                  std::int64_t layers) const {
  const plan::Layout& layout = context.layout;
  const double dense = dense_parameters(layout, stage, layers);
  const double expert = expert_parameters(layout, layers);
  const bool divided = divides_gradients(layout, fitted.facts, context.batch.accumulation);
  const StateBytesOnRank a = state_on_rank(dense, dense_shards(layout), layout, context.bytes, divided);
  const StateBytesOnRank b = state_on_rank(expert, expert_shards(layout), layout, context.bytes, divided);
  plan::MemoryBreakdown memory;
  memory.parameters = (a.parameters + b.parameters).value();
  memory.gradients = (a.gradients + b.gradients).value();
  memory.optimizer = (a.optimizer + b.optimizer).value();
  memory.activations = activation_bytes(context, prices, time, stage, layers);
  memory.buffers = buffer_bytes(context, stage, dense + expert);
  return memory;
}

plan::MemoryBreakdown Pricer::State::engine_stage_memory(const plan::Layout& layout, plan::BatchPlan batch,
                                                         std::int64_t stage) const {
  batch.sequence_length = sequence;
  plan::MemoryBreakdown memory = runs_fused(layout, batch) ? fused_memory(fused_run_of(layout, batch))
                                                           : engine_memory(*engine, layout, batch, stage);
  memory.overhead = framework_bytes;
  return memory;
}

void Pricer::State::add_overhead(const plan::Layout& layout, const GroupRates& group,
                                 plan::MemoryBreakdown& memory) const {
  const Constants& k = group.constants;
  if (engine && !engine->is_gpu) return;  // ordinary memory: what was measured of a rank is all there is
  const double communicators = (layout.tp > 1 ? 1 : 0) + (layout.cp > 1 ? 1 : 0) + (layout.data_ranks() > 1 ? 1 : 0) +
                               (layout.pp > 1 ? 2 : 0) + (layout.ep > 1 ? 2 : 0);
  memory.overhead += (k.reserve_factor - 1) * memory.total() + communicators * k.communicator_bytes + context_bytes;
}

// ZeRO-Offload (Ren et al. 2021): the optimizer's state, and with kParameters the weights, each rank its share; and the
// gradients on their way to the update.
void Pricer::State::add_host_memory(const Context& context, const GroupRates& group, double dense, double expert,
                                    plan::MemoryBreakdown& memory) const {
  const plan::Layout& layout = context.layout;
  const bool weights = layout.offload == plan::Offload::kParameters;
  const auto on_host = [&](double parameters, double shards) {
    const double held = weights ? parameters * context.bytes.weight / (layout.zero >= 3 ? shards : 1.0) : 0.0;
    return held + parameters * (context.bytes.optimizer + context.bytes.gradient) / shards;
  };
  memory.host = on_host(dense, dense_shards(layout)) + on_host(expert, expert_shards(layout));
  memory.host_capacity = group.host_bytes;
}

}  // namespace lockstep::cost
