// Who can run a layout: what each training framework offers, in one table. A search for one of them leaves out the
// rest, a plan says which of them can run it, and a fitted profile is evidence for the one it was measured with alone.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/cost/profile/profile.h"
#include "lockstep/plan/layout.h"
#include "lockstep/spec/model.h"

namespace lockstep::planner {

struct Capabilities {
  std::string_view name;     // as --stack takes it
  std::string_view title;    // as a page says it
  std::array<bool, 4> zero;  // stages of sharded state
  bool some_of_data_ranks;   // state sharded over some of the data ranks, with replicas of the shards
  bool tensor, pipeline, context, expert;
  bool zero3_with_pipeline;  // ZeRO-2 and 3 inside a pipeline
  bool interleaved, zero_bubble;
  bool uneven_stages;            // any list of layers per stage
  bool selective;                // recompute of attention or of some operators alone; otherwise whole layers or nothing
  bool tensor_without_sequence;  // tensor parallelism without sequence parallelism
  bool ring, all_to_all;         // context parallelism by passing keys on, by exchanging heads (Ulysses)
  bool offload_optimizer, offload_parameters;
  bool images, state_space;  // convolutional networks; Mamba

  // Why it cannot run the layout, in a few words; nullopt: it can.
  std::optional<std::string> find_problem(const plan::Layout& layout, const spec::Model& model) const;
  // Of its axes, precision and offload alone, and of its pipeline alone.
  std::optional<std::string> find_mesh_problem(const plan::Layout& layout, const spec::Model& model) const;
  std::optional<std::string> find_pipeline_problem(const plan::Layout& layout) const;
};

std::span<const Capabilities> all_capabilities();
// By name; "" gives nullptr: any. Throws UserError (exit code 2) with the nearest name.
const Capabilities* find_capabilities(std::string_view name);

// Titles of those that can run a layout of the model, in the order of the table.
std::vector<std::string> who_can_run(const plan::Layout& layout, const spec::Model& model);

// The framework that a fitted profile's stack was ("H100-llm-foundry" is evidence of FSDP); nullptr: of none alone.
const Capabilities* framework_of(const cost::Fitted& fitted);

// The fitted profile of `device_kind` that has most runs of this framework; "": there is none, the generic one is used.
std::string evidence_for(const Capabilities& capabilities, const std::string& device_kind);

}  // namespace lockstep::planner
