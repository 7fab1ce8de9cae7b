// Image networks, priced operator by operator.
#include "lockstep/cost/pricer/state.h"

#include <algorithm>
#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/cost/flops.h"
#include "lockstep/cost/layer.h"
#include "lockstep/cost/links.h"
#include "lockstep/cost/profile/constants_from_tables.h"
#include "lockstep/cost/stage_content.h"
#include "lockstep/cost/states.h"
#include "lockstep/cost/traffic.h"
#include "lockstep/plan/stage_layers.h"

namespace lockstep::cost {

// A module from Python on processors: what the machine that looked at it took (spec/script.h).
std::optional<ImagePasses> Pricer::State::measured_passes(double samples, const plan::Layout& layout) const {
  const spec::ScriptFacts& facts = model.script.facts;
  if (!model.is_scripted() || !cluster.is_cpu() || facts.sample_seconds <= 0) return std::nullopt;
  const double wide = layout.precision == spec::Precision::kFp64 ? 2.0 : 1.0;
  const double all = wide * (facts.base_seconds + samples * facts.sample_seconds);
  ImagePasses passes{.forward = facts.forward_share * all, .backward = (1 - facts.forward_share) * all};
  if (layout.recompute != plan::Recompute::kNone) passes.recompute = passes.forward;
  return passes;
}

// The share of the model's time, and its parameters, of the position of a pipeline that has most.
Pricer::State::LargestPart Pricer::State::largest_part(const plan::Layout& layout) const {
  if (layout.pp == 1 || !model.is_scripted()) return {1.0, image_parameters};
  LargestPart largest{0, 0};
  std::size_t unit = 0;
  for (const std::int64_t units : plan::layers_by_position(layout, model)) {
    double share = 0, parameters = 0;
    for (std::int64_t i = 0; i < units; ++i, ++unit) {
      share += model.script.facts.units[unit].share;
      parameters += static_cast<double>(model.script.facts.units[unit].parameters);
    }
    largest.share = std::max(largest.share, share);
    largest.parameters = std::max(largest.parameters, parameters);
  }
  // Positions of one rank.
  const auto chunks = static_cast<double>(layout.virtual_stages);
  return {std::min(1.0, chunks * largest.share), std::min(image_parameters, chunks * largest.parameters)};
}

// Every operator of one sample, scaled to the micro-batch; convolutions as the products they amount to.
ImagePasses Pricer::State::image_passes(const Context& context, const GroupRates& group) const {
  const plan::Layout& layout = context.layout;
  const DeviceRates& rates = group.rates[static_cast<std::size_t>(layout.precision)];
  const Constants& k = group.constants;
  const double samples = static_cast<double>(context.batch.micro);
  const double element = element_bytes(layout.precision);
  if (const auto measured = measured_passes(samples, layout)) return *measured;
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
  ImagePasses passes{.forward = forward, .backward = backward, .host = std::max(0.0, micro - gpu)};
  // Selective keeps the convolutions' outputs and redoes normalisation and activation, about a third of forward.
  if (layout.recompute == plan::Recompute::kFull) passes.recompute = forward;
  if (layout.recompute == plan::Recompute::kSelective) passes.recompute = forward / 3;
  return passes;
}

plan::TimeBreakdown Pricer::State::image_time(const Context& context, const GroupRates& group) const {
  const plan::Layout& layout = context.layout;
  const ImagePasses passes = image_passes(context, group);
  const double micro_batches = static_cast<double>(context.batch.accumulation);
  const DeviceRates& rates = group.rates[static_cast<std::size_t>(layout.precision)];
  const LargestPart part = largest_part(layout);
  plan::TimeBreakdown time;
  const double micro = part.share * (passes.forward + passes.backward + passes.recompute);
  time.compute = micro_batches * micro;
  // The other stages wait while the first micro-batch comes and the last one goes.
  time.bubble = static_cast<double>(layout.pp - 1) * micro / static_cast<double>(layout.virtual_stages);
  time.dp_comm = image_traffic_seconds(context, links_of(layout, 0, group, span_of(layout, 0)).data,
                                       part.share * passes.forward, part.share * passes.backward);
  time.optimizer = optimizer_seconds(context, rates, part.parameters, 0);
  time.other = micro_batches * passes.host + together_of(layout).step_seconds;
  return time;
}

// The reduction of gradients, and what ZeRO-3 gathers and scatters in every micro-batch.
double Pricer::State::image_traffic_seconds(const Context& context, const LinkRates& links, double forward,
                                            double backward) const {
  const Constants& k = *context.constants;
  const double parameters = largest_part(context.layout).parameters;
  const double reduction = data_parallel_seconds(context, links, parameters, 0, backward);
  if (context.layout.zero != 3) return reduction;
  const GroupPlacement& shard = context.placements.shard;
  const double gather =
      collective_on_links(links, shard, CollectiveOp::kAllGather, Bytes(parameters * context.bytes.weight)).value();
  const DataTraffic traffic = data_traffic(context.layout, fitted.facts, context.bytes, parameters, 0, 1);
  const double scatter =
      traffic.scatters_each_micro_batch
          ? collective_on_links(links, shard, CollectiveOp::kReduceScatter, Bytes(traffic.scatter.bytes)).value()
          : 0.0;
  const auto exposed = [&](double communication, double compute) {
    return exposed_seconds(Seconds(communication), Seconds(compute), k.zero3_exposed, k.overlap_slowdown).value();
  };
  return reduction + static_cast<double>(context.batch.accumulation) *
                         (exposed(gather, forward) + exposed(gather + scatter, backward));
}

plan::MemoryBreakdown Pricer::State::image_memory(const Context& context) const {
  const plan::Layout& layout = context.layout;
  const Constants& k = *context.constants;
  const StateBytesOnRank state = state_on_rank(image_parameters, dense_shards(layout), layout, context.bytes,
                                               divides_gradients(layout, fitted.facts, context.batch.accumulation));
  plan::MemoryBreakdown memory;
  memory.parameters = state.parameters.value();
  memory.gradients = state.gradients.value();
  memory.optimizer = state.optimizer.value();
  const double kept = layout.recompute == plan::Recompute::kFull        ? 0.25
                      : layout.recompute == plan::Recompute::kSelective ? 0.6
                                                                        : 1.0;
  memory.activations = k.activation_factor * kept * image_kept_elements * static_cast<double>(context.batch.micro) *
                       element_bytes(layout.precision);
  memory.buffers =
      k.framework_bytes + (layout.data_ranks() > 1 ? kBucketBytes + bucket_bytes() - kUsualBucketBytes : 0.0);
  if (layout.zero == 3 && !options.communication.reshard_after_forward) {
    memory.buffers += image_parameters * context.bytes.weight;
  }
  return memory;
}

Pricer::State::Context Pricer::State::image_context(const plan::Layout& layout, const plan::BatchPlan& batch,
                                                    const GroupRates& group) const {
  return {.layout = layout,
          .batch = batch,
          .constants = &group.constants,
          .placements = placements_of(layout, group, span_of(layout, 0)),
          .bytes = parameter_bytes(layout.precision, options.optimizer, fitted.facts)};
}

// Replicas wait for the slowest.
const GroupRates& Pricer::State::slowest_group(const plan::Layout& layout, const plan::BatchPlan& batch) const {
  const Span span = span_of(layout, 0);
  const GroupRates* slowest = &groups[span.first];
  double most = 0;
  for (std::size_t i = span.first; i <= span.last && span.straddles(); ++i) {
    const double seconds = image_time(image_context(layout, batch, groups[i]), groups[i]).total();
    if (seconds <= most) continue;
    most = seconds;
    slowest = &groups[i];
  }
  return *slowest;
}

StepWork Pricer::State::image_work(const plan::Layout& layout, const plan::BatchPlan& batch) const {
  const GroupRates& group = slowest_group(layout, batch);
  const Context context = image_context(layout, batch, group);
  const ImagePasses passes = image_passes(context, group);
  const LinkRates links = links_of(layout, 0, group, span_of(layout, 0)).data;
  StageWork only;
  only.forward = passes.forward + passes.host / 3;
  only.backward = passes.backward + passes.recompute + passes.host * 2 / 3;
  only.weight_gradient = passes.backward / 2;
  only.host = passes.host;
  if (layout.zero == 3) {
    StageTime time;
    const StreamTime stream{passes.forward, passes.backward, passes.forward, passes.backward, {}, {}};
    add_sharded_traffic(context, links, stream, image_parameters, 0, time);
    const bool between = context.placements.shard.nodes > 1;
    (between ? only.gather.between : only.gather.inside) = time.gather;
    (between ? only.scatter.between : only.scatter.inside) = time.scatter;
  }
  add_data_work(context, links, image_parameters, 0, only);
  only.optimizer =
      optimizer_seconds(context, group.rates[static_cast<std::size_t>(layout.precision)], image_parameters, 0);
  StepWork work = step_work(layout);
  work.stages.push_back(only);
  return work;
}

Price Pricer::State::price_image(const plan::Layout& layout, const plan::BatchPlan& batch) const {
  const GroupRates& group = slowest_group(layout, batch);
  const Context context = image_context(layout, batch, group);
  Price price;
  price.time = image_time(context, group);
  price.memory = engine ? engine_stage_memory(layout, batch, 0) : image_memory(context);
  for (std::int64_t stage = 1; engine && stage < layout.pp; ++stage) {
    const plan::MemoryBreakdown other = engine_stage_memory(layout, batch, stage);
    if (other.total() > price.memory.total()) price.memory = other;
  }
  const plan::MemoryBreakdown counted = price.memory;
  for (std::size_t i = 0; i <= group_of(layout.world() - 1); ++i) {
    plan::MemoryBreakdown here = counted;
    if (!engine) here = image_memory(image_context(layout, batch, groups[i]));
    here.capacity = groups[i].memory_bytes;
    add_overhead(layout, groups[i], here);
    if (layout.offload != plan::Offload::kNone) {
      add_host_memory(image_context(layout, batch, groups[i]), groups[i], image_parameters, 0, here);
    }
    if (i == 0 || here.fill() > price.memory.fill()) price.memory = here;
  }
  finish(price, layout);
  return price;
}

}  // namespace lockstep::cost
