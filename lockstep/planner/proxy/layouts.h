// Which layouts proxies have: every kind of parallelism that a plan uses, as many at once as there are ranks for, two
// ways each. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/base/enum_names.h"
#include "lockstep/plan/plan.h"

namespace lockstep::planner {

enum class Parallelism { kTensor, kPipeline, kContext, kExpert, kSharded, kReplicas };
constexpr auto names_of(Parallelism) {
  return enum_names<Parallelism::kReplicas>("tp", "pp", "cp", "ep", "zero", "dp");
}
using lockstep::to_string;

// Those of the plan; what takes most of its time first (the bubble counts as the pipeline's).
std::vector<Parallelism> kinds_of(const plan::Candidate& planned);

struct ProxyLayout {
  plan::Layout layout;
  std::vector<Parallelism> checks;  // in the order of kinds_of()
};

struct ProxyLayouts {
  std::vector<ProxyLayout> layouts;  // at least one
  std::vector<Parallelism> without;  // kinds that no layout has: too few ranks, or `most` reached
};

// At most `ranks` ranks in each, a power of two; at most `most` layouts (0: until every kind has one). Recomputation,
// sequence parallelism, schedule and ZeRO stage are the plan's; offload and uneven stages are left out. A layout whose
// kinds leave ranks over gets further kinds, then more ranks for those it has, as far as the plan has them.
ProxyLayouts proxy_layouts(const plan::Candidate& planned, std::int64_t ranks, std::int64_t most);

}  // namespace lockstep::planner
