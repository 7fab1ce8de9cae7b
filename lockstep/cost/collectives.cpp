#include "lockstep/cost/collectives.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <vector>

namespace lockstep::cost {
namespace {

// The sweep to price from: the points of one op and group size, by rising message size.
struct Sweep {
  CollectiveOp op = CollectiveOp::kAllReduce;
  std::int64_t ranks = 0;
  std::vector<const CollectivePoint*> points;
};

// The wanted op when it was swept at all, else all-reduce; of its group sizes the nearest (on a log scale).
std::optional<Sweep> find_sweep(const Profile& profile, CollectiveOp wanted, std::int64_t ranks) {
  for (const CollectiveOp op : {wanted, CollectiveOp::kAllReduce}) {
    Sweep sweep{op, 0, {}};
    double best = 0;
    for (const CollectivePoint& point : profile.collectives) {
      if (point.op != op || point.ranks < 2) continue;
      const double distance = std::abs(std::log(static_cast<double>(point.ranks) / static_cast<double>(ranks)));
      if (sweep.ranks == 0 || distance < best) {
        sweep.ranks = point.ranks;
        best = distance;
      }
    }
    if (sweep.ranks == 0) continue;
    for (const CollectivePoint& point : profile.collectives) {
      if (point.op == op && point.ranks == sweep.ranks) sweep.points.push_back(&point);
    }
    std::sort(sweep.points.begin(), sweep.points.end(),
              [](const CollectivePoint* a, const CollectivePoint* b) { return a->bytes < b->bytes; });
    return sweep;
  }
  return std::nullopt;
}

// Straight line between neighbours on log-log scales. Below the sweep the time is the smallest message's (latency);
// above it grows with the bytes (bandwidth). A dip in the measurements is noise: a longer message never costs less.
double interpolate(const std::vector<const CollectivePoint*>& points, double bytes) {
  double seconds = points.front()->seconds;
  if (bytes <= static_cast<double>(points.front()->bytes)) return seconds;
  for (std::size_t i = 1; i < points.size(); ++i) {
    const double low_bytes = static_cast<double>(points[i - 1]->bytes);
    const double high_bytes = static_cast<double>(points[i]->bytes);
    const double high = std::max(seconds, points[i]->seconds);
    if (bytes <= high_bytes) {
      const double share =
          high_bytes > low_bytes ? std::log(bytes / low_bytes) / std::log(high_bytes / low_bytes) : 1.0;
      return seconds * std::pow(high / seconds, share);
    }
    seconds = high;
  }
  return seconds * bytes / static_cast<double>(points.back()->bytes);
}

}  // namespace

double ring_bytes_per_rank(CollectiveOp op, double bytes, std::int64_t ranks) {
  if (ranks <= 1) return 0;
  const double n = static_cast<double>(ranks);
  switch (op) {
    case CollectiveOp::kAllReduce:
      return 2 * (n - 1) / n * bytes;
    case CollectiveOp::kReduceScatter:
    case CollectiveOp::kAllGather:
    case CollectiveOp::kAllToAll:
      return (n - 1) / n * bytes;
    case CollectiveOp::kBroadcast:
    case CollectiveOp::kSendReceive:
      return bytes;
  }
  return 0;
}

std::int64_t ring_steps(CollectiveOp op, std::int64_t ranks) {
  if (ranks <= 1) return 0;
  if (op == CollectiveOp::kAllReduce) return 2 * (ranks - 1);
  return op == CollectiveOp::kSendReceive ? 1 : ranks - 1;
}

std::optional<double> collective_seconds(const Profile& profile, CollectiveOp op, double bytes, std::int64_t ranks) {
  if (ranks <= 1 || bytes <= 0) return 0.0;
  const auto sweep = find_sweep(profile, op, ranks);
  if (!sweep) return std::nullopt;
  if (sweep->op == op && sweep->ranks == ranks) return interpolate(sweep->points, bytes);
  // Another op or group size: the latency part scales with the steps of the ring, the rest with its volume.
  const double latency = sweep->points.front()->seconds;
  const double measured = interpolate(sweep->points, bytes);
  const double steps =
      static_cast<double>(ring_steps(op, ranks)) / static_cast<double>(ring_steps(sweep->op, sweep->ranks));
  const double volume = ring_bytes_per_rank(op, bytes, ranks) / ring_bytes_per_rank(sweep->op, bytes, sweep->ranks);
  return latency * steps + (measured - latency) * volume;
}

}  // namespace lockstep::cost
