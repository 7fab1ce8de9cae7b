#include "lockstep/plan/stage_layers.h"

namespace lockstep::plan {

std::vector<std::int64_t> layers_by_position(const Layout& layout, std::int64_t layers) {
  if (!layout.stage_layers.empty()) return layout.stage_layers;
  const std::int64_t positions = layout.pp * layout.virtual_stages;
  std::vector<std::int64_t> result;
  for (std::int64_t i = 0; i < positions; ++i) result.push_back(layers / positions + (i < layers % positions ? 1 : 0));
  return result;
}

}  // namespace lockstep::plan
