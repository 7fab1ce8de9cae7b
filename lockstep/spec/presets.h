// The files of specs/, compiled into the library so that an installed lockstep needs no source tree.
// specs/ is the only copy; embed_specs.cmake writes the generated source into the build tree.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::spec {

struct EmbeddedSpec {
  std::string_view name;  // file stem: "gpt2-124m", "H100"
  std::string_view text;
};

// In the order of their file names.
std::span<const EmbeddedSpec> embedded_models();
std::span<const EmbeddedSpec> embedded_clusters();
std::span<const EmbeddedSpec> embedded_jobs();  // parse_job() reads them; relative paths in them are not resolved

std::span<const EmbeddedSpec> embedded_profiles();  // JSON; cost::find_profile() reads them
std::span<const EmbeddedSpec> embedded_spaces();    // tune::Space::load() reads them

const EmbeddedSpec* find_embedded(std::span<const EmbeddedSpec> specs, std::string_view name);
std::vector<std::string> embedded_names(std::span<const EmbeddedSpec> specs);

}  // namespace lockstep::spec
