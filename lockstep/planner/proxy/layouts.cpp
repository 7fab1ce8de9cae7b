#include "lockstep/planner/proxy/layouts.h"

#include <algorithm>

namespace lockstep::planner {
namespace {

using enum Parallelism;
using Kinds = std::vector<Parallelism>;

bool has(const Kinds& kinds, Parallelism kind) { return std::find(kinds.begin(), kinds.end(), kind) != kinds.end(); }

double seconds_of(const plan::Candidate& planned, Parallelism kind) {
  if (!planned.breakdown) return 0;
  const plan::TimeBreakdown& time = *planned.breakdown;
  switch (kind) {
    case kTensor:
      return time.tp_comm;
    case kPipeline:
      return time.pp_comm + time.bubble;
    case kContext:
      return time.cp_comm;
    case kExpert:
      return time.ep_comm;
    case kSharded:
    case kReplicas:
      return time.dp_comm;
  }
  return 0;
}

// ZeRO divides over the context ranks too: without ranks of its own it comes with them.
bool shards_over_context(const plan::Layout& target) { return target.zero > 0 && target.shard == 1; }

// What must come along: experts are dealt out over ranks that have other data.
Kinds with_companions(const plan::Layout& target, Parallelism kind) {
  if (kind == kExpert) return {kind, target.shard > 1 ? kSharded : target.dp > 1 ? kReplicas : kContext};
  if (kind == kSharded && shards_over_context(target)) return {kind, kContext};
  return {kind};
}

std::int64_t* axis_of(plan::Layout& layout, Parallelism kind) {
  switch (kind) {
    case kTensor:
      return &layout.tp;
    case kPipeline:
      return &layout.pp;
    case kContext:
      return &layout.cp;
    case kSharded:
      return &layout.shard;
    case kReplicas:
      return &layout.dp;
    case kExpert:
      break;
  }
  return nullptr;
}

plan::Layout layout_with(const plan::Layout& target, const Kinds& kinds) {
  plan::Layout layout;
  layout.precision = target.precision;
  layout.recompute = target.recompute;
  for (const Parallelism kind : kinds) {
    const bool own_axis = kind != kSharded || !shards_over_context(target);
    if (std::int64_t* axis = axis_of(layout, kind); axis != nullptr && own_axis) *axis = 2;
  }
  if (has(kinds, kSharded)) layout.zero = target.zero;
  if (has(kinds, kTensor)) layout.sequence_parallel = target.sequence_parallel;
  if (has(kinds, kContext)) layout.context_exchange = target.context_exchange;
  if (has(kinds, kExpert)) layout.ep = 2;
  if (has(kinds, kPipeline)) {
    layout.schedule = target.schedule;
    layout.virtual_stages = std::min<std::int64_t>(2, target.virtual_stages);
  }
  return layout;
}

// Adds `kind` with what it needs where the ranks allow it.
bool add(Kinds& kinds, Parallelism kind, const plan::Layout& target, std::int64_t ranks) {
  Kinds more = kinds;
  for (const Parallelism part : with_companions(target, kind)) {
    if (!has(more, part)) more.push_back(part);
  }
  if (layout_with(target, more).world() > ranks) return false;
  kinds = std::move(more);
  return true;
}

// Ranks that are left over make the groups larger: data first, which any model divides over.
void use_ranks(plan::Layout& layout, plan::Layout target, std::int64_t ranks) {
  for (const Parallelism kind : {kSharded, kReplicas, kTensor, kContext, kPipeline}) {
    std::int64_t& ways = *axis_of(layout, kind);
    const std::int64_t most = *axis_of(target, kind);
    while (ways > 1 && 2 * ways <= most && 2 * layout.world() <= ranks) ways *= 2;
  }
}

Kinds in_order(const Kinds& order, const Kinds& kinds) {
  Kinds sorted;
  std::copy_if(order.begin(), order.end(), std::back_inserter(sorted),
               [&](Parallelism kind) { return has(kinds, kind); });
  return sorted;
}

}  // namespace

std::vector<Parallelism> kinds_of(const plan::Candidate& planned) {
  const plan::Layout& layout = planned.layout;
  Kinds kinds;
  if (layout.tp > 1) kinds.push_back(kTensor);
  if (layout.pp > 1) kinds.push_back(kPipeline);
  if (layout.cp > 1) kinds.push_back(kContext);
  if (layout.ep > 1) kinds.push_back(kExpert);
  if (layout.zero > 0 && layout.sharding_ranks() > 1) kinds.push_back(kSharded);
  if (layout.dp > 1) kinds.push_back(kReplicas);
  std::stable_sort(kinds.begin(), kinds.end(),
                   [&](Parallelism a, Parallelism b) { return seconds_of(planned, a) > seconds_of(planned, b); });
  return kinds;
}

ProxyLayouts proxy_layouts(const plan::Candidate& planned, std::int64_t ranks, std::int64_t most) {
  const plan::Layout& target = planned.layout;
  const Kinds order = kinds_of(planned);
  Kinds open = order;
  ProxyLayouts result;
  do {
    Kinds kinds;
    for (const Parallelism kind : open) add(kinds, kind, target, ranks);
    if (kinds.empty() && !result.layouts.empty()) break;  // what is open needs more ranks
    for (const Parallelism kind : order) {
      if (!has(kinds, kind)) add(kinds, kind, target, ranks);
    }
    ProxyLayout next{layout_with(target, kinds), in_order(order, kinds)};
    use_ranks(next.layout, target, ranks);
    result.layouts.push_back(std::move(next));
    std::erase_if(open, [&](Parallelism kind) { return has(kinds, kind); });
  } while (!open.empty() && (most == 0 || static_cast<std::int64_t>(result.layouts.size()) < most));
  result.without = std::move(open);
  return result;
}

}  // namespace lockstep::planner
