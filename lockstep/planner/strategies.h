// The strategies people know by name, each at its best on one job: what a plan is compared with when somebody asks why
// it is not plain FSDP.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/planner/search/search.h"

namespace lockstep::planner {

struct Strategy {
  std::string name;                     // "data parallel", "FSDP", ...
  std::string meaning;                  // one phrase for readers who do not know the name
  std::optional<plan::Candidate> best;  // none: nothing of it fits, `problem` says why
  std::string problem;
  bool is_planned = false;           // the plan is of this strategy
  double gain = 0;                   // its throughput over that of the plan, less 1
  std::vector<std::string> runs_on;  // frameworks that can run it (capabilities.h)
  std::string loses_in;              // the term in which it loses most; "" where it does not lose
};

// Data parallel, sharded optimizer, FSDP, tensor parallel in every node, pipeline, and tensor parallel with a pipeline,
// without offload, for the model, cluster, batch and profile of `request`, whatever its constraints are. One search
// each (one per depth of pipeline and width of tensor parallelism).
std::vector<Strategy> compare_strategies(const SearchRequest& request, const plan::Candidate& planned);

// [{"name", "meaning", "fits", "problem", "is_planned", "gain", "loses_in", "layout", "micro", "per_second", "low",
//   "high", "memory_gib", "runs_on"}]; the five before the last null where nothing fits.
nlohmann::json to_json(const std::vector<Strategy>& strategies);

}  // namespace lockstep::planner
