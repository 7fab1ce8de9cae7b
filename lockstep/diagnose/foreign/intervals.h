// Sets of time: sorted intervals that neither touch nor overlap.
#pragma once

#include <vector>

#include "lockstep/diagnose/foreign/trace.h"

namespace lockstep::diagnose {

using Intervals = std::vector<Interval>;

Intervals union_of(Intervals any);                                   // sorts and joins
Intervals minus(const Intervals& from, const Intervals& taken);      // both joined
Intervals overlap(const Intervals& a, const Intervals& b);           // both joined
Intervals gaps_in(const Intervals& joined, const Interval& window);  // what is left of the window
std::int64_t total(const Intervals& joined);

}  // namespace lockstep::diagnose
