// Pareto fronts as plain numbers: points whose coordinates are all better when larger.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace lockstep::tune {

using Scores = std::vector<double>;

// At least as good everywhere and better somewhere.
bool dominates(const Scores& a, const Scores& b);

// Positions of the points that no other dominates, in their order; of equal points the first.
std::vector<std::size_t> front_of(std::span<const Scores> points);

// Volume that the points dominate above `reference`; exact. By slices along the last coordinate (Knowles 2002), so for
// a few objectives and some tens of points.
double hypervolume(std::span<const Scores> points, const Scores& reference);

// What `point` adds to the volume of `front` (points that do not dominate each other).
double hypervolume_gain(std::span<const Scores> front, const Scores& point, const Scores& reference);

}  // namespace lockstep::tune
