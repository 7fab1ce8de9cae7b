// Neighbours, reverting a knob, and the repair of the defaults: the smallest valid change.
#include <algorithm>
#include <limits>
#include <set>

#include "lockstep/tune/space/impl.h"

namespace lockstep::tune {
namespace {

constexpr std::size_t kQuickScan = 4096;           // combinations that are quicker to go through than to search
constexpr std::uint64_t kNeighbourEffort = 4'000;  // constraint nodes, for one move
constexpr std::uint64_t kSetBackEffort = 2'000'000;
constexpr std::uint64_t kLastResortBudget = 2'000'000;
constexpr std::size_t kMostRepairs = 8;  // knobs whose default is tried to be kept where combinations are not listed

// Fewer changed knobs first, then the smaller distance.
struct MoveCost {
  double changes = std::numeric_limits<double>::infinity();
  double distance = 0;
  bool operator<(const MoveCost& other) const {
    return changes != other.changes ? changes < other.changes : distance < other.distance;
  }
};

// A knob that becomes active would best have its default; one that becomes inactive costs nothing.
void add_change(const Domain& domain, double from, double to, double weight, MoveCost& cost) {
  if (is_inactive(to) || same_cell(from, to)) return;
  if (is_inactive(from)) {
    cost.distance += domain.distance(domain.default_cell(), to);
  } else {
    cost.changes += weight;
    cost.distance += domain.distance(from, to);
  }
}

double cell_of_level(std::int32_t level) { return level < 0 ? kInactive : level; }

// The best of the listed combinations; `weights` by member. `pinned` limits them to one cell of one member.
struct Pin {
  std::size_t member = 0;
  double cell = 0;
};

std::optional<std::size_t> nearest_listed(const SpaceParts& parts, const Component& component,
                                          std::span<const double> cells, std::span<const double> weights,
                                          const std::optional<Pin>& pin) {
  MoveCost best;
  std::optional<std::size_t> found;
  for (std::size_t i = 0; i < component.count; ++i) {
    const auto levels = component.combination(i);
    if (pin && levels[pin->member] != pin->cell) continue;
    MoveCost cost{0, 0};
    for (std::size_t m = 0; m < levels.size() && cost.changes <= best.changes; ++m) {
      const std::size_t knob = component.members[m];
      add_change(parts.domains[knob], cells[knob], cell_of_level(levels[m]), weights[m], cost);
    }
    if (!(cost < best)) continue;
    best = cost;
    found = i;
  }
  return found;
}

// The search where combinations are not listed or too many to go through: first no other knob follows, then one, then
// two, then all may.
class FollowerSearch {
 public:
  FollowerSearch(const SpaceParts& parts, const Component& component, std::span<const double> cells, Pin pin)
      : parts_(parts), component_(component), cells_(cells), pin_(pin), search_(parts, component) {
    start_.assign(parts.domains.size(), kInactive);
    for (const std::size_t knob : component.members) {
      start_[knob] = is_inactive(cells[knob]) ? parts.domains[knob].default_cell() : cells[knob];
    }
    start_[component.members[pin.member]] = pin.cell;
    search_.prefer(start_);
  }

  std::optional<std::vector<double>> run(std::uint64_t effort) {
    effort_ = effort;
    attempt({});
    const std::size_t count = component_.members.size();
    for (std::size_t a = 0; a < count && !one_is_enough(); ++a) attempt({a});
    if (found_) return found_;
    for (std::size_t a = 0; a < count && effort_ > 0; ++a) {
      for (std::size_t b = a + 1; b < count && effort_ > 0; ++b) attempt({a, b});
    }
    return found_;
  }

  std::optional<std::vector<double>> run_all(std::uint64_t effort) {
    effort_ = effort;
    auto box = search_.whole_box();
    box[pin_.member] = {pin_.cell, pin_.cell};
    search_.run(box, effort_, [&](std::span<const double> by_member) {
      consider(by_member);
      return false;
    });
    return found_;
  }

 private:
  bool one_is_enough() const { return (found_ && best_.changes <= 1) || effort_ == 0; }

