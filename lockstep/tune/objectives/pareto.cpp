#include "lockstep/tune/objectives/pareto.h"

#include <algorithm>

namespace lockstep::tune {
namespace {

// Of the first `count` coordinates. `points` is changed.
double volume(std::vector<Scores>& points, const Scores& reference, std::size_t count) {
  const std::size_t last = count - 1;
  std::erase_if(points, [&](const Scores& point) {
    for (std::size_t i = 0; i < count; ++i)
      if (point[i] <= reference[i]) return true;
    return false;
  });
  if (points.empty()) return 0;
  std::sort(points.begin(), points.end(), [&](const Scores& a, const Scores& b) { return a[last] > b[last]; });
  if (count == 1) return points.front()[0] - reference[0];
  double sum = 0;
  if (count == 2) {  // a staircase
    double highest = reference[0];
    for (std::size_t i = 0; i < points.size(); ++i) {
      highest = std::max(highest, points[i][0]);
      const double below = i + 1 < points.size() ? points[i + 1][1] : reference[1];
      sum += (highest - reference[0]) * (points[i][1] - below);
    }
    return sum;
  }
  for (std::size_t i = 0; i < points.size(); ++i) {
    const double below = i + 1 < points.size() ? points[i + 1][last] : reference[last];
    if (points[i][last] <= below) continue;
    std::vector<Scores> slice(points.begin(), points.begin() + static_cast<std::ptrdiff_t>(i + 1));
    sum += volume(slice, reference, last) * (points[i][last] - below);
  }
  return sum;
}

}  // namespace

bool dominates(const Scores& a, const Scores& b) {
  bool better = false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] < b[i]) return false;
    better = better || a[i] > b[i];
  }
  return better;
}

std::vector<std::size_t> front_of(std::span<const Scores> points) {
  std::vector<std::size_t> front;
  for (std::size_t i = 0; i < points.size(); ++i) {
    bool beaten = false;
    for (std::size_t j = 0; j < points.size() && !beaten; ++j)
      beaten = dominates(points[j], points[i]) || (j < i && points[j] == points[i]);
    if (!beaten) front.push_back(i);
  }
  return front;
}

double hypervolume(std::span<const Scores> points, const Scores& reference) {
  std::vector<Scores> copy(points.begin(), points.end());
  return volume(copy, reference, reference.size());
}

double hypervolume_gain(std::span<const Scores> front, const Scores& point, const Scores& reference) {
  double alone = 1;
  for (std::size_t i = 0; i < reference.size(); ++i) alone *= std::max(0.0, point[i] - reference[i]);
  if (alone <= 0) return 0;
  // What the others already dominate of the box below the point.
  std::vector<Scores> within;
  for (const Scores& other : front) {
    Scores cut(other);
    for (std::size_t i = 0; i < cut.size(); ++i) cut[i] = std::min(cut[i], point[i]);
    within.push_back(std::move(cut));
  }
  return std::max(0.0, alone - volume(within, reference, reference.size()));
}

}  // namespace lockstep::tune
