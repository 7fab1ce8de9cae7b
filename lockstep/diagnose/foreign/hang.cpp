// Who is waited for. Programs enqueue collectives ahead of the device, so a rank that has not enqueued one that its
// peers have is behind them. It is the cause unless it waits for others itself; if its peers wait for the same others
// and have come further nevertheless, it is a cause as well.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <set>

#include "lockstep/base/text.h"
#include "lockstep/diagnose/foreign/flight_recorder.h"

namespace lockstep::diagnose {
namespace {

// One collective, or one send with its receive, that has not come to its end.
struct Waited {
  const RecordedOp* op = nullptr;
  std::set<int> waiting;  // have enqueued it
  std::set<int> missing;  // have not
  std::int64_t since_ns = -1;
};

using Key = std::tuple<std::string, bool, std::int64_t, std::string>;  // the pair of a send is part of it

class Hang {
 public:
  explicit Hang(const std::vector<RankDump>& dumps) {
    for (const RankDump& dump : dumps) {
      by_rank_.emplace(dump.rank, &dump);
      for (const auto& [group, members] : dump.groups) members_.try_emplace(group, members);
      for (const RecordedOp& op : dump.ops) {
        if (op.group_id >= 0) numbers_.try_emplace(op.group, op.group_id);
        newest_ns_ = std::max(newest_ns_, op.created_ns);
      }
    }
    for (const RankDump& dump : dumps) {
      for (const RecordedOp& op : dump.ops) {
        if (!op.done && op.sequence >= 0) add(dump, op);
      }
    }
    for (auto& [key, one] : waited_) {
      if (one.missing.empty()) continue;
      for (const int rank : one.waiting) waits_for_[rank].insert(one.missing.begin(), one.missing.end());
    }
  }

  std::vector<Finding> findings() const {
    const std::set<int> guilty = causes();
    std::vector<Finding> found;
    if (!guilty.empty()) found.push_back(missing_finding(guilty));
    if (found.empty()) {
      if (auto different = different_ops()) found.push_back(*different);
    }
    return found;
  }

 private:
  void add(const RankDump& dump, const RecordedOp& op) {
    const std::string pair = op.point_to_point ? pair_of(op) : "";
    const Key key{op.group, op.point_to_point, op.sequence, pair};
    Waited& one = waited_[key];
    one.waiting.insert(dump.rank);
    if (one.op == nullptr) {
      one.op = &op;
      for (const int member : expected(dump, op)) {
        if (!has_enqueued(member, op)) one.missing.insert(member);
      }
    }
    if (op.created_ns >= 0 && (one.since_ns < 0 || op.created_ns < one.since_ns)) one.since_ns = op.created_ns;
  }

  // "0-1" of "send 0->1" and of "recv 1<-0": numbers within the group.
  static std::string pair_of(const RecordedOp& op) {
    const auto [from, to] = ends_of(op);
    return fmt::format("{}-{}", from, to);
  }

  static std::pair<int, int> ends_of(const RecordedOp& op) {
    const std::size_t right = op.op.find("->"), left = op.op.find("<-");
    const std::size_t mark = std::min(right, left);
    const std::size_t begin = op.op.rfind(' ', mark);
    if (mark == std::string::npos || begin == std::string::npos) return {-1, -1};
    int first = -1, second = -1;
    std::from_chars(op.op.data() + begin + 1, op.op.data() + mark, first);
    std::from_chars(op.op.data() + mark + 2, op.op.data() + op.op.size(), second);
    return right < left ? std::pair{first, second} : std::pair{second, first};
  }

  std::vector<int> expected(const RankDump& dump, const RecordedOp& op) const {
    const auto found = members_.find(op.group);
    if (found == members_.end()) return {};
    if (!op.point_to_point) return found->second;
    const auto [from, to] = ends_of(op);
    std::vector<int> both;
    for (const int end : {from, to}) {
      if (end < 0) return {};
      const bool whole = std::cmp_less(end, found->second.size());
      const int rank = whole ? found->second[static_cast<std::size_t>(end)] : end;
      if (rank != dump.rank) both.push_back(rank);
    }
    return both;
  }

