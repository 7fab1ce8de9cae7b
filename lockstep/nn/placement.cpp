#include "lockstep/nn/placement.h"

#include <algorithm>
#include <numeric>

#include "lockstep/base/error.h"
#include "lockstep/nn/random.h"

namespace lockstep::nn {
namespace {

std::int64_t product(const std::vector<std::int64_t>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>());
}

// Merges with the run before where both sides go on.
void append(std::vector<Run>& runs, const Run& run) {
  if (!runs.empty()) {
    Run& last = runs.back();
    if (last.local + last.count == run.local && last.whole + last.count == run.whole) {
      last.count += run.count;
      return;
    }
  }
  runs.push_back(run);
}

}  // namespace

std::vector<std::int64_t> Placement::local_sizes() const {
  std::vector<std::int64_t> sizes = whole;
  if (segments.empty()) return sizes;
  std::int64_t& cut = sizes.at(static_cast<std::size_t>(dim));
  cut = 0;
  for (const Segment& segment : segments) cut += segment.count;
  return sizes;
}

std::int64_t Placement::local_count() const { return product(local_sizes()); }
std::int64_t Placement::whole_count() const { return product(whole); }

std::vector<Run> runs_of(const Placement& placement, std::int64_t first, std::int64_t count) {
  std::vector<Run> runs;
  if (count == 0) return runs;
  if (placement.segments.empty()) return {{first, first, count}};
  const auto dim = static_cast<std::size_t>(placement.dim);
  const std::int64_t inner = std::accumulate(placement.whole.begin() + placement.dim + 1, placement.whole.end(),
                                             std::int64_t{1}, std::multiplies<>());
  const std::int64_t whole_row = placement.whole[dim] * inner;
  const std::int64_t local_row = placement.local_sizes()[dim] * inner;
  const std::int64_t end = first + count;
  LOCKSTEP_ASSERT(first >= 0 && end <= placement.local_count(), "elements of the local tensor");
  // Local memory is rows of segments; every segment of a row is one stretch of the whole tensor.
  for (std::int64_t row = first / local_row; row * local_row < end; ++row) {
    std::int64_t at = row * local_row;
    for (const Segment& segment : placement.segments) {
      const std::int64_t length = segment.count * inner;
      const std::int64_t from = std::max(at, first), to = std::min(at + length, end);
      if (from < to) append(runs, {from, row * whole_row + segment.first * inner + (from - at), to - from});
      at += length;
    }
  }
  return runs;
}

Segment share_of(std::int64_t total, std::int64_t rank, std::int64_t ranks) {
  const std::int64_t first = total * rank / ranks;
  return {first, total * (rank + 1) / ranks - first};
}

InitialValue constant_value(double value) {
  return [value](torch::Tensor& out, std::int64_t, std::uint64_t, const std::string&) { out.fill_(value); };
}

InitialValue normal_value(double mean, double std) {
  return [mean, std](torch::Tensor& out, std::int64_t first, std::uint64_t seed, const std::string& name) {
    fill_normal(out, mean, std, stream_key(seed, name), first);
  };
}

InitialValue uniform_value(double low, double high) {
  return [low, high](torch::Tensor& out, std::int64_t first, std::uint64_t seed, const std::string& name) {
    fill_uniform(out, low, high, stream_key(seed, name), first);
  };
}

}  // namespace lockstep::nn
