#include <algorithm>

#include "lockstep/tune/space/impl.h"

namespace lockstep::tune {
namespace {

constexpr int kMostDraws = 2000;
constexpr std::size_t kTrialNodes = 2'000'000;  // of expressions, for finding out whether drawing works
constexpr std::uint64_t kRandomSearchBudget = 200'000;

}  // namespace

// Parents first, so that activity is known; constraints are ignored.
void Space::Impl::draw_freely(std::span<const std::size_t> members, Random& random, std::span<double> cells) const {
  std::vector<double> codes(knobs.size(), kMissing);
  for (const std::size_t knob : members) {
    const bool active = is_active(knob, codes);
    cells[knob] = active ? parts.domains[knob].draw(random) : kInactive;
    if (active) codes[knob] = parts.domains[knob].code(cells[knob]);
  }
}

bool Space::Impl::rejection_works(const Component& component) const {
  std::size_t nodes = 1;
  for (const std::size_t constraint : component.constraints) nodes += parts.constraints[constraint].nodes();
  for (const std::size_t knob : component.members) nodes += parts.whens[knob] ? parts.whens[knob]->nodes() : 0;
  const int draws = std::clamp(static_cast<int>(kTrialNodes / nodes), 1, kMostDraws);
  Random random(0);
  std::vector<double> cells(knobs.size(), kInactive);
  int valid = 0;
  for (int i = 0; i < draws; ++i) {
    draw_freely(component.members, random, cells);
    valid += holds(parts, component, cells) ? 1 : 0;
  }
  return valid * 200 >= draws;
}

void Space::Impl::draw(const Component& component, Random& random, std::span<double> cells) const {
  if (!component.tied) {
    cells[component.members.front()] = parts.domains[component.members.front()].draw(random);
    return;
  }
  if (component.listed) {
    std::size_t place = 0;
    if (component.cumulative.empty()) {
      place = draw_below(random, component.count);
    } else {
      const double at = draw_unit(random) * component.cumulative.back();
      const auto found = std::upper_bound(component.cumulative.begin(), component.cumulative.end(), at);
      place =
          std::min<std::size_t>(static_cast<std::size_t>(found - component.cumulative.begin()), component.count - 1);
    }
    const auto levels = component.combination(place);
    for (std::size_t i = 0; i < levels.size(); ++i) cells[component.members[i]] = levels[i] < 0 ? kInactive : levels[i];
    return;
  }
  for (int i = 0; component.rejection && i < kMostDraws; ++i) {
    draw_freely(component.members, random, cells);
    if (!holds(parts, component, cells)) continue;
    // A configuration with an inactive knob stands for all its values: without this it would be drawn that many times
    // as often as the others.
    double keep = 1;
    for (const std::size_t knob : component.members) {
      if (is_inactive(cells[knob]) && !parts.domains[knob].real()) keep /= parts.domains[knob].levels();
    }
    if (keep == 1 || draw_unit(random) < keep) return;
  }
  BoxSearch search(parts, component);
  search.shuffle(random);
  bool found = false;
  search.run(search.whole_box(), kRandomSearchBudget, [&](std::span<const double> by_member) {
    for (std::size_t i = 0; i < by_member.size(); ++i) cells[component.members[i]] = by_member[i];
    found = true;
    return false;
  });
  if (found) return;
  for (const std::size_t knob : component.members) cells[knob] = default_cells[knob];
}

Config Space::sample(Random& random) const {
  std::vector<double> cells(size(), kInactive);
  for (const Component& component : impl_->components) impl_->draw(component, random, cells);
  return impl_->config_of(cells);
}

Config Space::sample_unconstrained(Random& random) const {
  std::vector<double> cells(size(), kInactive);
  impl_->draw_freely(impl_->order, random, cells);
  return impl_->config_of(cells);
}

std::optional<std::uint64_t> Space::count(std::uint64_t limit) const {
  std::uint64_t total = 1;
  for (const Component& component : impl_->components) {
    if (component.has_reals || (component.tied && !component.listed)) return std::nullopt;
    const Domain& first = impl_->parts.domains[component.members.front()];
    const double factor = component.tied ? static_cast<double>(component.count) : first.levels();
    if (static_cast<double>(total) * factor > static_cast<double>(limit)) return std::nullopt;
    total *= static_cast<std::uint64_t>(factor);
  }
  return total;
}

std::optional<std::vector<Config>> Space::enumerate(std::uint64_t limit) const {
  const auto total = count(limit);
  if (!total) return std::nullopt;
  std::vector<Config> configs;
  configs.reserve(*total);
  std::vector<double> cells(size(), kInactive);
  // Mixed radix: the last component turns fastest.
  for (std::uint64_t number = 0; number < *total; ++number) {
    std::uint64_t rest = number;
    for (std::size_t c = impl_->components.size(); c-- > 0;) {
      const Component& component = impl_->components[c];
      const Domain& first = impl_->parts.domains[component.members.front()];
      const auto radix = component.tied ? component.count : static_cast<std::uint64_t>(first.levels());
      const std::uint64_t digit = rest % radix;
      rest /= radix;
      if (!component.tied) {
        cells[component.members.front()] = static_cast<double>(digit);
        continue;
      }
      const auto levels = component.combination(digit);
      for (std::size_t i = 0; i < levels.size(); ++i)
        cells[component.members[i]] = levels[i] < 0 ? kInactive : levels[i];
    }
    configs.push_back(impl_->config_of(cells));
  }
  return configs;
}

}  // namespace lockstep::tune
