#include "lockstep/tune/space/components.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace lockstep::tune {
namespace {

constexpr double kRealPrecision = 1.0 / (1 << 20);  // of the whole range, where halving ends

struct Groups {
  std::vector<std::size_t> parent;
  explicit Groups(std::size_t count) : parent(count) { std::iota(parent.begin(), parent.end(), 0u); }
  std::size_t find(std::size_t i) {
    while (parent[i] != i) i = parent[i] = parent[parent[i]];
    return i;
  }
  void join(std::size_t a, std::size_t b) { parent[find(a)] = find(b); }
};

void sort_and_unite(std::vector<std::int32_t>& levels) {
  std::sort(levels.begin(), levels.end());
  levels.erase(std::unique(levels.begin(), levels.end()), levels.end());
}

// Whole numbers: fewest splits; the middle of reals.
double middle(const Domain& domain, BoxSearch::Interval interval) {
  const double half = interval.first + (interval.last - interval.first) / 2;
  return domain.real() ? half : std::floor(half);
}

}  // namespace

ActivityOrder order_by_activity(const std::vector<std::optional<Expression>>& whens) {
  ActivityOrder order;
  std::vector<int> state(whens.size(), 0);  // 1: being visited, 2: done
  const std::function<void(std::size_t)> visit = [&](std::size_t knob) {
    if (state[knob] == 2) return;
    if (state[knob] == 1) {
      if (!order.cycle) order.cycle = knob;
      return;
    }
    state[knob] = 1;
    if (whens[knob]) {
      for (const std::size_t other : whens[knob]->knobs()) visit(other);
    }
    state[knob] = 2;
    order.knobs.push_back(knob);
  };
  for (std::size_t knob = 0; knob < whens.size(); ++knob) visit(knob);
  return order;
}

std::vector<Component> find_components(const SpaceParts& parts, const std::vector<std::size_t>& order) {
  Groups groups(parts.domains.size());
  std::vector<bool> tied(parts.domains.size(), false);
  const auto join = [&](const std::vector<std::size_t>& knobs) {
    for (const std::size_t knob : knobs) {
      tied[knob] = true;
      groups.join(knob, knobs.front());
    }
  };
  for (const Expression& constraint : parts.constraints) join(constraint.knobs());
  for (std::size_t knob = 0; knob < parts.whens.size(); ++knob) {
    if (!parts.whens[knob]) continue;
    std::vector<std::size_t> together = parts.whens[knob]->knobs();
    together.push_back(knob);
    join(together);
  }
  std::vector<Component> components;
  std::vector<std::size_t> component_of(parts.domains.size(), parts.domains.size());
  for (const std::size_t knob : order) {
    std::size_t& index = component_of[groups.find(knob)];
    if (index == parts.domains.size()) {
      index = components.size();
      components.emplace_back();
    }
    Component& component = components[index];
    component.members.push_back(knob);
    component.tied = component.tied || tied[knob];
    component.has_reals = component.has_reals || parts.domains[knob].real();
  }
  for (std::size_t i = 0; i < parts.constraints.size(); ++i) {
    const std::vector<std::size_t>& knobs = parts.constraints[i].knobs();
    if (!knobs.empty()) components[component_of[groups.find(knobs.front())]].constraints.push_back(i);
  }
  return components;
}

bool holds(const SpaceParts& parts, const Component& component, std::span<const double> cells) {
  if (!component.tied) return true;
  std::vector<double> codes(parts.domains.size(), kMissing);
  for (const std::size_t knob : component.members) {
    if (!is_inactive(cells[knob])) codes[knob] = parts.domains[knob].code(cells[knob]);
  }
  for (const std::size_t knob : component.members) {
    const bool active = !parts.whens[knob] || parts.whens[knob]->truth(codes) == Truth::kTrue;
    if (active == is_inactive(cells[knob])) return false;
  }
  return std::none_of(component.constraints.begin(), component.constraints.end(), [&](std::size_t constraint) {
    return parts.constraints[constraint].truth(codes) == Truth::kFalse;
  });
}

