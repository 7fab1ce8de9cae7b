#include "fuzz_one.h"
#include "lockstep/spec/cluster_reader.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lockstep;
  return fuzz::fuzz_one(data, size, [](std::string_view text) {
    const YamlNode root = parse_yaml(text, "fuzz.yaml");
    const spec::Cluster cluster = spec::read_cluster(root, "", "inline");
    fuzz::require(cluster.devices() > 0, "a cluster has devices");
    const YamlNode stored = parse_yaml(spec::to_yaml(cluster), "stored.yaml");
    fuzz::require(spec::read_cluster(stored, "", "inline") == cluster, "a cluster that is read can be stored");
  });
}
