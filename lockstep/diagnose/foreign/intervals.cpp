#include "lockstep/diagnose/foreign/intervals.h"

#include <algorithm>

namespace lockstep::diagnose {

Intervals union_of(Intervals any) {
  const auto before = [](const Interval& a, const Interval& b) { return a.begin < b.begin; };
  if (!std::ranges::is_sorted(any, before)) std::ranges::sort(any, before);
  std::size_t kept = 0;
  for (const Interval& one : any) {
    if (one.end <= one.begin) continue;
    if (kept > 0 && one.begin <= any[kept - 1].end) {
      any[kept - 1].end = std::max(any[kept - 1].end, one.end);
    } else {
      any[kept++] = one;
    }
  }
  any.resize(kept);
  return any;
}

Intervals minus(const Intervals& from, const Intervals& taken) {
  Intervals left;
  auto cut = taken.begin();
  for (Interval one : from) {
    while (cut != taken.end() && cut->end <= one.begin) ++cut;
    for (auto next = cut; next != taken.end() && next->begin < one.end; ++next) {
      if (next->begin > one.begin) left.push_back({one.begin, next->begin});
      one.begin = std::max(one.begin, next->end);
    }
    if (one.begin < one.end) left.push_back(one);
  }
  return left;
}

Intervals overlap(const Intervals& a, const Intervals& b) {
  Intervals both;
  auto other = b.begin();
  for (const Interval& one : a) {
    while (other != b.end() && other->end <= one.begin) ++other;
    for (auto next = other; next != b.end() && next->begin < one.end; ++next) {
      both.push_back({std::max(one.begin, next->begin), std::min(one.end, next->end)});
    }
  }
  return both;
}

Intervals gaps_in(const Intervals& joined, const Interval& window) {
  return window.length() > 0 ? minus({window}, joined) : Intervals{};
}

std::int64_t total(const Intervals& joined) {
  std::int64_t sum = 0;
  for (const Interval& one : joined) sum += one.length();
  return sum;
}

}  // namespace lockstep::diagnose