BoxSearch::BoxSearch(const SpaceParts& parts, const Component& component)
    : parts_(parts), component_(component), used_(component.constraints.size()) {
  constraints_of_.resize(component.members.size());
  for (std::size_t i = 0; i < component.constraints.size(); ++i) {
    const std::vector<std::size_t>& knobs = parts.constraints[component.constraints[i]].knobs();
    for (std::size_t member = 0; member < component.members.size(); ++member) {
      if (std::binary_search(knobs.begin(), knobs.end(), component.members[member]))
        constraints_of_[member].push_back(i);
    }
  }
}

std::vector<BoxSearch::Interval> BoxSearch::whole_box() const {
  std::vector<Interval> box;
  for (const std::size_t knob : component_.members) {
    box.push_back({parts_.domains[knob].first_cell(), parts_.domains[knob].last_cell()});
  }
  return box;
}

bool BoxSearch::run(std::span<const Interval> box, std::uint64_t budget, const Visitor& visit) {
  box_.assign(box.begin(), box.end());
  ranges_.assign(parts_.domains.size(), {1, 0, true, false});
  codes_.assign(parts_.domains.size(), kMissing);
  cells_.assign(component_.members.size(), kInactive);
  for (std::size_t i = 0; i < component_.members.size(); ++i) {
    const std::size_t knob = component_.members[i];
    ranges_[knob] = parts_.domains[knob].codes(box_[i].first, box_[i].last);
    ranges_[knob].can_miss = parts_.whens[knob].has_value();
  }
  visit_ = &visit;
  budget_ = total_ = budget;
  stopped_ = spent_ = false;
  visit_member(0);
  return !spent_;
}

void BoxSearch::put(std::size_t index, double cell) {
  const std::size_t knob = component_.members[index];
  cells_[index] = cell;
  codes_[knob] = is_inactive(cell) ? kMissing : parts_.domains[knob].code(cell);
}

// Called when the range of member `index` has changed.
bool BoxSearch::can_hold(std::size_t index) {
  for (const std::size_t i : constraints_of_[index]) {
    if (i >= used_) break;
    const Expression& constraint = parts_.constraints[component_.constraints[i]];
    if (budget_ < constraint.nodes()) {
      spent_ = stopped_ = true;
      return false;
    }
    budget_ -= constraint.nodes();
    if (constraint.possible_truths(ranges_) == kCanBeFalse) return false;
  }
  return true;
}

void BoxSearch::visit_member(std::size_t index) {
  if (stopped_) return;
  if (index == component_.members.size()) {
    for (std::size_t i = 0; i < used_; ++i) {
      if (parts_.constraints[component_.constraints[i]].truth(codes_) == Truth::kFalse) return;
    }
    if (!(*visit_)(cells_)) stopped_ = true;
    return;
  }
  const std::size_t knob = component_.members[index];
  const CodeRange before = ranges_[knob];
  // The knobs of its condition are all decided by now.
  if (parts_.whens[knob] && parts_.whens[knob]->truth(codes_) != Truth::kTrue) {
    ranges_[knob] = {1, 0, true, false};
    put(index, kInactive);
    if (can_hold(index)) visit_member(index + 1);
  } else {
    visit_interval(index, box_[index]);
  }
  put(index, kInactive);
  ranges_[knob] = before;
}

void BoxSearch::visit_interval(std::size_t index, Interval interval) {
  if (stopped_) return;
  if (budget_ == 0) {
    spent_ = stopped_ = true;
    return;
  }
  --budget_;
  const std::size_t knob = component_.members[index];
  const Domain& domain = parts_.domains[knob];
  const double width = interval.last - interval.first;
  const bool small = domain.real() ? width <= kRealPrecision * (domain.last_cell() - domain.first_cell()) : width == 0;
  if (small) interval.first = interval.last = middle(domain, interval);
  ranges_[knob] = domain.codes(interval.first, interval.last);
  if (!can_hold(index)) return;
  if (small) {
    put(index, interval.first);
    visit_member(index + 1);
    return;
  }
  const double half = middle(domain, interval);
  Interval lower{interval.first, half};
  Interval upper{domain.real() ? half : half + 1, interval.last};
  const bool upper_first =
      random_ != nullptr ? ((*random_)() >> 63) != 0 : !preferred_.empty() && preferred_[knob] > half;  // false for NaN
  if (upper_first) std::swap(lower, upper);
  visit_interval(index, lower);
  visit_interval(index, upper);
}

