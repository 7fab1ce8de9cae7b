#include "lockstep/report/memory_terms.h"

#include <algorithm>

#include "lockstep/base/units.h"
#include "lockstep/report/json_numbers.h"

namespace lockstep::report {
namespace {

using nlohmann::json;

// Also of plans that are not whole: a term that is not there is 0.
std::optional<plan::MemoryBreakdown> predicted_of(const RunFacts& facts) {
  if (facts.typed) return facts.typed->best.memory;
  const json& plan = facts.plan;
  if (!plan.is_object() || number_at(plan, {"best", "memory_gib", "total"}) <= 0.0) return std::nullopt;
  plan::MemoryBreakdown memory;
  for (const MemoryTerm& term : kMemoryTerms) {
    memory.*term.bytes = number_at(plan, {"best", "memory_gib", term.name}) * kGiB;
  }
  memory.capacity = number_at(plan, {"best", "memory_gib", "capacity"}) * kGiB;
  return memory;
}

}  // namespace

MemoryTerms make_memory_terms(const RunFacts& facts) {
  MemoryTerms memory;
  memory.predicted = predicted_of(facts);
  for (const RankFacts& rank : facts.ranks) {
    if (rank.peak_bytes <= 0.0 && rank.allocated_bytes <= 0.0) continue;
    const double growth = rank.first_allocated_bytes > 0.0 ? rank.allocated_bytes - rank.first_allocated_bytes : 0.0;
    memory.ranks.push_back({rank.rank, stage_of(facts, rank.rank), rank.peak_bytes, rank.allocated_bytes, growth});
    memory.peak_bytes = std::max(memory.peak_bytes, rank.peak_bytes);
  }
  return memory;
}

json to_json(const MemoryTerms& memory) {
  json predicted;
  if (memory.predicted) {
    for (const MemoryTerm& term : kMemoryTerms) {
      predicted[std::string(term.name) + "_bytes"] = (*memory.predicted).*term.bytes;
    }
    predicted["total_bytes"] = memory.predicted->total();
    predicted["snapshots_bytes"] = memory.predicted->snapshots;
  }
  json ranks = json::array();
  for (const MemoryOfRank& rank : memory.ranks) {
    ranks.push_back({{"rank", rank.rank},
                     {"stage", rank.stage},
                     {"peak_bytes", positive_or_null(rank.peak_bytes)},
                     {"allocated_bytes", positive_or_null(rank.allocated_bytes)},
                     {"growth_bytes", rank.allocated_bytes > 0.0 ? json(rank.growth_bytes) : json()}});
  }
  return {{"schema", "lockstep.memory/1"},
          {"predicted", predicted},
          {"capacity_bytes", positive_or_null(memory.capacity_bytes())},
          {"peak_bytes", positive_or_null(memory.peak_bytes)},
          {"ranks", ranks}};
}

}  // namespace lockstep::report
