#include "lockstep/plan/stage_layers.h"

#include "lockstep/plan/pipeline_schedule.h"

namespace lockstep::plan {

std::vector<std::int64_t> layers_by_position(const Layout& layout, std::int64_t layers) {
  std::vector<std::int64_t> result;
  for (std::int64_t i = 0; i < layout.pp * layout.virtual_stages; ++i) result.push_back(layers_at(layout, layers, i));
  return result;
}

}  // namespace lockstep::plan
