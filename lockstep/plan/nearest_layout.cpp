#include "lockstep/plan/nearest_layout.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <tuple>
#include <vector>

namespace lockstep::plan {
namespace {

constexpr std::int64_t kMostRanks = 1 << 20;  // what one axis may have
constexpr std::array kMeshAxes{&Layout::pp, &Layout::dp, &Layout::shard, &Layout::cp, &Layout::tp};

std::vector<std::int64_t> divisors(std::int64_t number) {
  std::vector<std::int64_t> found;
  for (std::int64_t i = 1; i * i <= number; ++i) {
    if (number % i != 0) continue;
    found.push_back(i);
    if (i * i < number) found.push_back(number / i);
  }
  return found;
}

// Lexicographic: how many things change, by which factors, and then the simpler layout.
struct Distance {
  int changes = 0;
  double octaves = 0;
  std::int64_t minus_dp = 0;
  auto key() const { return std::tuple(changes, std::round(octaves * 1e6), minus_dp); }
  bool operator<(const Distance& other) const { return key() < other.key(); }

  void add(std::int64_t wanted, std::int64_t value) {
    if (wanted == value) return;
    ++changes;
    octaves += std::abs(std::log2(static_cast<double>(value) / static_cast<double>(std::max<std::int64_t>(1, wanted))));
  }
  void add(bool differs) { changes += differs ? 1 : 0; }
};

Distance distance_of_mesh(const Layout& wanted, const Layout& layout) {
  Distance distance;
  for (const auto axis : kMeshAxes) distance.add(wanted.*axis, layout.*axis);
  return distance;
}

Distance distance(const Layout& wanted, const Layout& layout) {
  Distance sum;
  for (const LayoutField& field : layout_fields()) {
    const std::int64_t from_one = 1 - field.key->least;  // ZeRO's stages count from 0
    if (field.is_axis()) {
      sum.add(field.get(wanted) + from_one, field.get(layout) + from_one);
    } else {
      sum.add(field.get(wanted) != field.get(layout));
    }
  }
  sum.add(wanted.stage_layers != layout.stage_layers);
  sum.minus_dp = -layout.dp;
  return sum;
}

class NearestSearch {
 public:
  NearestSearch(const Layout& wanted, const spec::Model& model, std::int64_t ranks,
                const std::function<bool(const Layout&)>& works)
      : wanted_(wanted),
        model_(model),
        works_(works),
        expert_splits_(divisors(std::max<std::int64_t>(1, model.experts))) {
    Layout mesh = wanted;
    try_axes(mesh, 0, ranks);
  }

  std::optional<Layout> best() const { return best_; }

 private:
  // Every way to write the ranks that are left as a product of the axes that are left.
  void try_axes(Layout& mesh, std::size_t axis, std::int64_t ranks) {
    if (axis + 1 == kMeshAxes.size()) {
      mesh.*kMeshAxes[axis] = ranks;
      try_mesh(mesh);
      return;
    }
    for (const std::int64_t value : divisors(ranks)) {
      mesh.*kMeshAxes[axis] = value;
      try_axes(mesh, axis + 1, ranks / value);
    }
  }

  void try_mesh(Layout layout) {
    if (best_ && best_distance_.changes < distance_of_mesh(wanted_, layout).changes) return;
    layout.sequence_parallel = wanted_.sequence_parallel && layout.tp > 1;
    const bool exchanges = layout.cp > 1 && can_exchange_heads(layout, model_);
    layout.context_exchange = exchanges ? wanted_.context_exchange : ContextExchange::kRing;
    for (const Layout& pipeline : pipelines(layout)) {
      layout = pipeline;
      for (layout.zero = 0; layout.zero <= 3; ++layout.zero) {
        for (const std::int64_t ep : expert_splits_) {
          layout.ep = ep;
          consider(layout);
        }
      }
    }
  }

  // The wanted pipeline, with fewer chunks, without its uneven stages, and the usual one.
  std::vector<Layout> pipelines(Layout layout) const {
    std::vector<Layout> found;
    layout.stage_layers.clear();
    if (layout.pp == 1) {
      layout.schedule = Schedule::kNone;
      layout.virtual_stages = 1;
      return {layout};
    }
    const std::int64_t most =
        std::clamp<std::int64_t>(wanted_.virtual_stages, 1, std::max<std::int64_t>(1, model_.layers));
    for (layout.virtual_stages = most; layout.virtual_stages >= 1; --layout.virtual_stages) {
      layout.schedule = wanted_.schedule;
      found.push_back(layout);
      layout.schedule = layout.virtual_stages > 1 ? Schedule::kInterleaved : Schedule::kOneForwardOneBackward;
      found.push_back(layout);
    }
    Layout uneven = layout;
    uneven.schedule = wanted_.schedule;
    uneven.virtual_stages = wanted_.virtual_stages;
    uneven.stage_layers = wanted_.stage_layers;
    found.push_back(std::move(uneven));
    return found;
  }

  void consider(const Layout& layout) {
    const Distance here = distance(wanted_, layout);
    if (best_ && !(here < best_distance_)) return;
    if (find_layout_problem(layout, &model_) || (works_ && !works_(layout))) return;
    best_ = layout;
    best_distance_ = here;
  }

  const Layout& wanted_;
  const spec::Model& model_;
  const std::function<bool(const Layout&)>& works_;
  std::vector<std::int64_t> expert_splits_;
  std::optional<Layout> best_;
  Distance best_distance_;
};

}  // namespace

std::optional<Layout> nearest_valid_layout(const Layout& wanted, const spec::Model& model, std::int64_t ranks,
                                           const std::function<bool(const Layout&)>& works) {
  if (ranks < 1 || ranks > kMostRanks) return std::nullopt;
  return NearestSearch(wanted, model, ranks, works).best();
}

}  // namespace lockstep::plan
