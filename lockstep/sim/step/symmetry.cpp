#include "lockstep/sim/step/symmetry.h"

#include <algorithm>
#include <string>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep::sim {
namespace {

// What meets each data rank, as text; alike ones have the same.
std::vector<std::string> marks_of(const RankMap& ranks, const Disturbances& disturbances) {
  std::vector<std::string> marks(static_cast<std::size_t>(ranks.layout.data_ranks()));
  const auto mark = [&](std::int64_t rank, char what, double value) {
    marks[static_cast<std::size_t>(ranks.data_rank_of(rank))] +=
        fmt::format("{}{}={};", what, ranks.stage_of(rank), value);
  };
  for (const auto& [rank, factor] : disturbances.slow_ranks) mark(rank, 'c', factor);
  for (const auto& [rank, seconds] : disturbances.loader_seconds) mark(rank, 'l', seconds);
  for (const auto& [node, share] : disturbances.slow_links) {
    const std::int64_t end = std::min((node + 1) * ranks.devices_per_node, ranks.layout.world());
    for (std::int64_t rank = node * ranks.devices_per_node; rank < end; ++rank) mark(rank, 'n', share);
  }
  if (disturbances.jitter > 0) {
    for (std::size_t i = 0; i < marks.size(); ++i) marks[i] += fmt::format("#{}", i);
  }
  return marks;
}

}  // namespace

Symmetry find_symmetry(const RankMap& ranks, const Disturbances& disturbances, std::int64_t coupled) {
  const std::int64_t data_ranks = ranks.layout.data_ranks();
  LOCKSTEP_ASSERT(coupled > 0 && data_ranks % coupled == 0, "blocks of equal size");
  const std::vector<std::string> marks = marks_of(ranks, disturbances);
  Symmetry symmetry;
  std::map<std::vector<std::string>, int> block_of;             // by the marks inside, sorted
  std::map<std::pair<int, std::string>, std::size_t> class_of;  // by block and own mark
  for (std::int64_t first = 0; first < data_ranks; first += coupled) {
    std::vector<std::string> inside(marks.begin() + first, marks.begin() + first + coupled);
    std::sort(inside.begin(), inside.end());
    const auto [block, is_new] = block_of.try_emplace(inside, static_cast<int>(symmetry.blocks.size()));
    if (is_new) symmetry.blocks.emplace_back();
    for (std::int64_t data_rank = first; data_rank < first + coupled; ++data_rank) {
      const auto [known, unseen] =
          class_of.try_emplace({block->second, marks[static_cast<std::size_t>(data_rank)]}, symmetry.classes.size());
      symmetry.class_of.push_back(static_cast<int>(known->second));
      if (!unseen) {
        ++symmetry.classes[known->second].members;
        continue;
      }
      symmetry.blocks[static_cast<std::size_t>(block->second)].push_back(static_cast<int>(symmetry.classes.size()));
      symmetry.classes.push_back({.data_rank = data_rank, .members = 1, .block = block->second});
    }
  }
  return symmetry;
}

}  // namespace lockstep::sim
