// A link that is slower than its peers, or than any link that is used for training.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>

#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/diagnose/detectors/detectors.h"
#include "lockstep/diagnose/statistics.h"

namespace lockstep::diagnose {
namespace {

namespace metric = telemetry::metric;

// No link that training is done over is slower: between nodes 1 Gb/s and 1 ms for a small message, within one memory.
struct Soundness {
  double bytes_per_second = 0.0, latency_seconds = 0.0;
};
constexpr Soundness kSlowestNetwork = {125e6, 1e-3};
constexpr Soundness kSlowestNode = {500e6, 0.4e-3};
constexpr double kSlowerThanPeers = 1.6;
constexpr double kSlowerThanSound = 2.0;
constexpr std::size_t kLeastSteps = 3;

Finding of_rank(const RunEvidence& evidence, int rank, double own, double others, double confidence) {
  const double blocked = evidence.usual(metric::kExposedCommSeconds);
  return make_finding(
      Cause::kSlowLink, confidence, evidence.share(std::min(own - others, blocked)), {rank},
      fmt::format("transfers of rank {} take {} a step, those of its peers {}, waiting not counted", rank,
                  format_seconds(own), format_seconds(others)),
      fmt::format(
          "check the network of node {} (`lockstep doctor` there: errors, negotiated speed, cable), or cordon it",
          evidence.places[static_cast<std::size_t>(rank)].node));
}

// Without spans: what each rank guesses of its own transfers, against the others.
Findings slow_by_guess(const RunEvidence& evidence) {
  std::vector<double> moved;
  moved.reserve(static_cast<std::size_t>(evidence.world()));
  for (int rank = 0; rank < evidence.world(); ++rank) moved.push_back(transfer_seconds(evidence, rank));
  const auto worst = static_cast<int>(std::max_element(moved.begin(), moved.end()) - moved.begin());
  const double own = moved[static_cast<std::size_t>(worst)];
  moved.erase(moved.begin() + worst);
  const double others = median(moved);
  if (own < kSlowerThanPeers * others) return {};
  return {of_rank(evidence, worst, own, others, 0.6)};
}

// Exchanges end later for one rank than for the others that take part: its link.
Findings slow_rank_link(const RunEvidence& evidence) {
  const auto worst = std::max_element(evidence.parts.begin(), evidence.parts.end(),
                                      [](const Part& a, const Part& b) { return a.moved_beyond < b.moved_beyond; });
  const auto rank = static_cast<int>(worst - evidence.parts.begin());
  std::vector<double> others;
  for (const Part& part : evidence.parts) {
    if (&part != &*worst) others.push_back(part.moved);
  }
  const double usual = median(others);
  if (worst->moved < kSlowerThanPeers * usual || worst->moved_beyond < 0.5 * worst->moved) return {};
  return {of_rank(evidence, rank, worst->moved, usual, 0.85)};
}

struct Transfers {
  std::vector<double> seconds, bytes;
  std::vector<int> ranks;
  std::size_t nodes = 1;
  double per_step = 0.0;
};

std::map<std::string, Transfers> transfers_by_members(const RunEvidence& evidence) {
  std::map<std::string, Transfers> groups;
  std::set<std::int64_t> steps;
  for (const Exchange& exchange : evidence.exchanges) {
    steps.insert(exchange.step);
    std::string key;
    std::vector<int> ranks;
    std::set<int> nodes;
    for (const Member& member : exchange.members) {
      key += fmt::format("{},", member.rank);
      ranks.push_back(member.rank);
      if (member.rank < evidence.world()) nodes.insert(evidence.places[static_cast<std::size_t>(member.rank)].node);
    }
    Transfers& group = groups[key];
    group.ranks = ranks;
    group.nodes = nodes.size();
    group.seconds.push_back(exchange.transfer_seconds());
    group.bytes.push_back(static_cast<double>(exchange.bytes));
    group.per_step += exchange.transfer_seconds();
  }
  for (auto& [key, group] : groups) group.per_step /= std::max<double>(1.0, static_cast<double>(steps.size()));
  return groups;
}

struct SlowGroup {
  const Transfers* group = nullptr;
  double own = 0.0, usual = 0.0;  // seconds of one exchange; of like groups
  double more_per_step() const { return group->per_step * (1.0 - usual / own); }
};

// The only rank that is in all of these, and in none of `sound`: what they share is its link.
std::optional<int> shared_rank(const std::vector<SlowGroup>& slow, const std::vector<const Transfers*>& sound) {
  if (slow.size() < 2) return std::nullopt;
  std::vector<int> common = slow.front().group->ranks;
  const auto keep_if = [&](const Transfers& group, bool member) {
    std::erase_if(common, [&](int rank) { return std::ranges::count(group.ranks, rank) != (member ? 1 : 0); });
  };
  for (const SlowGroup& one : slow) keep_if(*one.group, true);
  for (const Transfers* group : sound) keep_if(*group, false);
  return common.size() == 1 ? std::optional(common.front()) : std::nullopt;
}

// Groups whose exchanges take longer than those of the groups that are like them: as many members on as many nodes.
Findings slow_group(const RunEvidence& evidence) {
  const auto groups = transfers_by_members(evidence);
  std::vector<SlowGroup> slow;
  std::vector<const Transfers*> sound;
  for (const auto& [key, group] : groups) {
    std::vector<double> others;
    for (const auto& [other_key, other] : groups) {
      const bool alike = other_key != key && other.ranks.size() == group.ranks.size() && other.nodes == group.nodes &&
                         std::abs(median(other.bytes) - median(group.bytes)) <= 0.1 * median(group.bytes);
      if (alike) others.push_back(median(other.seconds));
    }
    if (others.empty() || group.seconds.size() < 5) continue;
    const double usual = median(others), own = median(group.seconds);
    if (own >= kSlowerThanPeers * usual) {
      slow.push_back({&group, own, usual});
    } else {
      sound.push_back(&group);
    }
  }
  Findings found;
  if (const auto rank = shared_rank(slow, sound)) {
    double own = 0.0, more = 0.0;
    for (const SlowGroup& one : slow) {
      own += one.group->per_step;
      more += one.more_per_step();
    }
    return {of_rank(evidence, *rank, own, own - more, 0.8)};
  }
  for (const SlowGroup& one : slow) {
    found.push_back(make_finding(
        Cause::kSlowLink, 0.8, evidence.share(one.more_per_step()), one.group->ranks,
        fmt::format("exchanges between {} take {} each, those of like groups {}, waiting not counted",
                    named_ranks(one.group->ranks), format_seconds(one.own), format_seconds(one.usual)),
        "check the network between the nodes of these ranks (`lockstep doctor`: errors, negotiated speed, cables)"));
  }
  return found;
}

// What the slowest sound link would take for the exchange: slices go to all others at once, and back.
double sound_seconds(const RunEvidence& evidence, const Exchange& exchange) {
  std::set<int> nodes;
  for (const Member& member : exchange.members) {
    if (member.rank < evidence.world()) nodes.insert(evidence.places[static_cast<std::size_t>(member.rank)].node);
  }
  const Soundness& link = nodes.size() > 1 ? kSlowestNetwork : kSlowestNode;
  const auto n = static_cast<double>(exchange.members.size());
  return 2.0 * link.latency_seconds + 2.0 * (n - 1.0) / n * static_cast<double>(exchange.bytes) / link.bytes_per_second;
}

// All exchanges over the network are slower than on any sound one: the link that they share.
Findings slow_network(const RunEvidence& evidence) {
  struct OfStep {
    double taken = 0.0, sound = 0.0;
  };
  std::map<std::int64_t, OfStep> steps;
  std::set<int> members;
  for (const Exchange& exchange : evidence.exchanges) {
    OfStep& step = steps[exchange.step];
    step.taken += exchange.transfer_seconds();
    step.sound += sound_seconds(evidence, exchange);
    for (const Member& member : exchange.members) members.insert(member.rank);
  }
  std::vector<double> ratios, taken, beyond;
  for (const auto& [number, step] : steps) {
    ratios.push_back(step.taken / step.sound);
    taken.push_back(step.taken);
    beyond.push_back(step.taken - step.sound);
  }
  if (ratios.size() < kLeastSteps || median(ratios) < kSlowerThanSound) return {};
  const double exposed = std::min(median(beyond), transfer_seconds(evidence));
  return {make_finding(
      Cause::kSlowLink, 0.7, evidence.share(exposed), std::vector<int>(members.begin(), members.end()),
      fmt::format("exchanges take {} a step when everybody is there, {:.1f} times what the slowest sound link needs",
                  format_seconds(median(taken)), median(ratios)),
      "check the network between the nodes (`lockstep doctor`: errors, negotiated speed, which interface is used; "
      "`--interface NAME` names another)")};
}

}  // namespace

Findings find_slow_link(const RunEvidence& evidence) {
  if (evidence.world() < 2) return {};
  if (evidence.exchanges.empty()) return slow_by_guess(evidence);
  Findings found = slow_rank_link(evidence);
  if (found.empty()) found = slow_group(evidence);
  if (found.empty()) found = slow_network(evidence);
  const auto dearest = std::max_element(
      found.begin(), found.end(), [](const Finding& a, const Finding& b) { return a.cost_percent < b.cost_percent; });
  if (dearest == found.end()) return {};
  return {*dearest};
}

}  // namespace lockstep::diagnose
