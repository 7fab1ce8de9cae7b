#include "lockstep/sim/failures/faults.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/json.h"
#include "lockstep/base/text.h"
#include "lockstep/sim/random.h"

namespace lockstep::sim {
namespace {

constexpr double kDay = 86400.0;
constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr std::size_t kQuantiles = 4096;

void sort_by_begin(std::vector<Fault>& faults) {
  std::stable_sort(faults.begin(), faults.end(), [](const Fault& a, const Fault& b) { return a.begin < b.begin; });
}

// The time until which a share of repairs is done, whatever `function` of a uniform number says.
template <class Function>
std::vector<double> tabulate(const Function& function) {
  std::vector<double> times(kQuantiles);
  for (std::size_t i = 0; i < kQuantiles; ++i)
    times[i] = function((static_cast<double>(i) + 0.5) / static_cast<double>(kQuantiles));
  return times;
}

// Acklam's rational approximation of the normal quantile; off by less than 1.2e-9 of the value.
double normal_quantile(double p) {
  constexpr double kA[] = {-3.969683028665376e+01, 2.209460984245205e+02,  -2.759285104469687e+02,
                           1.383577518672690e+02,  -3.066479806614716e+01, 2.506628277459239e+00};
  constexpr double kB[] = {-5.447609879822406e+01, 1.615858368580409e+02, -1.556989798598866e+02, 6.680131188771972e+01,
                           -1.328068155288572e+01};
  constexpr double kC[] = {-7.784894002430293e-03, -3.223964580411365e-01, -2.400758277161838e+00,
                           -2.549732539343734e+00, 4.374664141464968e+00,  2.938163982698783e+00};
  constexpr double kD[] = {7.784695709041462e-03, 3.224671290700398e-01, 2.445134137142996e+00, 3.754408661907416e+00};
  constexpr double kLow = 0.02425;
  const auto tail = [&](double q) {
    return (((((kC[0] * q + kC[1]) * q + kC[2]) * q + kC[3]) * q + kC[4]) * q + kC[5]) /
           ((((kD[0] * q + kD[1]) * q + kD[2]) * q + kD[3]) * q + 1);
  };
  if (p < kLow) return tail(std::sqrt(-2 * std::log(p)));
  if (p > 1 - kLow) return -tail(std::sqrt(-2 * std::log(1 - p)));
  const double q = p - 0.5, r = q * q;
  return (((((kA[0] * r + kA[1]) * r + kA[2]) * r + kA[3]) * r + kA[4]) * r + kA[5]) * q /
         (((((kB[0] * r + kB[1]) * r + kB[2]) * r + kB[3]) * r + kB[4]) * r + 1);
}

struct Entry {
  std::string node;
  double seconds = 0.0;
  bool starts = false;
};

Entry entry_of(const nlohmann::json& value, const std::string& file, std::size_t number) {
  const JsonReader reader(value, file, fmt::format("[{}]", number));
  Entry entry{reader.text("node_id"), reader.non_negative("event_time") * kDay,
              reader.choice("event_type", {"fault_start", "fault_end"}) == 0};
  return entry;
}

}  // namespace

FaultTrace read_fault_trace(const std::filesystem::path& file, int nodes) {
  const nlohmann::json document = read_json_file(file);
  if (!document.is_array()) {
    throw bad_input("a fault trace is a list of faults that start and end", "see docs/reference/simulate.md",
                    {file.string()});
  }
  std::vector<Entry> entries;
  for (std::size_t i = 0; i < document.size(); ++i) entries.push_back(entry_of(document[i], file.string(), i));
  // A fault may end at the time it starts, so that the order of the file counts where times are equal.
  std::stable_sort(entries.begin(), entries.end(),
                   [](const Entry& a, const Entry& b) { return a.seconds < b.seconds; });
  FaultTrace trace;
  std::map<std::string, int> numbers;
  std::map<int, std::vector<std::size_t>> open;  // by node, oldest first
  for (const Entry& entry : entries) {
    const int node = numbers.try_emplace(entry.node, static_cast<int>(numbers.size())).first->second;
    trace.seconds = std::max(trace.seconds, entry.seconds);
    if (entry.starts) {
      open[node].push_back(trace.faults.size());
      trace.faults.push_back({entry.seconds, kNever, node});
    } else if (auto& waiting = open[node]; !waiting.empty()) {
      trace.faults[waiting.front()].end = entry.seconds;
      waiting.erase(waiting.begin());
    }  // else it began before the trace did
  }
  trace.nodes = std::max(nodes, static_cast<int>(numbers.size()));
  if (nodes > 0 && nodes < static_cast<int>(numbers.size())) {
    throw bad_input(fmt::format("{} nodes have faults in it, --trace-nodes says {}", numbers.size(), nodes),
                    "give the number of nodes that the trace was recorded on", {file.string()});
  }
  return trace;
}

FaultTrace part_of(const FaultTrace& trace, double first, double last) {
  FaultTrace part{trace.nodes, last - first, {}};
  for (const Fault& fault : trace.faults) {
    if (fault.begin >= last || fault.end <= first) continue;
    part.faults.push_back(
        {std::max(0.0, fault.begin - first), fault.end > last ? kNever : fault.end - first, fault.node});
  }
  return part;
}

int nodes_down(const FaultTrace& trace, double share) {
  struct Change {
    double time;
    int node;
    int by;
  };
  std::vector<Change> changes;
  for (const Fault& fault : trace.faults) {
    changes.push_back({fault.begin, fault.node, 1});
    if (fault.end < trace.seconds) changes.push_back({fault.end, fault.node, -1});
  }
  std::sort(changes.begin(), changes.end(), [](const Change& a, const Change& b) { return a.time < b.time; });
  std::vector<int> faults_of(static_cast<std::size_t>(std::max(trace.nodes, 1)));
  std::map<int, double> seconds_with;  // this many down
  int down = 0;
  double now = 0.0;
  for (const Change& change : changes) {
    seconds_with[down] += std::min(change.time, trace.seconds) - now;
    now = std::min(change.time, trace.seconds);
    int& count = faults_of[static_cast<std::size_t>(change.node)];
    down += (count + change.by > 0 ? 1 : 0) - (count > 0 ? 1 : 0);
    count += change.by;
  }
  seconds_with[down] += trace.seconds - now;
  double passed = 0.0;
  for (const auto& [number, seconds] : seconds_with) {
    passed += seconds;
    if (passed >= share * trace.seconds) return number;
  }
  return seconds_with.rbegin()->first;
}

RepairTimes RepairTimes::constant(double seconds) {
  RepairTimes times;
  times.times_ = {seconds};
  return times;
}

RepairTimes RepairTimes::exponential(double mean_seconds) {
  RepairTimes times;
  times.times_ = tabulate([&](double share) { return -mean_seconds * std::log1p(-share); });
  return times;
}

RepairTimes RepairTimes::log_normal(double median_seconds, double mean_seconds) {
  const double sigma = std::sqrt(2 * std::log(std::max(1.0, mean_seconds / median_seconds)));
  RepairTimes times;
  times.times_ = tabulate([&](double share) { return median_seconds * std::exp(sigma * normal_quantile(share)); });
  return times;
}

RepairTimes RepairTimes::observed(const FaultTrace& trace) {
  std::vector<std::pair<double, bool>> seen;  // seconds, ended
  for (const Fault& fault : trace.faults) {
    const bool ended = fault.end <= trace.seconds;
    seen.emplace_back((ended ? fault.end : trace.seconds) - fault.begin, ended);
  }
  std::sort(seen.begin(), seen.end());
  std::vector<std::pair<double, double>> done;  // share repaired after so many seconds
  double open = 1.0;
  for (std::size_t i = 0; i < seen.size(); ++i) {
    if (!seen[i].second) continue;
    open *= 1.0 - 1.0 / static_cast<double>(seen.size() - i);
    done.emplace_back(1.0 - open, seen[i].first);
  }
  RepairTimes times;
  if (done.empty()) return constant(trace.seconds);
  times.times_ = tabulate([&](double share) {
    const auto place = std::lower_bound(done.begin(), done.end(), std::pair(share, 0.0));
    return place == done.end() ? seen.back().first : place->second;
  });
  return times;
}

double RepairTimes::at(double uniform) const {
  const auto place = static_cast<std::size_t>(uniform * static_cast<double>(times_.size()));
  return times_[std::min(place, times_.size() - 1)];
}

double RepairTimes::at_beyond(double age, double uniform) const {
  const auto first = std::upper_bound(times_.begin(), times_.end(), age);
  if (first == times_.end()) return 2.0 * age;
  return first[static_cast<std::ptrdiff_t>(uniform * static_cast<double>(times_.end() - first))];
}

double RepairTimes::mean() const {
  return std::accumulate(times_.begin(), times_.end(), 0.0) / static_cast<double>(times_.size());
}

namespace {

class IndependentFaults final : public FaultSource {
 public:
  IndependentFaults(double per_node_second, RepairTimes repair)
      : per_node_second_(per_node_second), repair_(std::move(repair)) {}

