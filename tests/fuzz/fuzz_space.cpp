#include "fuzz_one.h"
#include "lockstep/tune/space/space.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lockstep;
  return fuzz::fuzz_one(data, size, [](std::string_view text) {
    const tune::Space space = tune::Space::parse(std::string(text), "fuzz.yaml");
    const tune::Config& defaults = space.default_config();
    fuzz::require(space.is_valid(defaults), "the default configuration is valid");
    fuzz::require(space.from_json(space.to_json(defaults), "fuzz.json") == defaults, "a configuration survives JSON");
    tune::Random random(size_t{7});
    for (int i = 0; i < 3; ++i) {
      const tune::Config config = space.sample(random);
      fuzz::require(space.is_valid(config), "a sample is valid");
      for (const tune::Config& neighbour : space.neighbours(config)) {
        fuzz::require(space.is_valid(neighbour) && !(neighbour == config), "a neighbour is valid and another");
      }
      const auto back = space.set_back(config, static_cast<std::size_t>(i) % space.size());
      fuzz::require(!back || space.is_valid(*back), "a set-back is valid");
    }
    const tune::Space again = tune::Space::parse(space.to_yaml(), "stored.yaml");
    fuzz::require(again.to_yaml() == space.to_yaml(), "a space that is read can be stored");
    fuzz::require(again.default_config() == defaults, "with the same default configuration");
  });
}
