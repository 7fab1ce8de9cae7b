// A model of a given size: a preset that is called so, or a shape between two of them.
#pragma once

#include <string>

#include "lockstep/spec/model.h"

namespace lockstep::planner {

struct SizedModel {
  spec::Model model;
  bool interpolated = false;
  std::string reason;  // one line: which, and how far its count is from the one asked for
};

// A dense decoder preset whose name or count is within 3% of `parameters`; else a Llama whose depth and width lie on
// the line between its neighbours in log scale and whose count is within 2%. 1M to 10T; otherwise UserError (exit code
// 2).
SizedModel model_of_size(double parameters);

}  // namespace lockstep::planner
