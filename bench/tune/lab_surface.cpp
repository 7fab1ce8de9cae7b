#include "bench/tune/lab_surface.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/format.h>

namespace lockstep::bench {
namespace {

constexpr int kFitDraws = 4000;
constexpr double kLimitSeconds = 180;
constexpr double kMedianSampleSeconds = 4;
constexpr int kSamplesOfTrial = 5;
constexpr double kEnumerable = 2e6;
constexpr std::uint64_t kFit = 0x6c616266, kAscent = 0x6c616261;

std::string device_message(double share_over) {
  return fmt::format(
      "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {:.2f} GiB. GPU 0 has a total capacity of 79.11 "
      "GiB of which {:.2f} MiB is free.",
      0.25 * std::ceil(1 + 8 * std::min(share_over, 1.0)), 100 + 800 * std::exp(-share_over));
}

double median_of(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + std::ssize(values) / 2);
  return values[values.size() / 2];
}

double quantile_of(std::vector<double> values, double share) {
  std::ranges::sort(values);
  return values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1))];
}

// Levels of knobs that became active are the first; of those that ceased to be, none.
void repair(const Surface& surface, Point& point) {
  for (std::size_t k = 0; k < point.size(); ++k) {
    if (!surface.is_active(k, point)) {
      point[k] = -1;
    } else if (point[k] < 0) {
      point[k] = 0;
    }
  }
}

class Ascent {
 public:
  explicit Ascent(const Surface& surface) : surface_(surface) {}
  double value(const Point& point) const { return surface_.at(point).throughput; }

  // Best level of one knob after the other, then of pairs, until nothing improves.
  double climb(Point& point) const {
    double best = value(point);
    while (improve_one(point, best) || improve_pair(point, best)) continue;
    return best;
  }

 private:
  bool improve_one(Point& point, double& best) const {
    bool improved = false;
    for (std::size_t k = 0; k < point.size(); ++k) {
      const int levels = static_cast<int>(surface_.knobs()[k].levels.size());
      for (int level = 0; level < levels && point[k] >= 0; ++level)
        improved |= try_level(point, best, k, level, k, level);
    }
    return improved;
  }

  bool improve_pair(Point& point, double& best) const {
    for (std::size_t a = 0; a < point.size(); ++a) {
      for (std::size_t b = a + 1; b < point.size(); ++b) {
        if (point[a] < 0) continue;
        bool improved = false;
        for (const int first : some_levels(a, point[a])) {
          for (const int second : some_levels(b, point[b])) improved |= try_level(point, best, a, first, b, second);
        }
        if (improved) return true;
      }
    }
    return false;
  }

  // All of few; of many those near and a coarse grid.
  std::vector<int> some_levels(std::size_t knob, int here) const {
    const int count = static_cast<int>(surface_.knobs()[knob].levels.size());
    std::vector<int> levels;
    for (int level = 0; level < count; ++level) {
      if (count <= 16 || std::abs(level - here) <= 2 || level % ((count + 11) / 12) == 0) levels.push_back(level);
    }
    return levels;
  }

  bool try_level(Point& point, double& best, std::size_t a, int first, std::size_t b, int second) const {
    Point other = point;
    other[a] = first;
    other[b] = second;
    repair(surface_, other);
    const double there = value(other);
    if (there <= best) return false;
    best = there;
    point = std::move(other);
    return true;
  }

  const Surface& surface_;
};

// Another combination in which `changed` knobs are drawn anew.
Point redrawn(const Surface& surface, Point point, int changed, Draws& draws) {
  for (; changed > 0; --changed) {
    const auto knob = static_cast<std::size_t>(draws.below(static_cast<int>(point.size())));
    if (point[knob] >= 0) point[knob] = draws.below(static_cast<int>(surface.knobs()[knob].levels.size()));
    repair(surface, point);
  }
  return point;
}

// A walk that accepts what is a little worse, ever less of it.
void wander(const Surface& surface, Point& point, Draws& draws) {
  constexpr int kSteps = 2500;
  double here = surface.at(point).throughput;
  for (int step = 0; step < kSteps; ++step) {
    Point other = redrawn(surface, point, 1 + draws.below(3), draws);
    const double there = surface.at(other).throughput;
    const double allowed = 0.08 * (1 - static_cast<double>(step) / kSteps) * draws.uniform(0, 1);
    if (there < here * (1 - allowed)) continue;
    here = there;
    point = std::move(other);
  }
}

// Walks from random draws, each followed by an ascent, and by ascents from kicks of the best that it has found.
SurfaceOptimum by_ascents(const Surface& surface) {
  constexpr int kStarts = 40, kKicks = 8;
  SurfaceOptimum optimum;
  Draws draws(key_of({kAscent, static_cast<std::uint64_t>(surface.instance())}));
  const Ascent ascent(surface);
  for (int start = 0; start < kStarts; ++start) {
    Point point = start == 0 ? surface.default_point() : surface.draw(draws, true);
    wander(surface, point, draws);
    double best = ascent.climb(point);
    for (int kick = 0; kick < kKicks; ++kick) {
      Point other = redrawn(surface, point, 2 + draws.below(4), draws);
      const double there = ascent.climb(other);
      if (there <= best) continue;
      best = there;
      point = other;
    }
    if (best > optimum.throughput) optimum = {.throughput = best, .point = point, .enumerated = false};
  }
  return optimum;
}

}  // namespace