  bool has_enqueued(int rank, const RecordedOp& op) const {
    const auto dump = by_rank_.find(rank);
    if (dump == by_rank_.end()) return false;
    bool in_group = false;
    for (const RecordedOp& own : dump->second->ops) {
      if (own.group != op.group || own.point_to_point != op.point_to_point) continue;
      if (op.point_to_point && pair_of(own) != pair_of(op)) continue;
      in_group = true;
      if (own.sequence >= op.sequence) return true;
    }
    if (in_group) return false;
    // Nothing of the group is recorded: the counters tell.
    const auto number = numbers_.find(op.group);
    if (number == numbers_.end()) return false;
    const auto last = dump->second->last_enqueued.find(number->second);
    return last != dump->second->last_enqueued.end() && last->second >= op.sequence;
  }

  bool waits_elsewhere(int rank, const std::set<int>& than) const {
    const auto found = waits_for_.find(rank);
    if (found == waits_for_.end()) return false;
    return std::ranges::any_of(found->second, [&](int other) { return !than.contains(other) && other != rank; });
  }

  std::set<int> causes() const {
    std::set<int> told, silent;  // with a dump, and without one
    for (const auto& [key, one] : waited_) {
      for (const int rank : one.missing) {
        if (!by_rank_.contains(rank)) {
          if (one.missing.size() < one.waiting.size()) silent.insert(rank);
          continue;
        }
        if (!waits_elsewhere(rank, {}) || behind_its_peers(rank, one)) told.insert(rank);
      }
    }
    return told.empty() ? silent : told;
  }

  // Most of those that wait for `rank` wait for others too, and have come further than it.
  bool behind_its_peers(int rank, const Waited& one) const {
    if (one.op->point_to_point || one.missing.size() >= one.waiting.size()) return false;
    if (!waits_elsewhere(rank, one.missing)) return true;
    const auto burdened =
        std::ranges::count_if(one.waiting, [&](int peer) { return waits_elsewhere(peer, one.missing); });
    return static_cast<std::size_t>(burdened) * 2 > one.waiting.size();
  }

  // The first collective that somebody guilty is missing from: the earliest that anybody waits for.
  const Waited* first_missing(const std::set<int>& guilty) const {
    const Waited* first = nullptr;
    for (const auto& entry : waited_) {
      const Waited& one = entry.second;
      if (!std::ranges::any_of(one.missing, [&](int rank) { return guilty.contains(rank); })) continue;
      const auto better = [&] {
        if (first == nullptr) return true;
        const bool collective = !one.op->point_to_point, before = !first->op->point_to_point;
        if (collective != before) return collective;
        return one.since_ns < first->since_ns;
      };
      if (better()) first = &one;
    }
    return first;
  }

  Finding missing_finding(const std::set<int>& guilty) const {
    const Waited& one = *first_missing(guilty);
    Finding finding;
    finding.cause = Cause::kHang;
    finding.cost_percent = 100.0;
    finding.ranks.assign(guilty.begin(), guilty.end());
    const std::size_t without_dump =
        static_cast<std::size_t>(std::ranges::count_if(guilty, [&](int rank) { return !by_rank_.contains(rank); }));
    finding.confidence = without_dump > 0 ? 0.7 : 0.95;
    finding.evidence =
        fmt::format("{} waits in {} {} of group {}{}{} for rank{} {}, which never asked for it", counted(one.waiting),
                    printable(one.op->op, 60), one.op->sequence, printable(one.op->group, 40), described(*one.op),
                    shaped(*one.op), guilty.size() == 1 ? "" : "s", list_of(guilty));
    finding.evidence += where_they_are(guilty);
    if (without_dump > 0) finding.evidence += "; they left no dump";
    finding.fix = fmt::format(
        "look at rank{} {} first (stack with py-spy dump, kernel log of the node for Xid): the other "
        "ranks only wait; then restart without that GPU if its node shows errors",
        guilty.size() == 1 ? "" : "s", list_of(guilty));
    return finding;
  }

