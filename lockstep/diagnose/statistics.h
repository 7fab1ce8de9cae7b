// What is usual among values of which some are not. Pure functions; values that are not finite are left out.
#pragma once

#include <span>
#include <vector>

namespace lockstep::diagnose {

// 0 of none.
double median(std::span<const double> values);
// As a standard deviation: 1.4826 times the median of the distances from the median; 0 of none.
double spread(std::span<const double> values);
double mean(std::span<const double> values);
// Mean without the highest `share` of the values (at least one of them where there are four or more): one hiccup in a
// short run is not what a step usually takes.
double trimmed_mean(std::span<const double> values, double share = 0.05);
// Share of the values that are above `limit`; 0 of none.
double share_above(std::span<const double> values, double limit);

// Whether the values lie above 0 beyond what they scatter by: most of them do, and their median is more than
// `deviations` standard errors of it.
bool is_clearly_positive(std::span<const double> values, double deviations = 4.0);

// Robust slope of values against their places 0, 1, ...: the median over all pairs (Theil 1950, Sen 1968).
double slope(std::span<const double> values);

}  // namespace lockstep::diagnose
