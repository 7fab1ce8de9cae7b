#include "fuzz_one.h"
#include "lockstep/spec/model_reader.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lockstep;
  return fuzz::fuzz_one(data, size, [](std::string_view text) {
    const YamlNode root = parse_yaml(text, "fuzz.yaml");
    const spec::Model model = spec::read_model(root, "", "inline");
    fuzz::require(spec::parameter_count(model) > 0, "a model has parameters");
    const YamlNode stored = parse_yaml(spec::to_yaml(model), "stored.yaml");
    fuzz::require(spec::read_model(stored, "", "inline") == model, "a model that is read can be stored");
  });
}
