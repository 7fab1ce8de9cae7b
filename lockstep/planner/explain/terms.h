// The words of an explanation: terms of time and memory by name, and one price against another in one phrase.
#pragma once

#include <optional>
#include <string>

#include "lockstep/planner/search/search.h"

namespace lockstep::planner {

// A term of a breakdown and how much it has.
struct Term {
  std::string name;
  double value = 0;   // seconds or bytes
  double before = 0;  // largest_loss(): the same term of the plan
};

// "activations", "optimizer state", ...
Term largest_memory_term(const plan::MemoryBreakdown& memory);

// The term in which `other` loses most against `plan`, named for the links it runs over ("tensor-parallel traffic over
// NVLink"); value is the seconds it takes in `other`.
Term largest_loss(const plan::TimeBreakdown& plan, const plan::TimeBreakdown& other, const plan::Layout& other_layout,
                  const spec::Cluster& cluster);

// The largest term that is not compute.
Term largest_exposed(const plan::TimeBreakdown& time, const plan::Layout& layout, const spec::Cluster& cluster);

// NVLink, PCIe, InfiniBand, ...
const char* link_name(spec::LinkKind kind);

// Whether a search with these constraints would take it.
bool is_feasible(const cost::Price& price, const Constraints& constraints);

// Dollars of one step: whole nodes, as money.h pays them. Device-seconds where the cluster has no prices.
double step_cost(const Ranked& ranked, const spec::Cluster& cluster);

// Whether the objective counts money.
bool is_about_money(Objective objective);

// The best of a search; none where nothing fits, nor can: a batch that does not divide, constraints that exclude all.
std::optional<Ranked> find_best(SearchRequest request);

// Whether they name every axis of the mesh, as constraints_of() does.
bool is_wholly_fixed(const Constraints& constraints);

// The axes and choices in which `other` differs from `layout`, with its values: "tp=8,recompute=full"; "" where they
// are the same. What follows from another difference (no schedule without a pipeline) is left out.
std::string layout_difference(const plan::Layout& layout, const plan::Layout& other);

// How `other` stands against `plan`, both for the same batch: "7.1% slower, tensor-parallel traffic over NVLink 310 ms
// of 2.10 s", "needs 91.2 GiB of 80.0 GiB, most of it activations (61.0 GiB)", "out of memory with a probability of
// 23%". Where the two competed, something faster also says why it lost all the same.
std::string describe_loss(const Ranked& plan, const Ranked& other, const SearchRequest& request, bool competed = true);

}  // namespace lockstep::planner
