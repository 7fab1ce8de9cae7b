// The space of a search once more, written as plainly as it can be: every number for every axis, and the rules as
// written down. What Space enumerates and what search() finds are compared with it.
#pragma once

#include <functional>

#include "lockstep/planner/search/search.h"
#include "lockstep/planner/search/stage_split.h"

namespace lockstep::planner::testing {

using Visit = std::function<void(const plan::Layout&, const plan::BatchPlan&)>;

inline bool is_even_enough(const spec::Model& model, std::int64_t pp, std::int64_t virtual_stages) {
  const std::int64_t stages = pp * virtual_stages;
  if (model.layers % pp != 0 && (model.layers + 2) % pp != 0 && virtual_stages <= 16) return true;
  return model.layers % stages == 0 || (model.layers + 2) % stages == 0;
}

inline void visit_batches(const SearchRequest& request, const plan::Layout& layout, const Visit& visit) {
  for (std::int64_t micro = 1; micro <= request.global_sequences; ++micro) {
    if (request.global_sequences % (micro * layout.data_ranks()) != 0) continue;
    const std::int64_t accumulation = request.global_sequences / (micro * layout.data_ranks());
    if (layout.schedule == plan::Schedule::kInterleaved && accumulation % layout.pp != 0) continue;
    visit(layout, {.micro = micro,
                   .accumulation = accumulation,
                   .global_sequences = request.global_sequences,
                   .sequence_length = request.sequence_length});
  }
}

inline void visit_pipelines(const SearchRequest& request, plan::Layout layout, const Visit& visit) {
  for (int schedule = 0; schedule < 5; ++schedule) {
    layout.schedule = static_cast<plan::Schedule>(schedule);
    for (layout.virtual_stages = 1; layout.virtual_stages <= std::max<std::int64_t>(1, request.model.layers);
         ++layout.virtual_stages) {
      layout.stage_layers.clear();
      if (plan::find_layout_problem(layout, &request.model)) continue;
      const bool zero_bubble = layout.schedule == plan::Schedule::kZeroBubble;
      if (zero_bubble && layout.virtual_stages > 2) continue;
      if (layout.schedule == plan::Schedule::kInterleaved &&
          !is_even_enough(request.model, layout.pp, layout.virtual_stages)) {
        continue;
      }
      for (const auto& split : stage_splits(request.model, request.cluster, request.sequence_length, layout.world(),
                                            layout.pp, layout.virtual_stages, layout.schedule)) {
        layout.stage_layers = split;
        visit_batches(request, layout, visit);
      }
    }
  }
}

inline void visit_choices(const SearchRequest& request, plan::Layout layout, const Visit& visit) {
  for (const bool sequence_parallel : {false, true}) {
    layout.sequence_parallel = sequence_parallel;
    if (sequence_parallel && layout.tp == 1) continue;
    for (int exchange = 0; exchange < 2; ++exchange) {
      layout.context_exchange = static_cast<plan::ContextExchange>(exchange);
      if (exchange == 1 && request.model.heads == 0) continue;
      // A ring gives every rank an early and a late piece; a state-space model hands its state on from piece to piece.
      const bool two_each = layout.cp > 1 && exchange == 0 && request.model.arch != spec::Arch::kMamba;
      const std::int64_t pieces = (two_each ? 2 : 1) * layout.cp * (sequence_parallel ? layout.tp : 1);
      if (request.sequence_length % pieces != 0) continue;
      for (int recompute = 0; recompute < 3; ++recompute) {
        layout.recompute = static_cast<plan::Recompute>(recompute);
        visit_pipelines(request, layout, visit);
      }
    }
  }
}

// Every candidate of a complete() request without constraints, objectives or offload, on all devices.
inline void visit_naively(const SearchRequest& request, const Visit& visit) {
  const std::int64_t world = request.cluster.devices();
  plan::Layout layout;
  layout.precision = request.precisions.front();
  for (layout.pp = 1; layout.pp <= world; ++layout.pp) {
    if (layout.pp > 1 && request.model.is_image_model()) break;
    for (layout.dp = 1; layout.pp * layout.dp <= world; ++layout.dp) {
      for (layout.shard = 1; layout.pp * layout.dp * layout.shard <= world; ++layout.shard) {
        for (layout.cp = 1; layout.pp * layout.dp * layout.shard * layout.cp <= world; ++layout.cp) {
          if (world % (layout.pp * layout.dp * layout.shard * layout.cp) != 0) continue;
          if (layout.cp > 1 && request.sequence_length % layout.cp != 0) continue;
          layout.tp = world / (layout.pp * layout.dp * layout.shard * layout.cp);
          for (layout.zero = 0; layout.zero <= 3; ++layout.zero) {
            for (layout.ep = 1; layout.ep <= std::max<std::int64_t>(1, request.model.experts); ++layout.ep) {
              visit_choices(request, layout, visit);
            }
          }
        }
      }
    }
  }
}

}  // namespace lockstep::planner::testing
