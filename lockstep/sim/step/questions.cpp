#include "lockstep/sim/step/questions.h"

#include <cmath>
#include <functional>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"

namespace lockstep::sim {
namespace {

struct KeyValue {
  std::string key, value;
};

KeyValue key_value(const std::string& text, const SourcePlace& place, const char* example) {
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos) {
    throw bad_input(fmt::format("`{}` is not what=value", printable(text)), fmt::format("write {}", example), place);
  }
  return {std::string(trim(text.substr(0, equals))), std::string(trim(text.substr(equals + 1)))};
}

// "1.3x".
double parse_factor(const std::string& text, const SourcePlace& place) {
  if (text.empty() || text.back() != 'x') {
    throw bad_input(fmt::format("`{}` is no factor", printable(text)), "write it as 1.3x", place);
  }
  const double factor = parse_real(text.substr(0, text.size() - 1), place);
  if (!(factor > 0) || !std::isfinite(factor)) throw bad_input("a factor is above 0", "write it as 1.3x", place);
  return factor;
}

std::int64_t parse_place(const std::string& text, const char* what, std::int64_t count, const SourcePlace& place) {
  const std::int64_t number = parse_integer(text, place);
  if (number < 0 || number >= count) {
    throw bad_input(fmt::format("there is no {} {}", what, number), fmt::format("give 0 to {}", count - 1), place);
  }
  return number;
}

struct ClusterField {
  const char* name;
  const char* example;
  std::function<void(spec::Cluster& cluster, const std::string& value, const SourcePlace& place)> set;
};

template <class Set>
auto of_every_group(Set set) {
  return [set](spec::Cluster& cluster, const std::string& value, const SourcePlace& place) {
    for (spec::NodeGroup& group : cluster.groups) set(group, value, place);
  };
}

void set_peak(spec::NodeGroup& group, const std::string& value, const SourcePlace& place) {
  const double factor = parse_flops_per_second(value, place) / group.device.peak_bf16_flops;
  for (double* peak : {&group.device.peak_bf16_flops, &group.device.peak_fp32_flops, &group.device.peak_fp8_flops}) {
    *peak *= factor;
  }
}

const std::vector<ClusterField>& cluster_fields() {
  using spec::NodeGroup;
  using Text = const std::string&;
  using Place = const SourcePlace&;
  static const std::vector<ClusterField> kFields = {
      {"nic", "nic=800Gb/s", of_every_group([](NodeGroup& group, Text value, Place place) {
         group.nic.bytes_per_second = parse_bytes_per_second(value, place);
       })},
      {"nics", "nics=8", of_every_group([](NodeGroup& group, Text value, Place place) {
         group.nics_per_node = parse_integer(value, place);
         if (group.nics_per_node < 1) throw bad_input("a node has one NIC at least", "write nics=8", place);
       })},
      {"nvlink", "nvlink=1.8TB/s", of_every_group([](NodeGroup& group, Text value, Place place) {
         group.intra.bytes_per_second = parse_bytes_per_second(value, place);
       })},
      {"peak", "peak=2.25PFLOPS", of_every_group(set_peak)},
      {"memory", "memory=8TB/s", of_every_group([](NodeGroup& group, Text value, Place place) {
         group.device.memory_bytes_per_second = parse_bytes_per_second(value, place);
       })},
      {"storage", "storage=200GB/s", [](spec::Cluster& cluster, Text value, Place place) {
         cluster.storage.write_bytes_per_second = parse_bytes_per_second(value, place);
       }}};
  return kFields;
}

}  // namespace

void add_injection(const std::string& text, const RankMap& ranks, Disturbances& disturbances) {
  const SourcePlace place{.file = "--inject"};
  const auto [what, value] = key_value(text, place, "slow-rank=17,1.3x");
  const std::vector<std::string> parts = split(value, ',');
  if (parts.size() != 2) {
    throw bad_input(fmt::format("`{}` is not where,how much", printable(value)), "write slow-rank=17,1.3x", place);
  }
  const std::string where(trim(parts[0])), much(trim(parts[1]));
  const std::int64_t world = ranks.layout.world();
  const std::int64_t nodes = (world + ranks.devices_per_node - 1) / ranks.devices_per_node;
  if (what == "slow-rank") {
    disturbances.slow_ranks[parse_place(where, "rank", world, place)] = parse_factor(much, place);
  } else if (what == "slow-link") {
    disturbances.slow_links[parse_place(where, "node", nodes, place)] = parse_factor(much, place);
  } else if (what == "slow-loader") {
    const std::int64_t rank = parse_place(where, "rank", world, place);
    if (ranks.stage_of(rank) != 0) {
      throw bad_input(fmt::format("rank {} is on stage {}, which loads nothing", rank, ranks.stage_of(rank)),
                      fmt::format("give 0 to {}", world / ranks.layout.pp - 1), place);
    }
    disturbances.loader_seconds[rank] = parse_seconds(much, place);
  } else {
    throw bad_input(fmt::format("unknown disturbance `{}`", printable(what)),
                    did_you_mean(what, {"slow-rank", "slow-link", "slow-loader"}), place);
  }
}

void apply_what_if(const std::string& text, spec::Cluster& cluster) {
  const SourcePlace place{.file = "--what-if"};
  const auto [name, value] = key_value(text, place, "nic=800Gb/s");
  std::vector<std::string> names;
  for (const ClusterField& field : cluster_fields()) {
    names.emplace_back(field.name);
    if (name != field.name) continue;
    field.set(cluster, value, place);
    return;
  }
  throw bad_input(fmt::format("unknown field `{}`", printable(name)), did_you_mean(name, names), place);
}

}  // namespace lockstep::sim
