// Where the ranks of a layout sit: in which node groups, on which links, and what lies between two stages.
#include <algorithm>
#include <bit>

#include "lockstep/cost/pricer/state.h"
#include "lockstep/plan/pipeline_schedule.h"

namespace lockstep::cost {

namespace {

// Whether some rank of `first` .. `first + stride` has its partner, `stride` ranks further, on another node. Ranks are
// counted from the first one of the node group.
bool reaches_another_node(std::int64_t first, std::int64_t stride, std::int64_t devices) {
  const std::int64_t last = first + stride - 1;
  return stride >= devices || first / devices != last / devices || last % devices + stride >= devices;
}

}  // namespace

std::size_t Pricer::State::group_of(std::int64_t rank) const {
  std::size_t group = 0;
  while (group + 1 < groups.size() && groups[group + 1].first_rank <= rank) ++group;
  return group;
}

double Pricer::State::nodes_of(const plan::Layout& layout) const {
  return sum_over_ranks(layout,
                        [](const GroupRates& group) { return 1 / static_cast<double>(group.devices_per_node); });
}

Pricer::State::Span Pricer::State::span_of(const plan::Layout& layout, std::int64_t stage) const {
  if (groups.size() == 1) return {};
  const std::int64_t per_stage = layout.world() / layout.pp;
  const std::int64_t first = stage * per_stage;
  return {.first = group_of(first), .last = group_of(first + per_stage - 1)};
}

GroupPlacements Pricer::State::placements_of(const plan::Layout& layout, const GroupRates& group, Span span) const {
  std::int64_t smallest = group.devices_per_node;  // of the nodes that replicas and shards are spread over
  for (std::size_t i = span.first; i <= span.last; ++i) smallest = std::min(smallest, groups[i].devices_per_node);
  const std::int64_t node = group.devices_per_node;
  const std::int64_t world = layout.world();
  // Powers of two, as nearly always, end where nodes do.
  const auto is_power = [](std::int64_t value) { return std::has_single_bit(static_cast<std::uint64_t>(value)); };
  const bool aligned = is_power(world / layout.pp) && is_power(smallest) && is_power(node) &&
                       (group.first_rank == 0 || group.first_rank % std::max(world / layout.pp, node) == 0);
  const auto place = [&](std::int64_t ranks, std::int64_t stride, std::int64_t per_node) {
    if (aligned || ranks == 1) return place_group(ranks, stride, per_node);
    return place_anywhere(ranks, stride, per_node, span.straddles() ? 0 : group.first_rank, world);
  };
  const std::int64_t weights = layout.tp;  // stride between ranks that hold the same weights
  const std::int64_t same = layout.dp * layout.shard * layout.cp;
  const std::int64_t sharding = layout.sharding_ranks();
  return {.tp = place(layout.tp, 1, node),
          .cp = place(layout.cp, weights, node),
          .shard = place(sharding, weights, smallest),
          .replica = place(layout.dp, weights * sharding, smallest),
          .data = place(same, weights, smallest),
          .ep = place(layout.ep, weights, node),
          .expert_data = place(std::max<std::int64_t>(1, same / layout.ep), weights * layout.ep, smallest),
          .expert_shard = place(std::max<std::int64_t>(1, sharding / layout.ep), weights * layout.ep, smallest)};
}

Pricer::State::StageLinks Pricer::State::links_of(const plan::Layout& layout, std::int64_t stage,
                                                  const GroupRates& group, Span span) const {
  StageLinks links{.inner = group.links, .data = group.links};
  if (!span.straddles()) return links;
  const std::int64_t first = stage * (layout.world() / layout.pp);
  // The ranks that exchange inside a layer are a block of neighbours; one that lies on both sides of a border between
  // node groups is paced by both.
  const std::int64_t block = layout.tp * std::max(layout.cp, layout.ep);
  bool inner_straddles = false;
  for (std::size_t i = span.first; i <= span.last; ++i) {
    const LinkRates& other = groups[i].links;
    links.data.intra = std::min(links.data.intra, other.intra);
    links.data.nic = std::min(links.data.nic, other.nic);
    links.data.port = std::min(links.data.port, other.port);
    links.data.intra_latency = std::max(links.data.intra_latency, other.intra_latency);
    links.data.inter_latency = std::max(links.data.inter_latency, other.inter_latency);
    links.data.node_falloff = std::max(links.data.node_falloff, other.node_falloff);
    links.data.gather_efficiency = std::min(links.data.gather_efficiency, other.gather_efficiency);
    links.data.has_nvls = links.data.has_nvls && other.has_nvls;
    inner_straddles |= i > span.first && (groups[i].first_rank - first) % block != 0;
  }
  // Every data group (one per tensor-parallel rank) crosses the one link between node groups.
  links.data.between = BytesPerSecond(between_bytes_per_second / static_cast<double>(layout.tp));
  if (inner_straddles) links.inner = links.data;
  return links;
}

Pricer::State::Boundary Pricer::State::boundary_of(const plan::Layout& layout, std::int64_t stage) const {
  // Around the ring only with several chunks per rank that do not lie in a V; otherwise the last stage sends over the
  // link it shares with the one before.
  const bool wraps = layout.virtual_stages > 1 && !plan::makes_a_v(layout);
  const std::int64_t from = !wraps && stage == layout.pp - 1 ? stage - 1 : stage;
  const Span here = span_of(layout, from);
  const Span next = span_of(layout, (from + 1) % layout.pp);
  Boundary boundary{.from = here, .to = next};
  boundary.between_groups = here.first != next.first || here.last != next.last;
  boundary.between_nodes = boundary.between_groups;
  if (boundary.between_groups) return boundary;
  const GroupRates& group = groups[here.first];
  const std::int64_t stride = layout.world() / layout.pp;
  boundary.between_nodes = here.straddles() || from + 1 == layout.pp
                               ? layout.world() > group.devices_per_node
                               : reaches_another_node(from * stride - group.first_rank, stride, group.devices_per_node);
  return boundary;
}

}  // namespace lockstep::cost
