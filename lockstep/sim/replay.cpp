#include "lockstep/sim/replay.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "lockstep/base/error.h"

namespace lockstep::sim {

std::size_t Replay::add() {
  group_.push_back(group_.size());
  return group_.size() - 1;
}

void Replay::after(std::size_t operation, std::size_t before) {
  LOCKSTEP_ASSERT(operation < size() && before < size(), "an operation that was not added");
  edges_.push_back({before, operation});
}

void Replay::together(std::size_t a, std::size_t b) {
  LOCKSTEP_ASSERT(a < size() && b < size(), "an operation that was not added");
  group_[root_of(a)] = root_of(b);
}

std::size_t Replay::root_of(std::size_t operation) const {
  while (group_[operation] != operation) {
    group_[operation] = group_[group_[operation]];
    operation = group_[operation];
  }
  return operation;
}

std::vector<std::vector<std::size_t>> Replay::groups() const {
  std::vector<std::vector<std::size_t>> members(size());
  for (std::size_t i = 0; i < size(); ++i) members[root_of(i)].push_back(i);
  std::erase_if(members, [](const auto& one) { return one.empty(); });
  return members;
}

std::vector<double> Replay::released(std::span<const double> ends, double from) const {
  LOCKSTEP_ASSERT(ends.size() == size(), "one end per operation");
  std::vector<double> last(size(), -std::numeric_limits<double>::infinity());
  for (const Edge& edge : edges_) last[edge.after] = std::max(last[edge.after], ends[edge.before]);
  for (double& time : last) {
    if (std::isinf(time)) time = from;
  }
  return last;
}

std::vector<double> Replay::ends(std::span<const double> seconds, std::span<const double> pauses) const {
  LOCKSTEP_ASSERT(seconds.size() == size(), "one duration per operation");
  LOCKSTEP_ASSERT(pauses.empty() || pauses.size() == size(), "one pause per operation");
  const auto pause = [&](std::size_t operation) { return pauses.empty() ? 0.0 : pauses[operation]; };
  const std::size_t count = size();
  // Of each group: its members; how many ends it still waits for; when it may begin. Of each operation: who waits for
  // it.
  std::vector<std::size_t> root(count), waits(count, 0), out_begin(count + 1, 0), member_begin(count + 1, 0);
  for (std::size_t i = 0; i < count; ++i) {
    root[i] = root_of(i);
    ++member_begin[root[i] + 1];
  }
  for (const Edge& edge : edges_) {
    ++out_begin[edge.before + 1];
    ++waits[root[edge.after]];
  }
  for (std::size_t i = 0; i < count; ++i) {
    out_begin[i + 1] += out_begin[i];
    member_begin[i + 1] += member_begin[i];
  }
  std::vector<std::size_t> out(edges_.size()), members(count);
  std::vector<std::size_t> out_at(out_begin.begin(), out_begin.end() - 1),
      member_at(member_begin.begin(), member_begin.end() - 1);
  for (const Edge& edge : edges_) out[out_at[edge.before]++] = edge.after;
  for (std::size_t i = 0; i < count; ++i) members[member_at[root[i]]++] = i;

  std::vector<double> begins(count, 0.0), end(count, 0.0);
  std::vector<std::size_t> ready;
  for (std::size_t i = 0; i < count; ++i) begins[root[i]] = std::max(begins[root[i]], pause(i));
  for (std::size_t i = 0; i < count; ++i) {
    if (root[i] == i && waits[i] == 0) ready.push_back(i);
  }
  std::size_t done = 0;
  while (!ready.empty()) {
    const std::size_t group = ready.back();
    ready.pop_back();
    for (std::size_t m = member_begin[group]; m < member_begin[group + 1]; ++m) {
      const std::size_t operation = members[m];
      end[operation] = begins[group] + seconds[operation];
      ++done;
      for (std::size_t o = out_begin[operation]; o < out_begin[operation + 1]; ++o) {
        const std::size_t next = root[out[o]];
        begins[next] = std::max(begins[next], end[operation] + pause(out[o]));
        if (--waits[next] == 0) ready.push_back(next);
      }
    }
  }
  if (done != count)
    throw bad_input("operations wait for each other in a circle", "the trace is not whole or not in order");
  return end;
}

double Replay::length(std::span<const double> seconds, std::span<const double> pauses) const {
  const std::vector<double> end = ends(seconds, pauses);
  return end.empty() ? 0.0 : *std::ranges::max_element(end);
}

}  // namespace lockstep::sim
