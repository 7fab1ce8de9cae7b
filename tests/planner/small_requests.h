// Questions small enough to be answered by brute force.
#pragma once

#include <array>
#include <string>

#include "lockstep/base/units.h"
#include "lockstep/planner/search/search.h"

namespace lockstep::planner::testing {

inline SearchRequest request_of(const std::string& model, const std::string& cluster, std::int64_t batch = 0) {
  SearchRequest request;
  request.model = spec::load_model(model);
  request.cluster = spec::load_cluster(cluster);
  request.profile = cost::profile_for(request.cluster.groups.front().device.kind);
  request.global_sequences = batch;
  return request;
}

// `nodes` nodes of each kind, joined by 25 Gb/s.
inline spec::Cluster two_groups(const std::string& first, const std::string& second, std::int64_t nodes,
                                std::int64_t devices_per_node = 8) {
  spec::Cluster cluster =
      spec::load_cluster(std::to_string(nodes) + "x" + std::to_string(devices_per_node) + "x" + first);
  const spec::Cluster other =
      spec::load_cluster(std::to_string(nodes) + "x" + std::to_string(devices_per_node) + "x" + second);
  cluster.groups.push_back(other.groups.front());
  cluster.name = first + "+" + second;
  cluster.between_groups = {.kind = spec::LinkKind::kEthernet, .bytes_per_second = 25e9 / 8, .latency_seconds = 20e-6};
  return cluster;
}

struct SmallCase {
  const char* name;
  const char* model;
  std::int64_t layers;  // the preset's cut to this many
  const char* cluster;  // or two kinds joined by +
  double memory_gib;    // of a device: small enough that not everything fits
  std::int64_t batch;
  std::int64_t sequence;
};

inline constexpr std::array<SmallCase, 9> kSmallCases{{
    {"gpt", "gpt2-124m", 12, "1x8xH100", 4, 16, 1024},
    {"llama_across_nodes", "llama2-7b", 6, "2x4xH100", 24, 24, 2048},
    {"odd_counts", "gpt2-355m", 9, "2x6xA100", 8, 36, 512},
    {"long_sequences", "llama3-8b", 4, "1x8xH100", 40, 8, 32768},
    {"experts", "mixtral-8x7b", 4, "2x4xH100", 40, 16, 2048},
    {"state_space", "mamba-130m", 8, "1x8xA100", 4, 16, 1024},
    {"encoder", "bert-large", 10, "2x4xV100", 6, 32, 512},
    {"images", "resnet50", 0, "2x4xA100", 6, 4096, 0},
    {"unlike_groups", "llama2-7b", 8, "H100+A100", 24, 16, 2048},
}};

inline SearchRequest small_request(const SmallCase& small) {
  const std::string cluster = small.cluster;
  const std::size_t plus = cluster.find('+');
  SearchRequest request;
  request.model = spec::load_model(small.model);
  if (request.model.is_language_model()) request.model.layers = small.layers;
  request.cluster = plus == std::string::npos ? spec::load_cluster(cluster)
                                              : two_groups(cluster.substr(0, plus), cluster.substr(plus + 1), 1, 4);
  for (spec::NodeGroup& group : request.cluster.groups) group.device.memory_bytes = small.memory_gib * kGiB;
  if (plus != std::string::npos) request.cluster.groups.back().device.memory_bytes *= 0.75;
  request.profile = cost::profile_for(request.cluster.groups.front().device.kind);
  request.global_sequences = small.batch;
  request.sequence_length = small.sequence;
  return request;
}

}  // namespace lockstep::planner::testing