static std::vector<std::int32_t> levels_that_occur(const Component& component, std::size_t member) {
  std::vector<std::int32_t> levels;
  for (std::size_t i = 0; i < component.count; ++i) {
    const std::int32_t level = component.combination(i)[member];
    if (level >= 0 && (levels.empty() || levels.back() != level)) levels.push_back(level);
    // Kept short on the way: combinations are many, levels are few.
    if (levels.size() > 4096 && levels.size() % 4096 == 1) sort_and_unite(levels);
  }
  sort_and_unite(levels);
  return levels;
}

// Levels that occur weigh what they cover of the logarithmic scale, up to halfway to their neighbours; 1 on the
// average. Where a constraint leaves 1, 2, 4, 8 they all weigh the same.
static std::vector<double> weights_by_ratio(const Domain& domain, const std::vector<std::int32_t>& levels) {
  const std::size_t count = levels.size();
  std::vector<double> weights(count, 1);
  if (count < 2) return weights;
  std::vector<double> at;
  for (const std::int32_t level : levels) at.push_back(std::log(domain.code(level)));
  const double first = at[1] - at[0];
  const double last = at[count - 1] - at[count - 2];
  const double all = at[count - 1] - at[0] + (first + last) / 2;
  for (std::size_t i = 0; i < count; ++i) {
    const double below = i > 0 ? at[i] - at[i - 1] : first;
    const double above = i + 1 < count ? at[i + 1] - at[i] : last;
    weights[i] = static_cast<double>(count) * (below + above) / 2 / all;
  }
  return weights;
}

static void weigh_combinations(const SpaceParts& parts, Component& component) {
  std::vector<double> weights(component.count, 1);
  for (std::size_t member = 0; member < component.members.size(); ++member) {
    const Domain& domain = parts.domains[component.members[member]];
    if (!domain.weighted()) continue;
    const std::vector<std::int32_t>& levels = component.possible[member];
    const std::vector<double> by_level = weights_by_ratio(domain, levels);
    for (std::size_t i = 0; i < component.count; ++i) {
      const std::int32_t level = component.combination(i)[member];
      if (level < 0) continue;
      const auto found = std::lower_bound(levels.begin(), levels.end(), level);
      weights[i] *= by_level[static_cast<std::size_t>(found - levels.begin())];
    }
  }
  const auto [least, most] = std::minmax_element(weights.begin(), weights.end());
  if (component.count == 0 || *most - *least < 1e-9 * *most) return;
  std::partial_sum(weights.begin(), weights.end(), weights.begin());
  component.cumulative = std::move(weights);
}

void list_combinations(const SpaceParts& parts, Component& component, SpaceBudget& budget) {
  if (!component.tied || component.has_reals) return;
  for (const std::size_t knob : component.members) {
    if (parts.domains[knob].levels() > std::numeric_limits<std::int32_t>::max()) return;
  }
  BoxSearch search(parts, component);
  bool too_many = false;
  const bool complete = search.run(search.whole_box(), budget.nodes / 4 * 3, [&](std::span<const double> cells) {
    too_many = component.count == kMostCombinations || budget.cells < cells.size();
    if (too_many) return false;
    ++component.count;
    budget.cells -= cells.size();
    for (const double cell : cells) {
      component.combinations.push_back(is_inactive(cell) ? -1 : static_cast<std::int32_t>(cell));
    }
    return true;
  });
  budget.nodes -= std::min(budget.nodes, search.spent());
  component.listed = complete && !too_many;
  if (!component.listed) {
    budget.cells += component.combinations.size();
    component.combinations = {};
    component.count = 0;
    return;
  }
  component.combinations.shrink_to_fit();
  for (std::size_t member = 0; member < component.members.size(); ++member) {
    component.possible.push_back(levels_that_occur(component, member));
  }
  weigh_combinations(parts, component);
}

}  // namespace lockstep::tune