  std::string where_they_are(const std::set<int>& guilty) const {
    std::string text;
    int told = 0;
    for (const int rank : guilty) {
      const auto dump = by_rank_.find(rank);
      if (dump == by_rank_.end() || told == 3) continue;
      ++told;
      if (dump->second->ops.empty()) {
        text += fmt::format("; rank {} has nothing under way", rank);
        continue;
      }
      const RecordedOp& last = dump->second->ops.back();
      text += fmt::format("; rank {} came as far as {} {} of group {}", rank, printable(last.op, 60), last.sequence,
                          printable(last.group, 40));
      if (last.created_ns >= 0 && newest_ns_ > last.created_ns) {
        text +=
            fmt::format(", {:.3f} s before the others' last", static_cast<double>(newest_ns_ - last.created_ns) * 1e-9);
      }
    }
    return text;
  }

  // Ranks that ask for something else under the same number.
  std::optional<Finding> different_ops() const {
    std::map<std::pair<std::string, std::int64_t>, std::map<std::string, std::set<int>>> asked;
    for (const auto& [rank, dump] : by_rank_) {
      for (const RecordedOp& op : dump->ops) {
        if (!op.done && !op.point_to_point) asked[{op.group, op.sequence}][op.op].insert(rank);
      }
    }
    for (const auto& [key, ops] : asked) {
      if (ops.size() < 2) continue;
      const auto fewest = std::ranges::min_element(ops, {}, [](const auto& entry) { return entry.second.size(); });
      const auto most = std::ranges::max_element(ops, {}, [](const auto& entry) { return entry.second.size(); });
      Finding finding;
      finding.cause = Cause::kHang;
      finding.cost_percent = 100.0;
      finding.confidence = 0.9;
      finding.ranks.assign(fewest->second.begin(), fewest->second.end());
      finding.evidence =
          fmt::format("collective {} of group {} is {} on rank{} {} and {} on {}", key.second, printable(key.first, 40),
                      printable(fewest->first, 60), fewest->second.size() == 1 ? "" : "s", list_of(fewest->second),
                      printable(most->first, 60), counted(most->second));
      finding.fix = "make every rank take the same path through the program: the order of collectives must be the same";
      return finding;
    }
    return std::nullopt;
  }

  static std::string described(const RecordedOp& op) {
    return op.description.empty() ? "" : fmt::format(" ({})", printable(op.description, 60));
  }
  static std::string shaped(const RecordedOp& op) { return op.shape.empty() ? "" : ", " + op.shape + ","; }
  static std::string list_of(const std::set<int>& ranks) {
    std::vector<std::string> parts;
    for (const int rank : ranks) {
      if (parts.size() == 8) {
        parts.push_back("...");
        break;
      }
      parts.push_back(std::to_string(rank));
    }
    return join(parts, ", ");
  }
  static std::string counted(const std::set<int>& ranks) {
    return ranks.size() == 1 ? fmt::format("rank {}", *ranks.begin()) : fmt::format("each of {} ranks", ranks.size());
  }

  std::map<int, const RankDump*> by_rank_;
  std::map<std::string, std::vector<int>> members_;
  std::map<std::string, int> numbers_;  // of groups, as most ranks count them
  std::map<Key, Waited> waited_;
  std::map<int, std::set<int>> waits_for_;
  std::int64_t newest_ns_ = -1;
};

}  // namespace

std::vector<Finding> hang_findings(const std::vector<RankDump>& dumps) {
  std::vector<RankDump> by_rank = dumps;
  std::ranges::stable_sort(by_rank, {}, &RankDump::rank);
  return Hang(by_rank).findings();
}

}  // namespace lockstep::diagnose
