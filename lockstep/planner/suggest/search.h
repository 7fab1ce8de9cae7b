// The search of `suggest`: the planner's, over the layouts that a stack can run, within a bound on time.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "lockstep/planner/search/search.h"
#include "lockstep/planner/suggest/suggest.h"

namespace lockstep::planner {

struct StackSearch {
  SearchResult result;   // `best` is empty where nothing fits
  bool complete = true;  // every layout of the stack was priced
};

// `request` is complete() and unconstrained, but for a fixed micro-batch. Layouts of the stacks:
//   lockstep             every one
//   deepspeed            dp, or ZeRO 1-3 over all ranks; recompute none or full
//   torchrun, accelerate DDP, or FSDP: ZeRO 2 and 3 over all ranks or over each node; recompute none or full
// Spaces of more than some 2 x 10^4 candidates are searched in three stages: a survey of the axes under one schedule,
// the schedules of the most promising axes, everything else of the winner's axes.
StackSearch search_for(const SearchRequest& request, Stack stack);

// The smallest number of devices, the present one doubled and doubled again, on which something fits without offload;
// nullopt: not even on 1024 times as many. `grow` makes the cluster.
std::optional<std::int64_t> devices_that_fit(const SearchRequest& request, Stack stack,
                                             const std::function<spec::Cluster(std::int64_t devices)>& grow);

}  // namespace lockstep::planner
