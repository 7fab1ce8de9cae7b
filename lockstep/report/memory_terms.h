// Memory by term: what the plan says a rank holds, beside what the ranks held.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "lockstep/plan/plan.h"
#include "lockstep/report/run_facts.h"

namespace lockstep::report {

struct MemoryOfRank {
  int rank = 0;
  std::int64_t stage = 0;        // of the pipeline
  double peak_bytes = 0.0;       // 0: not recorded
  double allocated_bytes = 0.0;  // after its last step
  double growth_bytes = 0.0;     // of allocated bytes since warm-up
};

struct MemoryTerms {
  std::optional<plan::MemoryBreakdown> predicted;  // of the rank that holds most
  std::vector<MemoryOfRank> ranks;                 // those that recorded memory
  double peak_bytes = 0.0;                         // largest of the ranks

  double capacity_bytes() const { return predicted ? predicted->capacity : 0.0; }
};

// A term of the prediction by name, in the order of pages; what it means is plan::MemoryBreakdown's to say.
struct MemoryTerm {
  const char* name;
  double plan::MemoryBreakdown::*bytes;
};
inline constexpr MemoryTerm kMemoryTerms[] = {
    {"parameters", &plan::MemoryBreakdown::parameters}, {"gradients", &plan::MemoryBreakdown::gradients},
    {"optimizer", &plan::MemoryBreakdown::optimizer},   {"activations", &plan::MemoryBreakdown::activations},
    {"buffers", &plan::MemoryBreakdown::buffers},       {"overhead", &plan::MemoryBreakdown::overhead}};

MemoryTerms make_memory_terms(const RunFacts& facts);

nlohmann::json to_json(const MemoryTerms& memory);  // docs/reference/report.md

}  // namespace lockstep::report
