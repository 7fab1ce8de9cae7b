// What low-rank adapters train, as numbers. Pure functions.
#pragma once

#include <algorithm>
#include <cstdint>

#include "lockstep/spec/job.h"
#include "lockstep/spec/model.h"

namespace lockstep::cost {

// About hidden in and hidden out for each target; an adapter is small beside the model whatever the details.
inline std::int64_t adapter_parameters(const spec::Lora& lora, const spec::Model& model) {
  return lora.rank * 2 * model.hidden * static_cast<std::int64_t>(lora.targets.size()) * model.layers;
}

// Share of the parameters that has gradients and optimizer state: 1 without adapters.
inline double trained_share(const spec::Lora& lora, const spec::Model& model) {
  if (lora.rank == 0) return 1;
  return std::min(1.0, static_cast<double>(adapter_parameters(lora, model)) /
                           static_cast<double>(std::max<std::int64_t>(1, spec::parameter_count(model))));
}

}  // namespace lockstep::cost
