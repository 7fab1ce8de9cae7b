#include "lockstep/cost/nccl_knobs.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include <fmt/format.h>

#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/cost/links.h"

namespace lockstep::cost {
namespace {

constexpr double kUsualThreads = 512;
constexpr double kUsualChannels = 24;
constexpr double kFullChannels = 16;  // that fill the link
constexpr double kUsualBuffer = 4 * kMiB;
constexpr double kNvlsSpeedup = 1.3;
// Of an algorithm's launch, and of one hop inside a node and between nodes; Tree, Ring by LL, LL128, Simple.
constexpr double kMicro = 1e-6;
constexpr std::array<std::array<double, 3>, 2> kBase{{{6.8, 14.0, 8.4}, {6.6, 14.0, 8.4}}};
constexpr std::array<std::array<double, 3>, 2> kInside{{{0.6, 1.25, 4.0}, {0.6, 1.9, 3.4}}};
constexpr std::array<std::array<double, 3>, 2> kBetween{{{5.0, 8.5, 14.0}, {2.7, 4.0, 14.0}}};
constexpr double kNvlsLaunch = 23.0;

bool is_reduction(CollectiveOp op) { return op == CollectiveOp::kAllReduce; }

bool goes_through_algorithms(CollectiveOp op) {
  return op == CollectiveOp::kAllReduce || op == CollectiveOp::kAllGather || op == CollectiveOp::kReduceScatter ||
         op == CollectiveOp::kBroadcast;
}

bool offers(NcclAlgorithm algorithm, CollectiveOp op) {
  switch (algorithm) {
    case NcclAlgorithm::kTree:
    case NcclAlgorithm::kNvlsTree:
      return op == CollectiveOp::kAllReduce;
    case NcclAlgorithm::kNvls:
      return op != CollectiveOp::kBroadcast;
    default:
      return true;
  }
}

std::size_t column(NcclProtocol protocol) { return static_cast<std::size_t>(protocol) - 1; }

// Of the ring's bandwidth at Simple.
double bandwidth_share(NcclAlgorithm algorithm, NcclProtocol protocol, const GroupPlacement& group, CollectiveOp op) {
  const bool one_node = group.nodes <= 1;
  if (algorithm == NcclAlgorithm::kNvls) return is_reduction(op) ? (one_node ? kNvlsSpeedup : 1.0) : 0.95;
  if (algorithm == NcclAlgorithm::kNvlsTree) return 1.1;
  if (algorithm == NcclAlgorithm::kTree) {
    const double tree = one_node ? 0.92 * 0.85 : 0.92;
    if (protocol == NcclProtocol::kLl) return tree / 3.8;
    if (protocol == NcclProtocol::kLl128) return tree * (one_node ? 7.0 / 9 : 120.0 / 128);
    return tree;
  }
  if (protocol == NcclProtocol::kLl) return one_node && !is_reduction(op) ? 1.0 / 3 : 1.0 / 4;
  if (protocol == NcclProtocol::kLl128) return group.per_node < 2 ? 0.7 : 0.92;
  return 1;
}

double latency_seconds(NcclAlgorithm algorithm, NcclProtocol protocol, const GroupPlacement& group, CollectiveOp op) {
  const double inside = static_cast<double>(group.per_node - 1);
  const double nodes = static_cast<double>(group.nodes);
  const double passes = is_reduction(op) ? 2 : 1;
  const double depth = std::log2(std::max(1.0, nodes));
  if (algorithm == NcclAlgorithm::kNvls || algorithm == NcclAlgorithm::kNvlsTree) {
    return kMicro * (kNvlsLaunch + 2 * depth * kBetween[0][2]);
  }
  const std::size_t row = algorithm == NcclAlgorithm::kTree ? 0 : 1;
  const std::size_t at = column(protocol);
  if (row == 0) return kMicro * (kBase[0][at] + 2 * (inside * kInside[0][at] + depth * kBetween[0][at]));
  const double steps = passes * static_cast<double>(group.ranks - 1);
  const double outside = nodes > 1 ? passes * nodes : 0;
  return kMicro * (kBase[1][at] + std::max(0.0, steps - outside) * kInside[1][at] + outside * kBetween[1][at]);
}

double saturating(double value, double half, double usual) { return value / (value + half) * (usual + half) / usual; }

// Of the bandwidth that the usual threads, buffers and channels reach.
double engine_share(const NcclKnobs& knobs, NcclProtocol protocol) {
  double share = 1;
  // LL128 has threads of its own (NCCL_LL128_NTHREADS).
  if (knobs.threads > 0 && protocol != NcclProtocol::kLl128) {
    share *= saturating(std::min<double>(knobs.threads, kUsualThreads), 64, kUsualThreads);
  }
  if (knobs.channels > 0) {
    const double channels = knobs.channels;
    share *= std::min(1.0, channels / kFullChannels);
    if (channels > kUsualChannels) share *= 1 - 0.01 * std::log2(channels / kUsualChannels);
  }
  if (knobs.buffer_bytes > 0 && protocol == NcclProtocol::kSimple) {
    share *= saturating(std::min(knobs.buffer_bytes, kUsualBuffer), 0.25 * kMiB, kUsualBuffer);
    // Longer slices wait longer for each other at the ends of a message.
    if (knobs.buffer_bytes > kUsualBuffer) share *= 1 - 0.005 * std::log2(knobs.buffer_bytes / kUsualBuffer);
  }
  return share;
}

double ring_volume(CollectiveOp op, double ranks) {
  if (op == CollectiveOp::kBroadcast) return 1;
  return (op == CollectiveOp::kAllReduce ? 2 : 1) * (ranks - 1) / ranks;
}

std::optional<double> number_of(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value > 0)) return std::nullopt;
  return value;
}