  // The superposition of all nodes is one Poisson process whose faults fall on nodes at random.
  FaultTrace draw(int nodes, double seconds, std::uint64_t seed) const override {
    FaultTrace trace{nodes, seconds, {}};
    Random random(seed);
    const double rate = per_node_second_ * nodes;
    if (rate <= 0) return trace;
    trace.faults.reserve(static_cast<std::size_t>(rate * seconds * 1.1) + 16);
    for (double now = random.exponential(rate); now < seconds; now += random.exponential(rate)) {
      trace.faults.push_back(
          {now, now + repair_.at(random.uniform()), static_cast<int>(random.below(static_cast<std::uint64_t>(nodes)))});
    }
    return trace;
  }

  std::string describe() const override {
    return fmt::format("independent faults, {:.3g} per 1,000 node-days, repaired in {:.3g} h on average",
                       per_node_second_ * kDay * 1000.0, repair_.mean() / 3600.0);
  }

 private:
  double per_node_second_;
  RepairTimes repair_;
};

// Numbers first, first + 1, ... in random order.
std::vector<int> shuffled(int count, int first, Random& random) {
  std::vector<int> place(static_cast<std::size_t>(count));
  std::iota(place.begin(), place.end(), first);
  for (std::size_t i = place.size(); i > 1; --i) std::swap(place[i - 1], place[random.below(i)]);
  return place;
}

class ReplayedFaults final : public FaultSource {
 public:
  explicit ReplayedFaults(FaultTrace trace) : trace_(std::move(trace)) {}

