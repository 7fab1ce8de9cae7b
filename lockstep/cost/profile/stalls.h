// Stalls: on some clusters a part of the runs is slowed down by a mechanism that no bandwidth explains. On the H100
// grid a slot of a pipeline then takes about one second, whatever it computes; most runs on 512 GPUs do, pipelines
// whose tensor-parallel ranks sit on several nodes, and those that fill the memory, whose allocator frees and tries
// again. A profile may hold what its stack's runs say of that: how likely a layout is to be hit, and what a slot then
// takes. Where it says nothing, no layout stalls. Pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "lockstep/plan/layout.h"

namespace lockstep::cost {

// What the logistic regression of a stall, and the regression of the logarithm of its seconds, multiply their
// coefficients with. Names are those of profile files. Logarithms are binary:
//   nodes_cubed                    of the number of nodes, to the third power, over six
//   tensor_nodes                   of the nodes under a tensor-parallel group, in a pipeline
//   whole_gradient, whole_ranks, whole_ranks_squared
//                                  1, the logarithm of the data-parallel ranks and its square, where a pipeline reduces
//                                  whole gradients (no ZeRO)
//   stages                         of the pipeline's stages
//   fill                           tenths of the device's memory beyond eight that would be allocated
inline constexpr std::array kStallTerms{"base",        "nodes_cubed",         "tensor_nodes", "whole_gradient",
                                        "whole_ranks", "whole_ranks_squared", "stages",       "fill"};
using StallTerms = std::array<double, kStallTerms.size()>;

struct Stalls {
  std::int64_t runs = 0;     // that were looked at; 0: nothing is known, nothing stalls
  std::int64_t stalled = 0;  // of them
  StallTerms odds{};         // of the logarithm of the odds
  StallTerms seconds{};      // of the logarithm of what a slot takes longer
  bool operator==(const Stalls&) const = default;
};

// Every layout stalls: what is known of a run that did.
Stalls certain_stall();

// Of a layout on nodes of so many devices, whose memory it would fill to that share.
StallTerms stall_terms(const plan::Layout& layout, std::int64_t devices_per_node, double fill);

// Slots of a step: micro-batches that pass the last stage, and those that fill the pipeline before.
std::int64_t step_slots(const plan::Layout& layout, std::int64_t accumulation);

struct Stall {
  double probability = 0;
  double seconds = 0;  // that a step takes longer where it is hit
};
Stall stall_of(const Stalls& stalls, const plan::Layout& layout, std::int64_t accumulation,
               std::int64_t devices_per_node, double fill);

// What the mean rate of ordinary and stalled steps adds to an ordinary step: work / (mean work per second) - ordinary.
double expected_stall_seconds(const Stall& stall, double ordinary_seconds);

// The mechanism of a likely stall in words, for sentences: "a pipeline whose hosts wait for each other", ...
std::string stall_mechanism(const plan::Layout& layout, std::int64_t devices_per_node, double fill);

}  // namespace lockstep::cost
