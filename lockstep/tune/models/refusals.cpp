#include "lockstep/tune/models/refusals.h"

#include <algorithm>
#include <cmath>

#include "lockstep/base/text.h"
#include "lockstep/tune/job/knob_nature.h"

namespace lockstep::tune {
namespace {

constexpr double kValueOdds = 0.012, kPairOdds = 0.002;  // before anything ran
constexpr double kNamed = 8;      // times as probable when the message names the knob; for each of a pair
constexpr double kChance = 0.03;  // that a refusal has no culprit among values and pairs
constexpr int kRounds = 12;
constexpr double kMostLogOdds = 5;
constexpr std::size_t kShortestName = 3;

double probability_of(double log_odds) { return 1 / (1 + std::exp(-log_odds)); }

// 20 bits for a value: knob and level.
constexpr std::uint32_t kLevelBits = 12;
std::size_t knob_of(std::uint32_t value) { return (value >> kLevelBits) - 1; }

}  // namespace

Refusals::Refusals(const Space& space, std::span<const Point> points) : levels_(space.size()) {
  for (const Knob& knob : space.knobs()) names_.push_back(compact_name(knob.name));
  for (const Point& point : points)
    for (std::size_t i = 0; i < levels_.size(); ++i) {
      const Value& value = point.config.values[i];
      if (is_active(value) && std::find(levels_[i].begin(), levels_[i].end(), value) == levels_[i].end())
        levels_[i].push_back(value);
    }
  for (const Point& point : points) {
    const double accepted = accepts(point.config);
    predictive_score_ += std::log(point.refused ? std::max(1 - accepted, 0.01) : std::max(accepted, 0.01));
    see(point);
  }
}

// Active values; 0 for one that was never seen.
std::vector<std::uint32_t> Refusals::values_of(const Config& config) const {
  std::vector<std::uint32_t> values;
  for (std::size_t i = 0; i < levels_.size(); ++i) {
    const Value& value = config.values[i];
    if (!is_active(value)) continue;
    const auto found = std::find(levels_[i].begin(), levels_[i].end(), value);
    const auto level = found == levels_[i].end() ? 0 : static_cast<std::uint32_t>(found - levels_[i].begin()) + 1;
    values.push_back(static_cast<std::uint32_t>(i + 1) << kLevelBits | level);
  }
  return values;
}

std::vector<Refusals::Item> Refusals::items_of(const std::vector<std::uint32_t>& values) {
  std::vector<Item> items(values.begin(), values.end());
  for (std::size_t a = 0; a < values.size(); ++a)
    for (std::size_t b = a + 1; b < values.size(); ++b) items.push_back(static_cast<Item>(values[a]) << 32 | values[b]);
  return items;
}

std::vector<double> Refusals::priors_of(const std::vector<Item>& items, const std::string& message) const {
  const std::string text = compact_name(message);
  std::vector<char> named;
  for (const std::string& name : names_)
    named.push_back(name.size() >= kShortestName && text.find(name) != std::string::npos ? 1 : 0);
  std::vector<double> priors;
  for (const Item item : items) {
    const bool pair = item >> 32 != 0;
    double odds = pair ? kPairOdds : kValueOdds;
    if (named[knob_of(static_cast<std::uint32_t>(item))] != 0) odds *= kNamed;
    if (pair && named[knob_of(static_cast<std::uint32_t>(item >> 32))] != 0) odds *= kNamed;
    priors.push_back(std::log(odds));
  }
  return priors;
}

void Refusals::see(const Point& point) {
  const std::vector<Item> items = items_of(values_of(point.config));
  if (point.refused) {
    refused_.push_back({items, priors_of(items, point.message)});
  } else {
    bool suspect = false;
    for (const Item item : items) suspect |= cleared_.insert(item).second && guilt_.contains(item);
    if (!suspect) return;
  }
  weigh();
}

void Refusals::weigh() {
  std::unordered_map<Item, std::size_t> place;
  std::vector<double> prior;  // log odds, by suspect
  std::vector<std::vector<std::size_t>> suspects(refused_.size());
  for (std::size_t p = 0; p < refused_.size(); ++p) {
    Refused& point = refused_[p];
    std::size_t kept = 0;
    for (std::size_t i = 0; i < point.items.size(); ++i) {
      if (cleared_.contains(point.items[i])) continue;  // what was cleared since is no suspect
      const auto [entry, fresh] = place.emplace(point.items[i], prior.size());
      if (fresh) prior.push_back(point.priors[i]);
      prior[entry->second] = std::max(prior[entry->second], point.priors[i]);
      suspects[p].push_back(entry->second);
      point.items[kept] = point.items[i];
      point.priors[kept++] = point.priors[i];
    }
    point.items.resize(kept);
    point.priors.resize(kept);
  }
  std::vector<double> guilt;
  guilt.reserve(prior.size());
  for (const double odds : prior) guilt.push_back(probability_of(odds));
  std::vector<double> odds;
  for (int round = 0; round < kRounds; ++round) {
    odds = prior;
    for (const std::vector<std::size_t>& members : suspects) {
      double innocent = 1 - kChance;  // that no suspect is guilty, and it was not chance
      for (const std::size_t i : members) innocent *= 1 - guilt[i];
      for (const std::size_t i : members) {
        const double others = innocent / std::max(1 - guilt[i], 1e-9);  // all but this one
        odds[i] -= std::log(std::max(1 - others, 1e-3));
      }
    }
    for (std::size_t i = 0; i < guilt.size(); ++i)
      guilt[i] = 0.5 * guilt[i] + 0.5 * probability_of(std::min(odds[i], kMostLogOdds));
  }
  guilt_.clear();
  for (const auto& [item, i] : place) guilt_[item] = guilt[i];
}

double Refusals::probability(const std::vector<Item>& items) const {
  double accepted = 1;
  for (const Item item : items) {
    if (cleared_.contains(item)) continue;
    const auto found = guilt_.find(item);
    accepted *= 1 - (found != guilt_.end() ? found->second : item >> 32 != 0 ? kPairOdds : kValueOdds);
  }
  return accepted;
}

double Refusals::accepts(const Config& config) const { return probability(items_of(values_of(config))); }

}  // namespace lockstep::tune
