#include "lockstep/planner/explain/fix.h"

#include <fmt/format.h>

#include <array>
#include <optional>

#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/planner/explain/terms.h"
#include "lockstep/planner/resize.h"

namespace lockstep::planner {
namespace {

// A cluster more than this many times larger is not offered as a fix.
constexpr std::int64_t kLargestGrowth = 64;

// What the user fixed and could let go of, the least first.
struct Relaxation {
  const char* name;
  void (*apply)(Constraints&);
};

void free_axes(Constraints& constraints, std::initializer_list<const char*> axes) {
  for (const char* axis : axes) {
    constraints.fixed.erase(axis);
    constraints.at_most.erase(axis);
  }
}

constexpr std::array<Relaxation, 6> kRelaxations{{
    {"another micro-batch",
     [](Constraints& c) {
       free_axes(c, {"micro", "accumulation"});
     }},
    {"recompute", [](Constraints& c) { c.recompute.reset(); }},
    {"another ZeRO stage",
     [](Constraints& c) {
       free_axes(c, {"zero", "dp", "shard", "micro", "accumulation"});
     }},
    {"another degree of tensor parallelism",
     [](Constraints& c) {
       free_axes(c, {"tp", "dp", "shard", "micro", "accumulation"});
       c.sequence_parallel.reset();
     }},
    {"a pipeline",
     [](Constraints& c) {
       free_axes(c, {"pp", "virtual_stages", "dp", "shard", "micro", "accumulation"});
       c.schedule.reset();
       c.stage_layers.reset();
     }},
    {"nothing fixed",
     [](Constraints& c) {
       const bool idle = c.allow_idle_devices;
       const double risk = c.largest_out_of_memory_probability;
       c = {};
       c.allow_idle_devices = idle;
       c.largest_out_of_memory_probability = risk;
     }},
}};

bool has_constraints(const Constraints& c) {
  return !c.fixed.empty() || !c.at_most.empty() || c.schedule || c.recompute || c.sequence_parallel ||
         c.context_exchange || c.stage_layers || c.offload;
}

std::string layout_and_micro(const Ranked& ranked) {
  return fmt::format("{} at micro-batch {} ({} of {})", plan::to_string(ranked.layout), ranked.batch.micro,
                     format_bytes(ranked.price.memory.total()), format_bytes(ranked.price.memory.capacity));
}

std::optional<std::string> relaxed_fix(const SearchRequest& request) {
  if (!has_constraints(request.constraints)) return std::nullopt;
  for (const Relaxation& relaxation : kRelaxations) {
    SearchRequest relaxed = request;
    relaxation.apply(relaxed.constraints);
    if (const auto found = find_best(std::move(relaxed))) {
      return fmt::format("nearest that fits ({}): {}", relaxation.name, layout_and_micro(*found));
    }
  }
  return std::nullopt;
}

SearchRequest grown(const SearchRequest& request, std::int64_t nodes) {
  SearchRequest larger = request;
  spec::NodeGroup& group = larger.cluster.groups.front();
  if (nodes > group.nodes) add_devices(larger.cluster, (nodes - group.nodes) * group.devices_per_node);
  larger.constraints.allow_idle_devices = true;
  return larger;
}

// The smallest number of nodes (of the first group) on which something fits: doubled until it does, then bisected.
std::optional<std::string> larger_cluster_fix(const SearchRequest& request) {
  const std::int64_t now = request.cluster.groups.front().nodes;
  std::int64_t too_few = now, enough = now;
  std::optional<Ranked> best;
  while (!best) {
    if (enough > now * kLargestGrowth) return std::nullopt;
    too_few = enough;
    enough *= 2;
    best = find_best(grown(request, enough));
  }
  while (enough - too_few > 1) {
    const std::int64_t middle = (too_few + enough) / 2;
    if (auto found = find_best(grown(request, middle))) {
      best = std::move(found);
      enough = middle;
    } else {
      too_few = middle;
    }
  }
  const spec::NodeGroup& group = request.cluster.groups.front();
  return fmt::format("{} nodes of {} x {} ({} instead of {} devices in all) hold {}", enough, group.devices_per_node,
                     group.device.kind, request.cluster.devices() + (enough - now) * group.devices_per_node,
                     request.cluster.devices(), layout_and_micro(*best));
}

std::string fixes(const SearchRequest& request, double bytes_needed) {
  std::vector<std::string> found;
  if (auto fix = relaxed_fix(request)) return *fix;
  SearchRequest free = request;
  kRelaxations.back().apply(free.constraints);
  if (auto fix = larger_cluster_fix(free)) found.push_back(*fix);
  if (bytes_needed > 0) found.push_back(fmt::format("or devices with {}", format_bytes(bytes_needed)));
  return join(found, ", ");
}

}  // namespace

std::string describe_misfit(const SearchRequest& request, const SearchResult& result) {
  if (result.nearest.empty()) {
    return fmt::format("no layout of {} on {} keeps to the rules and constraints", request.model.name,
                       request.cluster.name);
  }
  const Ranked& nearest = result.nearest.front();
  const plan::MemoryBreakdown& memory = nearest.price.memory;
  const Term term = largest_memory_term(memory);
  const double excess = memory.total() - memory.capacity;
  const std::string by = excess > 0 ? fmt::format("{} too much", format_bytes(excess))
                                    : fmt::format("out of memory with a probability of {:.0f}%",
                                                  100 * nearest.price.out_of_memory_probability());
  return fmt::format("{} does not fit {}: {} at micro-batch {} needs {} of {} per device, {}, most of it {} ({})",
                     request.model.name, request.cluster.name, plan::to_string(nearest.layout), nearest.batch.micro,
                     format_bytes(memory.total()), format_bytes(memory.capacity), by, term.name,
                     format_bytes(term.value));
}

UserError nothing_fits(const SearchRequest& request, const SearchResult& result) {
  const double needed = result.nearest.empty() ? 0 : result.nearest.front().price.memory.total();
  return does_not_fit(describe_misfit(request, result), fixes(request, needed));
}

}  // namespace lockstep::planner