NcclAlgorithm algorithm_of(std::string_view value) {
  const std::string name = to_lower(trim(value));
  if (name == "ring") return NcclAlgorithm::kRing;
  if (name == "tree") return NcclAlgorithm::kTree;
  if (name == "nvls") return NcclAlgorithm::kNvls;
  if (name == "nvlstree") return NcclAlgorithm::kNvlsTree;
  return name.rfind("collnet", 0) == 0 || name == "pat" ? NcclAlgorithm::kOther : NcclAlgorithm::kAutomatic;
}

// "ring", or by collective: "ring;allreduce:tree".
void set_algorithms(NcclKnobs& knobs, std::string_view value) {
  knobs.algorithm = knobs.all_reduce = NcclAlgorithm::kAutomatic;
  for (const std::string& part : split(value, ';')) {
    const std::size_t colon = part.find(':');
    if (colon == std::string::npos) {
      knobs.algorithm = algorithm_of(part);
    } else if (to_lower(trim(part.substr(0, colon))) == "allreduce") {
      knobs.all_reduce = algorithm_of(std::string_view(part).substr(colon + 1));
    }
  }
}

NcclAlgorithm wanted_for(const NcclKnobs& knobs, CollectiveOp op) {
  if (op == CollectiveOp::kAllReduce && knobs.all_reduce != NcclAlgorithm::kAutomatic) return knobs.all_reduce;
  return offers(knobs.algorithm, op) ? knobs.algorithm : NcclAlgorithm::kRing;
}

NcclProtocol protocol_of(std::string_view value) {
  const std::string name = to_lower(std::string(value));
  if (name == "ll") return NcclProtocol::kLl;
  if (name == "ll128") return NcclProtocol::kLl128;
  return name == "simple" ? NcclProtocol::kSimple : NcclProtocol::kAutomatic;
}

