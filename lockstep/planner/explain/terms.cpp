#include "lockstep/planner/explain/terms.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "lockstep/base/enum_names.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/planner/money.h"

namespace lockstep::planner {
namespace {

using TimeMember = double plan::TimeBreakdown::*;

constexpr std::array<TimeMember, 9> kTimeMembers{
    &plan::TimeBreakdown::compute, &plan::TimeBreakdown::tp_comm,   &plan::TimeBreakdown::dp_comm,
    &plan::TimeBreakdown::pp_comm, &plan::TimeBreakdown::cp_comm,   &plan::TimeBreakdown::ep_comm,
    &plan::TimeBreakdown::bubble,  &plan::TimeBreakdown::optimizer, &plan::TimeBreakdown::other};

// Differences below this do not matter to a reader.
constexpr double kSameSpeed = 0.0005;
// The plan's own figure of a term is named where it is this share of the loser's.
constexpr double kWorthSaying = 0.3;
constexpr double kMoreRisk = 0.005;  // of running out of memory

// " over NVLink": of the slowest kind of link that a group spanning `ranks` neighbouring ranks runs over.
std::string over_links(std::int64_t ranks, const spec::Cluster& cluster) {
  const auto& groups = cluster.groups;
  const auto least = [&](auto key) {
    return *std::min_element(groups.begin(), groups.end(),
                             [&](const spec::NodeGroup& a, const spec::NodeGroup& b) { return key(a) < key(b); });
  };
  const spec::NodeGroup narrow = least([](const spec::NodeGroup& group) { return group.devices_per_node; });
  const spec::NodeGroup small =
      least([](const spec::NodeGroup& group) { return group.nodes * group.devices_per_node; });
  if (ranks <= narrow.devices_per_node) return fmt::format(" over {}", link_name(narrow.intra.kind));
  if (groups.size() > 1 && ranks > small.nodes * small.devices_per_node) {
    return fmt::format(" over {} between the groups", link_name(cluster.between_groups.kind));
  }
  const spec::NodeGroup slow = least([](const spec::NodeGroup& group) {
    return group.nic.bytes_per_second * static_cast<double>(group.nics_per_node);
  });
  return fmt::format(" over {}", link_name(slow.nic.kind));
}

std::string time_name(TimeMember member, const plan::Layout& layout, const spec::Cluster& cluster) {
  const std::int64_t inner = layout.tp * layout.cp;
  if (member == &plan::TimeBreakdown::tp_comm) return "tensor-parallel traffic" + over_links(layout.tp, cluster);
  if (member == &plan::TimeBreakdown::cp_comm) return "context-parallel traffic" + over_links(inner, cluster);
  if (member == &plan::TimeBreakdown::ep_comm) return "expert all-to-all" + over_links(inner * layout.ep, cluster);
  if (member == &plan::TimeBreakdown::dp_comm) {
    // Under ZeRO-3 the shard group gathers weights in every micro-step; the replicas meet once a step.
    if (layout.zero == 3) return "weight and gradient traffic" + over_links(inner * layout.shard, cluster);
    return "gradient traffic" + over_links(inner * layout.data_ranks(), cluster);
  }
  if (member == &plan::TimeBreakdown::pp_comm) return "pipeline traffic" + over_links(layout.world(), cluster);
  if (member == &plan::TimeBreakdown::compute) {
    return layout.recompute == plan::Recompute::kFull ? "compute with full recompute" : "compute";
  }
  if (member == &plan::TimeBreakdown::bubble) return "pipeline bubble";
  if (member == &plan::TimeBreakdown::optimizer) return "optimizer";
  return layout.offload == plan::Offload::kNone ? "host cost and jitter" : "host cost, jitter and offload";
}

std::string need(const plan::MemoryBreakdown& memory) {
  const Term term = largest_memory_term(memory);
  return fmt::format("needs {} of {}, most of it {} ({})", format_bytes(memory.total()), format_bytes(memory.capacity),
                     term.name, format_bytes(term.value));
}

// Why something faster was not chosen: its risk, or a mechanism that its small gain does not pay for (objective.h).
std::string drawback(const Ranked& plan, const Ranked& other) {
  const double before = plan.price.out_of_memory_probability(), after = other.price.out_of_memory_probability();
  if (after > before + kMoreRisk) {
    return fmt::format(" but out of memory with a probability of {:.0f}% against {:.0f}%", 100 * after, 100 * before);
  }
  const char* mechanism = other.layout.cp > 1 && plan.layout.cp == 1 ? "context parallelism"
                          : other.layout.schedule != plan.layout.schedule
                              ? (other.layout.schedule == plan::Schedule::kZeroBubble    ? "a zero-bubble schedule"
                                 : other.layout.schedule == plan::Schedule::kInterleaved ? "an interleaved schedule"
                                                                                         : "a pipeline")
                              : nullptr;
  return mechanism != nullptr ? fmt::format(", too little to pay for {}", mechanism) : "";
}

}  // namespace

Term largest_memory_term(const plan::MemoryBreakdown& memory) {
  const std::array<Term, 6> terms{{{"parameters", memory.parameters},
                                   {"gradients", memory.gradients},
                                   {"optimizer state", memory.optimizer},
                                   {"activations", memory.activations},
                                   {"buffers", memory.buffers},
                                   {"framework overhead", memory.overhead}}};
  return *std::max_element(terms.begin(), terms.end(), [](const Term& a, const Term& b) { return a.value < b.value; });
}

Term largest_loss(const plan::TimeBreakdown& plan, const plan::TimeBreakdown& other, const plan::Layout& other_layout,
                  const spec::Cluster& cluster) {
  const TimeMember member =
      *std::max_element(kTimeMembers.begin(), kTimeMembers.end(),
                        [&](TimeMember a, TimeMember b) { return other.*a - plan.*a < other.*b - plan.*b; });
  return {time_name(member, other_layout, cluster), other.*member, plan.*member};
}

Term largest_exposed(const plan::TimeBreakdown& time, const plan::Layout& layout, const spec::Cluster& cluster) {
  plan::TimeBreakdown compute_only;
  compute_only.compute = time.compute;
  return largest_loss(compute_only, time, layout, cluster);
}

const char* link_name(spec::LinkKind kind) {
  return named<spec::LinkKind::kEthernet>(kind, "NVLink", "PCIe", "xGMI", "shared memory", "InfiniBand", "RoCE",
                                          "Ethernet");
}

bool is_feasible(const cost::Price& price, const Constraints& constraints) {
  return price.fits() && price.out_of_memory_probability() <= constraints.largest_out_of_memory_probability;
}

double step_cost(const Ranked& ranked, const spec::Cluster& cluster) {
  const HourlyPrice price = hourly_price(cluster, ranked.layout.world());
  return ranked.price.step_seconds() * (price.usd > 0 ? price.usd / 3600 : static_cast<double>(price.paid_devices));
}

bool is_about_money(Objective objective) {
  return objective == Objective::kDollars || objective == Objective::kDeadline;
}

std::optional<Ranked> find_best(SearchRequest request) {
  request.keep = 1;
  try {
    SearchResult result = search(request);
    if (result.best.empty()) return std::nullopt;
    return std::move(result.best.front());
  } catch (const UserError& error) {
    if (error.code() != ExitCode::kUsage) throw;
    return std::nullopt;
  }
}

bool is_wholly_fixed(const Constraints& constraints) {
  static constexpr const char* kMeshAxes[] = {"pp", "dp", "shard", "cp", "tp"};  // whose product is the world
  return std::all_of(std::begin(kMeshAxes), std::end(kMeshAxes),
                     [&](const char* axis) { return constraints.fixed.contains(axis); });
}

std::string layout_difference(const plan::Layout& layout, const plan::Layout& other) {
  std::vector<std::string> found;
  for (const plan::LayoutField& field : plan::layout_fields()) {
    const bool stages = other.pp > 1 && layout.stage_layers != other.stage_layers;
    if (field.name() == std::string_view("sequence_parallel") && stages) {  // beside the pipeline's other choices
      found.push_back(fmt::format("stage_layers={}", other.stage_layers.empty()
                                                         ? "even"
                                                         : fmt::format("{}", fmt::join(other.stage_layers, "+"))));
    }
    if (field.matters(other) && field.get(layout) != field.get(other)) {
      found.push_back(fmt::format("{}={}", field.name(), field.text(other)));
    }
  }
  return join(found, ",");
}

std::string describe_loss(const Ranked& plan, const Ranked& other, const SearchRequest& request, bool competed) {
  if (!other.price.fits()) return need(other.price.memory);
  if (!is_feasible(other.price, request.constraints)) {
    return fmt::format("out of memory with a probability of {:.0f}%", 100 * other.price.out_of_memory_probability());
  }
  std::string money;
  double dearer = 0;
  if (is_about_money(request.objective)) {
    if (!std::isfinite(other.score)) return "ends after the deadline";
    dearer = step_cost(other, request.cluster) / step_cost(plan, request.cluster) - 1;
    money = fmt::format("{:.1f}% {}, ", 100 * std::abs(dearer), dearer < 0 ? "cheaper" : "dearer");
  }
  const double slower = other.price.step_seconds() / plan.price.step_seconds() - 1;
  if (slower < -kSameSpeed) {
    const double faster = plan.price.step_seconds() / other.price.step_seconds() - 1;  // in speed, not in time
    return fmt::format("{}{:.1f}% faster{}", money, 100 * faster, dearer > 0 || !competed ? "" : drawback(plan, other));
  }
  if (slower < kSameSpeed) {
    const double before = plan.price.memory.total(), after = other.price.memory.total();
    return fmt::format("{}as fast within 0.1%, memory {} against {}", money, format_bytes(after), format_bytes(before));
  }
  const Term term = largest_loss(plan.price.time, other.price.time, other.layout, request.cluster);
  std::string text = fmt::format("{}{:.1f}% slower, {} {} of {}", money, 100 * slower, term.name,
                                 format_seconds(term.value), format_seconds(other.price.step_seconds()));
  if (term.before > kWorthSaying * term.value) text += fmt::format(" against {}", format_seconds(term.before));
  return text;
}

}  // namespace lockstep::planner