LabSurface::LabSurface(std::string kind, int instance) : Surface(std::move(kind), instance) {
  if (instance % 2 == 1) keep_defaults_secret();
}

Surface::Prediction LabSurface::predict(PointView levels, bool as_believed) const {
  // Nobody has a model of these jobs.
  if (as_believed) return {.memory = 1};
  const Load it = load(levels);
  return {.step_seconds = it.step_seconds, .memory = it.device, .refused = !it.refused.empty()};
}

SurfaceTruth LabSurface::at(PointView levels) const {
  constexpr double kRefusalSeconds = 8, kCrashSeconds = 26;
  if (!obeys_rules(levels))
    return {.outcome = tune::Outcome::kInvalid,
            .message = "error: invalid configuration",
            .launch_seconds = kRefusalSeconds};
  const Load it = load(levels);
  if (!it.refused.empty()) {
    return {.outcome = tune::Outcome::kInvalid,
            .message = names_hidden() ? "error: invalid configuration" : it.refused,
            .launch_seconds = kRefusalSeconds};
  }
  if (it.device > device_capacity_) {
    return {.outcome = tune::Outcome::kOutOfMemory,
            .message = device_message(it.device / device_capacity_ - 1),
            .launch_seconds = kCrashSeconds};
  }
  if (it.host > host_capacity_) {
    return {
        .outcome = tune::Outcome::kOutOfMemory,
        .message = "RuntimeError: DataLoader worker is killed by signal: Killed. Out of host memory (cgroup oom-kill)",
        .launch_seconds = kCrashSeconds};
  }
  const double sample = sample_scale_ * (it.wall_seconds > 0 ? it.wall_seconds : it.step_seconds);
  SurfaceTruth truth{.sample_seconds = sample};
  if (truth.launch_seconds + kSamplesOfTrial * sample > kLimitSeconds) {
    return {.outcome = tune::Outcome::kTimeout,
            .message = fmt::format("timeout: not ready after {:.0f} s", kLimitSeconds),
            .launch_seconds = kLimitSeconds};
  }
  truth.throughput = throughput_scale_ / it.step_seconds;
  if (device_capacity_ < 1e300 && it.device > 0) truth.memory = it.device / device_capacity_;
  return truth;
}

void LabSurface::fit(double device_share, double host_share) {
  Draws random = draws(kFit);
  std::vector<Load> loads;
  std::vector<double> device, host, step, wall;
  for (int n = 0; n < kFitDraws; ++n) {
    const Load it = load(draw(random, true));
    if (!it.refused.empty()) continue;
    loads.push_back(it);
    device.push_back(it.device);
    host.push_back(it.host);
  }
  const Load at_default = load(default_point());
  device_capacity_ = std::max(quantile_of(device, 1 - device_share), 1.02 * at_default.device);
  host_capacity_ = std::max(quantile_of(host, 1 - host_share), 1.02 * at_default.host);
  for (const Load& it : loads) {
    if (it.device > device_capacity_ || it.host > host_capacity_) continue;
    step.push_back(it.step_seconds);
    wall.push_back(it.wall_seconds > 0 ? it.wall_seconds : it.step_seconds);
  }
  const double default_wall = at_default.wall_seconds > 0 ? at_default.wall_seconds : at_default.step_seconds;
  // The default has time for its samples, whatever the median of the others.
  sample_scale_ =
      std::min(kMedianSampleSeconds / median_of(wall), 0.8 * (kLimitSeconds - 20) / kSamplesOfTrial / default_wall);
  throughput_scale_ = median_of(step) * random.log_uniform(2e3, 2e5);
}

double LabSurface::number(PointView levels, int knob) const {
  const int level = levels[static_cast<std::size_t>(knob)];
  return level < 0 ? 0 : number_of(knobs()[static_cast<std::size_t>(knob)].levels[static_cast<std::size_t>(level)]);
}

SurfaceKnob choices_knob(std::string name, std::vector<tune::Value> levels, int default_level) {
  return {.name = std::move(name), .levels = std::move(levels), .default_level = default_level};
}

SurfaceKnob int_knob(std::string name, std::int64_t low, std::int64_t high, std::int64_t default_value) {
  return {.name = std::move(name),
          .levels = levels_between(low, high),
          .default_level = static_cast<int>(default_value - low),
          .written = SurfaceKnob::Written::kInt};
}

SurfaceKnob log_int_knob(std::string name, std::int64_t low, std::int64_t high, std::int64_t default_value) {
  SurfaceKnob knob = int_knob(std::move(name), low, high, default_value);
  knob.written = SurfaceKnob::Written::kLogInt;
  return knob;
}

SurfaceKnob only_when(SurfaceKnob knob, std::string when, int parent, std::vector<int> parent_levels) {
  knob.when = std::move(when);
  knob.parent = parent;
  knob.parent_levels = std::move(parent_levels);
  return knob;
}

std::vector<int> levels_from(int first, int count) {
  std::vector<int> levels(static_cast<std::size_t>(count));
  std::iota(levels.begin(), levels.end(), first);
  return levels;
}

SurfaceOptimum find_optimum(const Surface& surface) {
  if (surface.combinations() > kEnumerable) return by_ascents(surface);
  SurfaceOptimum optimum{.enumerated = true};
  surface.for_each([&](PointView point) {
    const double throughput = surface.at(point).throughput;
    if (throughput <= optimum.throughput) return;
    optimum.throughput = throughput;
    optimum.point.assign(point.begin(), point.end());
  });
  return optimum;
}

}  // namespace lockstep::bench