// The fastest of what `knobs` leaves open.
double best_seconds(const NcclKnobs& knobs, const GroupPlacement& group, CollectiveOp op, double bytes, double bus,
                    bool has_nvls) {
  const NcclAlgorithm wanted = wanted_for(knobs, op);
  const double moved = bytes * ring_volume(op, static_cast<double>(group.ranks));
  double best = -1;
  for (const NcclAlgorithm algorithm :
       {NcclAlgorithm::kRing, NcclAlgorithm::kTree, NcclAlgorithm::kNvls, NcclAlgorithm::kNvlsTree}) {
    const bool open = wanted == NcclAlgorithm::kAutomatic || wanted == NcclAlgorithm::kOther;
    if (open ? !offers(algorithm, op) : algorithm != wanted) continue;
    const bool in_switch = algorithm == NcclAlgorithm::kNvls || algorithm == NcclAlgorithm::kNvlsTree;
    if (open && in_switch && (!has_nvls || (algorithm == NcclAlgorithm::kNvls) != (group.nodes <= 1))) continue;
    for (const NcclProtocol protocol : {NcclProtocol::kLl, NcclProtocol::kLl128, NcclProtocol::kSimple}) {
      if (in_switch && protocol != NcclProtocol::kSimple) continue;
      if (!in_switch && knobs.protocol != NcclProtocol::kAutomatic && protocol != knobs.protocol) continue;
      // A protocol that is set leaves NVLS out unless it is Simple.
      if (open && in_switch && knobs.protocol != NcclProtocol::kAutomatic && knobs.protocol != NcclProtocol::kSimple) {
        continue;
      }
      const double share = bandwidth_share(algorithm, protocol, group, op) * engine_share(knobs, protocol);
      const double seconds = latency_seconds(algorithm, protocol, group, op) + moved / (bus * share);
      if (best < 0 || seconds < best) best = seconds;
    }
  }
  return best;
}

}  // namespace

bool set_nccl_variable(NcclKnobs& knobs, std::string_view name, std::string_view value) {
  const double number = number_of(value).value_or(0);
  if (name == "NCCL_ALGO") {
    set_algorithms(knobs, value);
  } else if (name == "NCCL_PROTO") {
    knobs.protocol = protocol_of(value);
  } else if (name == "NCCL_NTHREADS") {
    knobs.threads = static_cast<std::int32_t>(std::min(number, 1024.0));
  } else if (name == "NCCL_BUFFSIZE") {
    knobs.buffer_bytes = number;
  } else if (name == "NCCL_MIN_NCHANNELS" || name == "NCCL_MIN_CTAS") {
    if (number > kUsualChannels) knobs.channels = static_cast<std::int32_t>(std::min(number, 64.0));
  } else if (name == "NCCL_MAX_NCHANNELS" || name == "NCCL_MAX_CTAS") {
    if (number > 0 && number < kUsualChannels) knobs.channels = static_cast<std::int32_t>(number);
  } else if (name == "NCCL_NCHANNELS") {
    knobs.channels = static_cast<std::int32_t>(std::min(number, 64.0));
  } else {
    return false;
  }
  return true;
}

std::optional<std::string> find_nccl_problem(const NcclKnobs& knobs, std::int64_t nodes, bool has_nvls) {
  const NcclAlgorithm wanted = wanted_for(knobs, CollectiveOp::kAllReduce);
  if (wanted != NcclAlgorithm::kNvls && wanted != NcclAlgorithm::kNvlsTree) return std::nullopt;
  const char* name = wanted == NcclAlgorithm::kNvls ? "NVLS" : "NVLSTree";
  if (!has_nvls) return fmt::format("NCCL_ALGO={}: these devices have no NVLink SHARP", name);
  if (knobs.protocol == NcclProtocol::kLl || knobs.protocol == NcclProtocol::kLl128) {
    return fmt::format("NCCL_ALGO={} runs with NCCL_PROTO=Simple alone", name);
  }
  if (wanted == NcclAlgorithm::kNvlsTree && nodes <= 1) return "NCCL_ALGO=NVLSTree needs several nodes";
  return std::nullopt;
}

double nccl_time_ratio(const NcclKnobs& knobs, const GroupPlacement& group, CollectiveOp op, double bytes, double bus,
                       bool has_nvls) {
  if (!knobs.is_set() || group.ranks <= 1 || bus <= 0 || !goes_through_algorithms(op)) return 1;
  return best_seconds(knobs, group, op, bytes, bus, has_nvls) / best_seconds({}, group, op, bytes, bus, has_nvls);
}

double nccl_contention(const NcclKnobs& knobs) {
  double factor = 1;
  if (knobs.channels > 0) factor *= static_cast<double>(knobs.channels) / kUsualChannels;
  if (wanted_for(knobs, CollectiveOp::kAllReduce) == NcclAlgorithm::kNvls)
    factor *= 0.5;  // the switch adds up, not the SMs
  return factor;
}

}  // namespace lockstep::cost