  void attempt(std::initializer_list<std::size_t> followers) {
    std::vector<BoxSearch::Interval> box;
    for (const std::size_t knob : component_.members) box.push_back({start_[knob], start_[knob]});
    bool reals = false;
    for (const std::size_t member : followers) {
      if (member == pin_.member) return;
      const Domain& domain = parts_.domains[component_.members[member]];
      box[member] = {domain.first_cell(), domain.last_cell()};
      reals = reals || domain.real();
    }
    const std::uint64_t share = std::max<std::uint64_t>(effort_ / 4, std::min<std::uint64_t>(effort_, 500));
    std::uint64_t visits = 0;
    search_.run(box, share, [&](std::span<const double> by_member) {
      consider(by_member);
      return !reals && ++visits < 4096;
    });
    effort_ -= std::min(effort_, search_.spent());
  }

  void consider(std::span<const double> by_member) {
    if (by_member[pin_.member] != pin_.cell) return;  // it became inactive
    MoveCost cost{0, 0};
    for (std::size_t m = 0; m < by_member.size(); ++m) {
      const std::size_t knob = component_.members[m];
      add_change(parts_.domains[knob], cells_[knob], by_member[m], 1, cost);
    }
    if (!(cost < best_)) return;
    best_ = cost;
    found_.emplace(by_member.begin(), by_member.end());
  }

