#include "lockstep/spec/presets.h"

namespace lockstep::spec {

const EmbeddedSpec* find_embedded(std::span<const EmbeddedSpec> specs, std::string_view name) {
  for (const EmbeddedSpec& spec : specs) {
    if (spec.name == name) return &spec;
  }
  return nullptr;
}

std::vector<std::string> embedded_names(std::span<const EmbeddedSpec> specs) {
  std::vector<std::string> names;
  for (const EmbeddedSpec& spec : specs) names.emplace_back(spec.name);
  return names;
}

}  // namespace lockstep::spec
