// Stalls: on some clusters a part of the runs is slowed down by a mechanism that no bandwidth explains. On the H100
// grid a slot of a pipeline then takes about one second, whatever it computes, and so does a micro-batch whose
// tensor-parallel ranks sit on several nodes; nearly all runs on 512 GPUs do. A profile may hold what its stack's runs
// say of that: how likely a layout is to be hit, and what a slot then takes. Where it says nothing, no layout stalls.
// Pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "lockstep/plan/layout.h"

namespace lockstep::cost {

// What the logistic regression of a stall, and the regression of the logarithm of its seconds, multiply their
// coefficients with. Names are those of profile files.
inline constexpr std::array kStallTerms{"base",         "pipeline",       "nodes",  "nodes_squared",
                                        "tensor_nodes", "whole_gradient", "stages", "micro_batches"};
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

// Of a layout of `accumulation` micro-batches on nodes of so many devices.
StallTerms stall_terms(const plan::Layout& layout, std::int64_t accumulation, std::int64_t devices_per_node);

// Slots of a step: micro-batches that pass the last stage, and those that fill the pipeline before.
std::int64_t step_slots(const plan::Layout& layout, std::int64_t accumulation);

struct Stall {
  double probability = 0;
  double seconds = 0;  // that a step takes longer where it is hit
};
Stall stall_of(const Stalls& stalls, const plan::Layout& layout, std::int64_t accumulation,
               std::int64_t devices_per_node);

// What the mean rate of ordinary and stalled steps adds to an ordinary step: work / (mean work per second) - ordinary.
double expected_stall_seconds(const Stall& stall, double ordinary_seconds);

// The mechanism of the likely stall in words, for sentences: "pipelines over many nodes", ...
std::string stall_mechanism(const plan::Layout& layout, std::int64_t devices_per_node);

}  // namespace lockstep::cost
