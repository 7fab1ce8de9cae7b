#include "lockstep/nn/moe_capacity.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "lockstep/base/error.h"

namespace lockstep::nn {
namespace {

struct Place {
  std::int32_t position;
  std::size_t rank;  // among the context-parallel ranks
  std::int64_t row;
};

std::vector<Place> places_in_order(std::span<const RankChoices> ranks) {
  std::vector<Place> places;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    LOCKSTEP_ASSERT(ranks[rank].samples == ranks[0].samples, "context-parallel ranks hold the same samples");
    for (std::int64_t row = 0; row < ranks[rank].rows; ++row) {
      places.push_back({ranks[rank].positions[row], rank, row});
    }
  }
  std::stable_sort(places.begin(), places.end(),
                   [](const Place& a, const Place& b) { return a.position < b.position; });
  return places;
}

}  // namespace

std::int64_t expert_capacity(double factor, std::int64_t tokens, std::int64_t choices, std::int64_t experts) {
  const double share = factor * static_cast<double>(tokens * choices) / static_cast<double>(experts);
  // 1.1 x 100 is a little more than 110 in floating point and must not become 111.
  return static_cast<std::int64_t>(std::ceil(share * (1.0 - 1e-12)));
}

void drop_over_capacity(std::vector<RankChoices>& ranks, std::int64_t cp, std::int64_t choices, std::int64_t experts,
                        std::int64_t capacity) {
  const auto width = static_cast<std::size_t>(cp);
  LOCKSTEP_ASSERT(ranks.size() % width == 0, "the ranks of a micro-step are whole context-parallel groups");
  std::vector<std::vector<Place>> places;
  for (std::size_t first = 0; first < ranks.size(); first += width) {
    places.push_back(places_in_order(std::span(ranks).subspan(first, width)));
  }
  std::vector<std::int64_t> taken(static_cast<std::size_t>(experts), 0);
  for (std::int64_t choice = 0; choice < choices; ++choice) {
    for (std::size_t group = 0; group < places.size(); ++group) {
      const std::span members = std::span(ranks).subspan(group * width, width);
      for (std::int64_t sample = 0; sample < members[0].samples; ++sample) {
        for (const Place& place : places[group]) {
          const RankChoices& member = members[place.rank];
          std::int32_t& expert = member.experts[(sample * member.rows + place.row) * choices + choice];
          LOCKSTEP_ASSERT(expert >= 0 && expert < experts, "a peer chose an expert that does not exist");
          std::int64_t& load = taken[static_cast<std::size_t>(expert)];
          if (load == capacity) {
            expert = kDropped;
          } else {
            ++load;
          }
        }
      }
    }
  }
}

}  // namespace lockstep::nn