  const SpaceParts& parts_;
  const Component& component_;
  std::span<const double> cells_;
  Pin pin_;
  BoxSearch search_;
  std::vector<double> start_;  // by knob
  std::uint64_t effort_ = 0;
  MoveCost best_;
  std::optional<std::vector<double>> found_;
};

void put_combination(const Component& component, std::size_t index, std::span<double> cells) {
  const auto levels = component.combination(index);
  for (std::size_t m = 0; m < levels.size(); ++m) cells[component.members[m]] = cell_of_level(levels[m]);
}

}  // namespace

bool Space::Impl::move(const Component& component, std::size_t member, double cell, std::span<double> cells,
                       std::uint64_t effort) const {
  if (!component.tied) {
    cells[component.members[member]] = cell;
    return true;
  }
  const Pin pin{member, cell};
  const auto scan = [&] {
    const std::vector<double> weights(component.members.size(), 1);
    const auto found = nearest_listed(parts, component, cells, weights, pin);
    if (found) put_combination(component, *found, cells);
    return found.has_value();
  };
  if (component.listed && component.count <= kQuickScan) return scan();
  FollowerSearch search(parts, component, cells, pin);
  auto found = search.run(effort);
  if (!found && component.listed) return effort >= kSetBackEffort && scan();
  if (!found && effort >= kSetBackEffort) found = search.run_all(kLastResortBudget);
  if (!found) return false;
  for (std::size_t m = 0; m < found->size(); ++m) cells[component.members[m]] = (*found)[m];
  return true;
}

// Defaults that were written count for more than those that were filled in.
void Space::Impl::find_default_config() {
  default_cells.assign(knobs.size(), kInactive);
  std::vector<double> codes(knobs.size(), kMissing);
  for (const std::size_t knob : order) {
    if (!is_active(knob, codes)) continue;
    default_cells[knob] = parts.domains[knob].default_cell();
    codes[knob] = parts.domains[knob].code(default_cells[knob]);
  }
  for (const Component& component : components) {
    if (holds(parts, component, default_cells)) continue;
    if (component.listed) {
      std::vector<double> weights;
      for (const std::size_t knob : component.members) weights.push_back(knobs[knob].default_given ? 1000 : 1);
      const auto found = nearest_listed(parts, component, default_cells, weights, std::nullopt);
      if (found) put_combination(component, *found, default_cells);
      continue;
    }
    // Each knob at its default in turn, those that were written first; the first that works.
    std::vector<std::size_t> members(component.members.size());
    for (std::size_t m = 0; m < members.size(); ++m) members[m] = m;
    std::stable_partition(members.begin(), members.end(),
                          [&](std::size_t m) { return knobs[component.members[m]].default_given; });
    if (members.size() > kMostRepairs) members.resize(kMostRepairs);
    for (const std::size_t m : members) {
      const double cell = default_cells[component.members[m]];
      if (!is_inactive(cell) && move(component, m, cell, default_cells, kSetBackEffort)) break;
    }
    if (holds(parts, component, default_cells)) continue;
    Random random(0);
    draw(component, random, default_cells);
  }
  default_config = config_of(default_cells);
}

std::optional<Config> Space::set_back(const Config& config, std::size_t knob, std::vector<std::size_t>* moved) const {
  if (moved != nullptr) moved->clear();
  std::vector<double> cells = impl_->cells_of(config);
  // Back to what the default configuration has, where constraints moved it.
  double target = impl_->default_cells[knob];
  if (is_inactive(target)) target = impl_->parts.domains[knob].default_cell();
  if (is_inactive(cells[knob]) || cells[knob] == target) return config;
  const std::vector<double> before = cells;
  for (const Component& component : impl_->components) {
    const auto member = std::find(component.members.begin(), component.members.end(), knob);
    if (member == component.members.end()) continue;
    const auto index = static_cast<std::size_t>(member - component.members.begin());
    if (!impl_->move(component, index, target, cells, kSetBackEffort)) return std::nullopt;
  }
  for (std::size_t i = 0; moved != nullptr && i < cells.size(); ++i) {
    if (i != knob && !same_cell(cells[i], before[i])) moved->push_back(i);
  }
  return impl_->config_of(cells);
}

namespace {

// One pass over the combinations serves every move of every member.
void scan_neighbours(const SpaceParts& parts, const Component& component, std::span<const double> cells,
                     const std::vector<std::vector<double>>& targets, std::set<std::size_t>& found) {
  struct Best {
    MoveCost cost;
    std::size_t combination = 0;
  };
  std::vector<std::vector<Best>> best(targets.size());
  for (std::size_t m = 0; m < targets.size(); ++m) best[m].resize(targets[m].size());
  for (std::size_t i = 0; i < component.count; ++i) {
    const auto levels = component.combination(i);
    MoveCost cost{0, 0};
    for (std::size_t m = 0; m < levels.size(); ++m) {
      const std::size_t knob = component.members[m];
      add_change(parts.domains[knob], cells[knob], cell_of_level(levels[m]), 1, cost);
    }
    for (std::size_t m = 0; m < levels.size(); ++m) {
      if (levels[m] < 0 || levels[m] == cells[component.members[m]]) continue;
      const auto target = std::lower_bound(targets[m].begin(), targets[m].end(), static_cast<double>(levels[m]));
      if (target == targets[m].end() || *target != levels[m]) continue;
      Best& entry = best[m][static_cast<std::size_t>(target - targets[m].begin())];
      if (cost < entry.cost) entry = {cost, i};
    }
  }
  for (const std::vector<Best>& row : best) {
    for (const Best& entry : row) {
      if (entry.cost.changes < std::numeric_limits<double>::infinity()) found.insert(entry.combination);
    }
  }
}

}  // namespace

std::vector<Config> Space::neighbours(const Config& config) const {
  const std::vector<double> cells = impl_->cells_of(config);
  std::vector<Config> result;
  std::vector<double> changed;
  for (const Component& component : impl_->components) {
    std::vector<std::vector<double>> targets(component.members.size());
    for (std::size_t m = 0; m < targets.size(); ++m) {
      const std::size_t knob = component.members[m];
      if (is_inactive(cells[knob])) continue;
      const std::vector<std::int32_t> anything;
      impl_->parts.domains[knob].neighbours(cells[knob], component.listed ? component.possible[m] : anything,
                                            targets[m]);
    }
    if (component.listed && component.count <= kQuickScan) {
      std::set<std::size_t> found;
      scan_neighbours(impl_->parts, component, cells, targets, found);
      for (const std::size_t index : found) {
        changed = cells;
        put_combination(component, index, changed);
        result.push_back(impl_->config_of(changed));
      }
      continue;
    }
    std::set<std::vector<double>> seen;
    for (std::size_t m = 0; m < targets.size(); ++m) {
      for (const double target : targets[m]) {
        changed = cells;
        if (!impl_->move(component, m, target, changed, kNeighbourEffort)) continue;
        std::vector<double> key = changed;
        for (double& cell : key) cell = is_inactive(cell) ? -std::numeric_limits<double>::infinity() : cell;
        if (seen.insert(std::move(key)).second) result.push_back(impl_->config_of(changed));
      }
    }
  }
  return result;
}

}  // namespace lockstep::tune
