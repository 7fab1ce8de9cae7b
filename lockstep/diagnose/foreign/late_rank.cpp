// Collectives end together and begin when each rank arrives: the rank whose kernel is the shortest came last, and the
// others waited for it by the difference. No clocks need to agree for that.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "lockstep/base/text.h"
#include "lockstep/diagnose/foreign/trace_findings.h"
#include "lockstep/diagnose/statistics.h"

namespace lockstep::diagnose {
namespace {

constexpr double kWaitedPercent = 4.0;        // of the step
constexpr std::int64_t kNoticeable = 20'000;  // ns: less is how launches scatter

// What makes collectives of two ranks the same: the group and its count, or the kind of kernel and its place in the
// step.
std::string key_of(const Trace& trace, const DeviceSlice& slice, std::int64_t step) {
  if (slice.collective != kNone) {
    const Collective& told = trace.collectives[slice.collective];
    if (told.sequence >= 0) return fmt::format("{}|{}|#{}", told.group, told.op, told.sequence);
    return fmt::format("{}|{}|{}|{}", step, told.group, told.op, static_cast<std::int64_t>(told.bytes));
  }
  const std::string& name = trace.name_of(slice.name);
  return fmt::format("{}|{}", step, name.substr(0, name.find('(')));
}

using Times = std::map<std::string, std::vector<Interval>>;

Times collectives_of(const Trace& trace) {
  Times times;
  const std::vector<MarkedStep> steps = marked_steps(trace);
  const Interval window = window_of(trace);
  std::size_t at = 0;
  for (const DeviceSlice& slice : trace.work) {
    if (slice.work != Work::kCommunication || slice.time.begin < window.begin || slice.time.end > window.end) continue;
    const std::int64_t asked = slice.launch.begin != kNoTime ? slice.launch.begin : slice.time.begin;
    while (at + 1 < steps.size() && steps[at + 1].time.begin <= asked) ++at;
    while (at > 0 && steps[at].time.begin > asked) --at;
    times[key_of(trace, slice, steps.empty() ? 0 : steps[at].number)].push_back(slice.time);
  }
  return times;
}

// Really the same collectives: their ends differ by what the clocks differ, always alike.
bool ends_agree(const std::vector<Interval>& a, const std::vector<Interval>& b) {
  std::vector<double> apart, lengths;
  for (std::size_t i = 0; i < a.size(); ++i) {
    apart.push_back(static_cast<double>(a[i].end - b[i].end));
    lengths.push_back(static_cast<double>(std::min(a[i].length(), b[i].length())));
  }
  return spread(apart) <= std::max(200e3, 0.5 * median(lengths));
}

struct Waits {
  std::vector<double> waited;  // ns, by trace: it was there and waited
  std::vector<double> late;    // ns, by trace: the others waited for it
  std::int64_t matched = 0;
};

void add_match(const std::vector<const std::vector<Interval>*>& members, const std::vector<std::size_t>& who,
               Waits& waits) {
  for (std::size_t i = 0; i < members.front()->size(); ++i) {
    std::int64_t shortest = std::numeric_limits<std::int64_t>::max(), longest = 0;
    std::size_t last = 0;
    for (std::size_t m = 0; m < members.size(); ++m) {
      const std::int64_t length = (*members[m])[i].length();
      longest = std::max(longest, length);
      if (length < shortest) shortest = length, last = m;
    }
    ++waits.matched;
    if (longest - shortest < kNoticeable) continue;
    waits.late[who[last]] += static_cast<double>(longest - shortest);
    for (std::size_t m = 0; m < members.size(); ++m) {
      waits.waited[who[m]] += static_cast<double>((*members[m])[i].length() - shortest);
    }
  }
}

Waits waits_of(const std::vector<const Trace*>& traces) {
  Waits waits;
  waits.waited.resize(traces.size());
  waits.late.resize(traces.size());
  std::map<std::string, std::map<std::size_t, std::vector<Interval>>> by_key;
  for (std::size_t t = 0; t < traces.size(); ++t) {
    for (auto& [key, times] : collectives_of(*traces[t])) by_key[key][t] = std::move(times);
  }
  for (const auto& [key, ranks] : by_key) {
    std::vector<const std::vector<Interval>*> members;
    std::vector<std::size_t> who;
    for (const auto& [trace, times] : ranks) {
      if (!members.empty() && (times.size() != members.front()->size() || !ends_agree(*members.front(), times)))
        continue;
      members.push_back(&times);
      who.push_back(trace);
    }
    if (members.size() >= 2) add_match(members, who, waits);
  }
  return waits;
}

Figures whole(const Trace& trace) {
  const std::vector<Figures> all = figures_of(trace);
  const auto busiest = std::ranges::max_element(all, {}, &Figures::busy_seconds);
  return busiest == all.end() ? Figures{} : *busiest;
}

// What the late rank spends more time on than its peers, per step.
struct Reason {
  const char* what = "";
  const char* fix = "";
  double seconds = 0.0;
};

Reason reason_of(const Figures& late, const std::vector<Figures>& others) {
  const auto excess = [&](auto&& seconds_of) {
    std::vector<double> usual;
    usual.reserve(others.size());
    for (const Figures& one : others) usual.push_back(one.share(seconds_of(one)));
    return (late.share(seconds_of(late)) - median(usual)) * late.window_seconds;
  };
  std::vector<Reason> reasons = {
      {"computes longer",
       "look at its GPU (nvidia-smi -q -d CLOCK,PERFORMANCE for throttling) and at the size of its share of "
       "the batch: its kernels take longer than the same ones of its peers",
       excess([](const Figures& f) { return f.compute_seconds; })},
      {"waits longer for its data", "look at its loader: storage of its node, number of workers, length of its samples",
       excess([](const Figures& f) { return f.idle_loader_seconds; })},
      {"is held up by its program",
       "look at its host: CPU shared with other jobs, logging or checkpoints on this rank, "
       "Python's garbage collector (gc.freeze, gc.disable)",
       excess(
           [](const Figures& f) { return f.idle_host_seconds + f.idle_launch_seconds + f.idle_collective_seconds; })}};
  return *std::ranges::max_element(reasons, {}, &Reason::seconds);
}

}  // namespace

std::vector<Finding> late_rank_findings(const std::vector<Trace>& traces, double& waited_percent) {
  waited_percent = 0.0;
  std::vector<const Trace*> ranks;
  for (const Trace& trace : traces) {
    if (!trace.work.empty() && trace.calls_seen >= kThinTrace) ranks.push_back(&trace);
  }
  if (ranks.size() < 2) return {};
  const Waits waits = waits_of(ranks);
  double all = 0.0;
  for (const double late : waits.late) all += late;
  if (waits.matched < 5 || all <= 0.0) return {};
  const auto worst = std::ranges::max_element(waits.late);
  const auto index = static_cast<std::size_t>(worst - waits.late.begin());
  const double share = *worst / all;
  std::vector<Figures> others;
  double waited = 0.0, window = 0.0;
  for (std::size_t t = 0; t < ranks.size(); ++t) {
    if (t == index) continue;
    others.push_back(whole(*ranks[t]));
    waited += waits.waited[t] * 1e-9;
    window += others.back().window_seconds;
  }
  const double cost = window > 0.0 ? 100.0 * waited / window : 0.0;
  const double count = static_cast<double>(ranks.size());
  if (cost < kWaitedPercent || share < std::max(0.5, 1.5 / count)) return {};
  const Figures late = whole(*ranks[index]);
  const Reason reason = reason_of(late, others);
  waited_percent = cost * share;
  Finding finding;
  finding.cause = Cause::kSlowRank;
  finding.cost_percent = waited_percent;
  finding.confidence = std::min(0.95, 0.5 + 0.5 * share);
  finding.ranks = {ranks[index]->rank >= 0 ? ranks[index]->rank : static_cast<int>(index)};
  finding.evidence = fmt::format(
      "rank {} arrives last in {} collectives that were matched, and causes {:.0f}% of the waiting: its "
      "peers wait {:.1f}% of the step; it {}{}",
      finding.ranks.front(), waits.matched, 100.0 * share, cost, reason.what,
      late.steps > 0 ? fmt::format(", by {:.1f} ms a step", 1e3 * reason.seconds / late.steps) : "");
  finding.fix = fmt::format("rank {}: {}", finding.ranks.front(), reason.fix);
  finding.gain_percent = gain_of(waited_percent);
  return {finding};
}

}  // namespace lockstep::diagnose
