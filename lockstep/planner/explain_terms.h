// The words of an explanation: terms of time and memory by name, and one price against another in one phrase.
#pragma once

#include <string>

#include "lockstep/planner/search.h"

namespace lockstep::planner {

// A term of a breakdown and how much it has.
struct Term {
  std::string name;
  double value = 0;  // seconds or bytes
};

// "activations", "optimizer state", ...
Term largest_memory_term(const plan::MemoryBreakdown& memory);

// The term in which `other` loses most against `plan`, named for the links it runs over ("tensor-parallel traffic over
// NVLink"); value is the seconds it takes in `other`.
Term largest_loss(const plan::TimeBreakdown& plan, const plan::TimeBreakdown& other, const plan::Layout& other_layout,
                  const spec::Cluster& cluster);

// The largest term that is no compute.
Term largest_exposed(const plan::TimeBreakdown& time, const plan::Layout& layout, const spec::Cluster& cluster);

// NVLink, PCIe, InfiniBand, ...
const char* link_name(spec::LinkKind kind);

// Whether a search with these constraints would take it.
bool is_feasible(const cost::Price& price, const Constraints& constraints);

// How `other` stands against `plan`, both for the same batch: "7.1% slower, tensor-parallel traffic over NVLink 310 ms
// of 2.10 s", "needs 91.2 GiB of 80.0 GiB, most of it activations (61.0 GiB)", "out of memory with a probability of
// 23%".
std::string describe_loss(const Ranked& plan, const Ranked& other, const SearchRequest& request);

}  // namespace lockstep::planner
