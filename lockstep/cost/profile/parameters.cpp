// The parameters of a profile that runs can move.
#include <algorithm>
#include <array>
#include <cmath>

#include "lockstep/cost/profile/posterior.h"

namespace lockstep::cost {
namespace {

// The allocator's reserve, by which memory that nvidia-smi shows exceeds what the framework allocated.
constexpr double kReserveSpread = 0.05;
constexpr double kLeastReserve = 1;
constexpr double kMostReserve = 1.5;

// What an offset of the framework's bytes is relative to, however few the profile has.
constexpr double kUsualFrameworkBytes = 1.5e9;

void scale_rates(std::vector<MatmulPoint>& points, double factor) {
  for (MatmulPoint& point : points) point.flops_per_second /= factor;
}

template <class Point>
void scale_passes(std::vector<Point>& points, double factor) {
  for (Point& point : points) {
    point.forward_seconds *= factor;
    point.backward_seconds *= factor;
  }
}

// 1 for messages whose time is latency, 0 for those whose time is bandwidth.
double latency_share(std::int64_t bytes) {
  constexpr double kSmall = 64.0 * 1024;
  return 1 / (1 + static_cast<double>(bytes) / kSmall);
}

// What the tables of a calibrated machine may be off by when whole runs are measured. The checks hold the ratio of
// whole steps to the sum of their parts: all parts together move by them.
struct TableFactor {
  const char* name;
  double spread;
  bool is_memory;
  void (*apply)(Profile& profile, double factor);
};
constexpr std::array<TableFactor, 9> kTableFactors{{
    {"whole step", 0.10, false,
     [](Profile& p, double factor) {
       for (CalibrationCheck& check : p.checks) check.measured_seconds *= factor;
     }},
    {"products", 0.10, false, [](Profile& p, double factor) { scale_rates(p.matmuls, factor); }},
    {"attention", 0.10, false, [](Profile& p, double factor) { scale_passes(p.attention, factor); }},
    {"kernels", 0.15, false, [](Profile& p, double factor) { scale_passes(p.pointwise, factor); }},
    {"host", 0.20, false,
     [](Profile& p, double factor) {
       p.operator_seconds *= factor;
       p.backward_operator_seconds *= factor;
     }},
    {"optimizer", 0.20, false, [](Profile& p, double factor) { p.optimizer_bytes_per_second /= factor; }},
    {"collectives", 0.20, false,
     [](Profile& p, double factor) {
       for (CollectivePoint& point : p.collectives) point.seconds *= factor;
     }},
    {"small messages", 0.5, false,
     [](Profile& p, double factor) {
       for (CollectivePoint& point : p.collectives) point.seconds *= std::pow(factor, latency_share(point.bytes));
     }},
    {"framework bytes", 0.10, true, [](Profile& p, double factor) { p.framework_bytes *= factor; }},
}};

}  // namespace

std::vector<ProfileParameter> parameters_of(const Profile& profile) {
  std::vector<ProfileParameter> parameters;
  if (profile.fitted) {
    for (const ConstantInfo& info : constant_table()) {
      parameters.push_back({info.name, info.stack_spread, info.is_memory});
    }
    parameters.push_back({"reserve_factor", kReserveSpread, true});
  } else {
    for (const TableFactor& factor : kTableFactors)
      parameters.push_back({factor.name, factor.spread, factor.is_memory});
  }
  return parameters;
}

Profile moved(const Profile& profile, const std::vector<double>& offsets) {
  Profile result = profile;
  std::size_t next = 0;
  if (!profile.fitted) {
    for (const TableFactor& factor : kTableFactors) factor.apply(result, std::exp(offsets.at(next++)));
    return result;
  }
  Constants& constants = result.fitted->constants;
  const auto move = [&](double& value, double low, double high) {
    const double offset = offsets.at(next++);
    if (offset != 0) value = std::clamp(value * std::exp(offset), low, high);
  };
  for (const ConstantInfo& info : constant_table()) {
    if (info.member == &Constants::framework_bytes && offsets.at(next) != 0) {
      // Bytes that no formula sees are a sum of unlike things: a stack of few may turn out to have many.
      const double bytes = constants.framework_bytes + kUsualFrameworkBytes * (std::exp(offsets.at(next)) - 1);
      constants.framework_bytes = std::clamp(bytes, info.low, info.high);
      ++next;
      continue;
    }
    move(constants.*info.member, info.low, info.high);
  }
  move(constants.reserve_factor, kLeastReserve, kMostReserve);
  return result;
}

}  // namespace lockstep::cost