  FaultTrace draw(int nodes, double seconds, std::uint64_t seed) const override {
    FaultTrace drawn{nodes, seconds, {}};
    Random random(seed);
    for (int first = 0; first < nodes; first += trace_.nodes) add_copy(drawn, first, random);
    sort_by_begin(drawn.faults);
    return drawn;
  }

  std::string describe() const override {
    return fmt::format("{} recorded faults of {} nodes in {:.0f} days", trace_.faults.size(), trace_.nodes,
                       trace_.seconds / kDay);
  }

 private:
  void add_copy(FaultTrace& drawn, int first, Random& random) const {
    const std::vector<int> place = shuffled(trace_.nodes, first, random);
    const double offset = random.uniform() * trace_.seconds;
    for (const Fault& fault : trace_.faults) {
      const int node = place[static_cast<std::size_t>(fault.node)];
      if (node >= drawn.nodes) continue;
      const double lasts = std::min(fault.end, trace_.seconds) - fault.begin;
      double begin = fault.begin - offset;
      while (begin + lasts <= 0) begin += trace_.seconds;
      for (; begin < drawn.seconds; begin += trace_.seconds)
        drawn.faults.push_back({std::max(0.0, begin), begin + lasts, node});
    }
  }

  FaultTrace trace_;
};

class ContinuedFaults final : public FaultSource {
 public:
  explicit ContinuedFaults(FaultTrace trace) : trace_(std::move(trace)), repair_(RepairTimes::observed(trace_)) {}

  FaultTrace draw(int nodes, double seconds, std::uint64_t seed) const override {
    FaultTrace drawn{nodes, seconds, {}};
    Random random(seed);
    for (int first = 0; first < nodes; first += trace_.nodes) add_copy(drawn, first, random);
    sort_by_begin(drawn.faults);
    return drawn;
  }

  std::string describe() const override {
    return fmt::format("what follows {} recorded faults of {} nodes in {:.0f} days", trace_.faults.size(), trace_.nodes,
                       trace_.seconds / kDay);
  }

 private:
  void add_copy(FaultTrace& drawn, int first, Random& random) const {
    const std::vector<int> place = shuffled(trace_.nodes, first, random);
    const double offset = random.uniform() * trace_.seconds;
    for (const Fault& fault : trace_.faults) {
      const int node = place[static_cast<std::size_t>(fault.node)];
      if (node >= drawn.nodes) continue;
      const bool open = fault.end > trace_.seconds;
      const double age = trace_.seconds - fault.begin;
      const double lasts = open ? repair_.at_beyond(age, random.uniform()) : fault.end - fault.begin;
      if (open) drawn.faults.push_back({0.0, lasts - age, node});
      // Faults that the trace began with are no new ones.
      if (fault.begin <= 0) continue;
      for (double begin = fault.begin < offset ? fault.begin - offset + trace_.seconds : fault.begin - offset;
           begin < drawn.seconds; begin += trace_.seconds) {
        drawn.faults.push_back({begin, begin + lasts, node});
      }
    }
  }

  FaultTrace trace_;
  RepairTimes repair_;
};

}  // namespace

std::unique_ptr<FaultSource> continued_faults(FaultTrace trace) {
  return std::make_unique<ContinuedFaults>(std::move(trace));
}

std::unique_ptr<FaultSource> independent_faults(double per_node_second, RepairTimes repair) {
  return std::make_unique<IndependentFaults>(per_node_second, std::move(repair));
}

std::unique_ptr<FaultSource> replayed_faults(FaultTrace trace) {
  return std::make_unique<ReplayedFaults>(std::move(trace));
}

}  // namespace lockstep::sim
