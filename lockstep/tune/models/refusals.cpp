#include "lockstep/tune/models/refusals.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <unordered_map>

#include "lockstep/base/text.h"
#include "lockstep/tune/job/knob_nature.h"

namespace lockstep::tune {
namespace {

constexpr double kNewValue = 0.012, kNewPair = 0.002;  // refused, where it was never tried
constexpr double kNamed = 8;      // times as probable when the message names the knob; for each of two
constexpr double kChance = 0.03;  // that a refusal follows no rule
constexpr int kRounds = 12;
constexpr double kMostLogOdds = 5;
constexpr double kLeastGuilt = 5e-4;  // less is not worth asking candidates about
constexpr std::size_t kShortestName = 3;

double probability_of(double log_odds) { return 1 / (1 + std::exp(-log_odds)); }

std::uint64_t item_of(std::size_t knob, double value) {
  const std::uint64_t bits = std::bit_cast<std::uint64_t>(value) * 0x9e3779b97f4a7c15ull;
  return (bits ^ bits >> 31) * (2 * knob + 3);
}

// Of all active values and pairs.
template <class Visit>
void for_items(const RefusalPoint& at, const Visit& visit) {
  for (std::size_t a = 0; a < at.size(); ++a) {
    if (std::isnan(at[a])) continue;
    const std::uint64_t item = item_of(a, at[a]);
    visit(item, false);
    for (std::size_t b = a + 1; b < at.size(); ++b)
      if (!std::isnan(at[b])) visit(item * 31 + item_of(b, at[b]), true);
  }
}

}  // namespace

Refusals::Refusals(const Space& space, std::span<const Point> points) : space_(space) {
  for (const Knob& knob : space.knobs()) names_.push_back(compact_name(knob.name));
  std::vector<RefusalPoint> at;
  at.reserve(points.size());
  for (const Point& point : points) at.push_back(refusal_point(space, point.config));
  suspect(at, points);
  for (std::size_t i = 0; i < points.size(); ++i) {
    const double accepted = probability(at[i]);
    predictive_score_ += std::log(std::max(points[i].refused ? 1 - accepted : accepted, 0.01));
    see(at[i], points[i].refused);
  }
  keep_guilty();
}

// Every rule that explains a refused point, with odds by what the messages name.
void Refusals::suspect(std::span<const RefusalPoint> at, std::span<const Point> points) {
  std::vector<RefusalPoint> refused;
  std::vector<std::vector<char>> named;  // by refused point and knob
  for (std::size_t i = 0; i < points.size(); ++i) {
    if (!points[i].refused) continue;
    refused.push_back(at[i]);
    const std::string text = compact_name(points[i].message);
    named.emplace_back();
    for (const std::string& name : names_)
      named.back().push_back(name.size() >= kShortestName && text.find(name) != std::string::npos ? 1 : 0);
  }
  if (refused.empty()) return;
  for (const RefusalRule& rule : rules_explaining(space_, refused, at)) {
    double most = 1;
    for (std::size_t i = 0; i < refused.size(); ++i) {
      double times = named[i][rule.first] != 0 ? kNamed : 1;
      if (rule.second != rule.first && named[i][rule.second] != 0) times *= kNamed;
      if (times > most && holds(rule, refused[i])) most = times;
    }
    suspects_.push_back({rule, log_odds(rule.kind) + std::log(most)});
    suspects_.back().guilt = probability_of(suspects_.back().odds);
  }
}

void Refusals::see(const RefusalPoint& at, bool refused) {
  for_items(at, [&](std::uint64_t item, bool) { cleared_.insert(item); });
  bool changed = refused;
  if (refused) refused_.emplace_back();
  for (std::uint32_t i = 0; i < suspects_.size(); ++i) {
    Suspect& suspect = suspects_[i];
    if (suspect.cleared || !holds(suspect.rule, at)) continue;
    if (refused) {
      refused_.back().push_back(i);
      suspect.suspected = true;
    } else {
      suspect.cleared = true;
      changed = changed || suspect.suspected;
    }
  }
  if (changed) weigh();
}

std::vector<double> Refusals::group_suspects() {
  std::vector<std::uint64_t> signature(suspects_.size(), 0);
  for (std::size_t point = 0; point < refused_.size(); ++point) {
    std::erase_if(refused_[point], [&](std::uint32_t i) { return suspects_[i].cleared; });
    for (const std::uint32_t i : refused_[point]) signature[i] = (signature[i] + point + 1) * 0x9e3779b97f4a7c15ull;
  }
  std::unordered_map<std::uint64_t, std::uint32_t> groups;
  std::vector<double> odds;
  for (std::size_t i = 0; i < suspects_.size(); ++i) {
    Suspect& suspect = suspects_[i];
    if (suspect.cleared || !suspect.suspected) continue;
    suspect.group = groups.emplace(signature[i], static_cast<std::uint32_t>(odds.size())).first->second;
    if (suspect.group == odds.size()) odds.push_back(0);
    odds[suspect.group] += std::exp(suspect.odds);
  }
  return odds;
}

void Refusals::weigh() {
  const std::vector<double> odds = group_suspects();
  std::vector<std::vector<std::uint32_t>> explaining(refused_.size());  // groups, by refused point
  for (std::size_t point = 0; point < refused_.size(); ++point) {
    std::vector<std::uint32_t>& members = explaining[point];
    for (const std::uint32_t i : refused_[point]) members.push_back(suspects_[i].group);
    std::sort(members.begin(), members.end());
    members.erase(std::unique(members.begin(), members.end()), members.end());
  }
  std::vector<double> guilt, times;
  guilt.reserve(odds.size());
  for (const double odd : odds) guilt.push_back(odd / (1 + odd));
  for (int round = 0; round < kRounds; ++round) {
    times.assign(odds.size(), 1.0);
    for (const std::vector<std::uint32_t>& members : explaining) {
      double innocent = 1 - kChance;  // that no suspect is guilty, and it was not chance
      for (const std::uint32_t i : members) innocent *= 1 - guilt[i];
      for (const std::uint32_t i : members) {
        const double others = innocent / std::max(1 - guilt[i], 1e-9);  // all but this one
        times[i] = std::min(times[i] / std::max(1 - others, 1e-3), 1e12);
      }
    }
    for (std::size_t i = 0; i < guilt.size(); ++i) {
      const double log_odds = std::min(std::log(odds[i] * times[i]), kMostLogOdds);
      guilt[i] = 0.5 * guilt[i] + 0.5 * probability_of(log_odds);
    }
  }
  for (Suspect& suspect : suspects_)
    if (!suspect.cleared && suspect.suspected)
      suspect.guilt = guilt[suspect.group] * std::exp(suspect.odds) / odds[suspect.group];
}

void Refusals::keep_guilty() {
  std::erase_if(suspects_, [](const Suspect& s) { return s.cleared || !s.suspected || s.guilt < kLeastGuilt; });
  refused_.clear();
}

double Refusals::novelty(const RefusalPoint& at) const {
  double accepted = 1;
  for_items(at, [&](std::uint64_t item, bool pair) {
    if (!cleared_.contains(item)) accepted *= 1 - (pair ? kNewPair : kNewValue);
  });
  return accepted;
}

double Refusals::probability(const RefusalPoint& at) const {
  std::vector<double> guilt;  // by group: of those that forbid the point
  for (const Suspect& suspect : suspects_) {
    if (!suspect.suspected || suspect.cleared || !holds(suspect.rule, at)) continue;
    if (guilt.size() <= suspect.group) guilt.resize(suspect.group + 1, 0.0);
    guilt[suspect.group] += suspect.guilt;
  }
  double accepted = novelty(at);
  for (const double each : guilt) accepted *= 1 - std::min(each, 1.0);
  return accepted;
}

}  // namespace lockstep::tune
