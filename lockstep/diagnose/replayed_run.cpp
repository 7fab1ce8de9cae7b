#include "lockstep/diagnose/replayed_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/diagnose/run.h"
#include "lockstep/diagnose/statistics.h"
#include "lockstep/sim/replay.h"

namespace lockstep::diagnose {
namespace {

using telemetry::Span;
using telemetry::SpanBatch;
using telemetry::SpanKind;
using telemetry::SpanLane;

// An exchange: its group, who sends to whom (messages; else -1), its number.
using ExchangeKey = std::tuple<std::string, int, int, std::int64_t>;

ExchangeKey key_of(const SpanBatch& batch, const Span& span) {
  const std::string_view name = batch.text(span.name);
  const bool sends = name.starts_with("send"), receives = name.starts_with("recv");
  return {std::string(batch.text(span.group)),
          sends      ? batch.rank
          : receives ? span.peer
                     : -1,
          sends      ? span.peer
          : receives ? batch.rank
                     : -1,
          span.sequence};
}

// One step as operations: pieces of the main thread's work between what it waits for, and exchanges.
class SpansReplay {
 public:
  explicit SpansReplay(const std::vector<SpanBatch>& ranks) {
    first_ = std::numeric_limits<double>::infinity();
    for (const SpanBatch& batch : ranks) first_ = std::min(first_, batch.time);
    for (const SpanBatch& batch : ranks) add_rank(batch);
    for (const auto& [key, members] : exchanges_) {
      for (const std::size_t member : members) replay_.together(members.front(), member);
    }
    find_seconds();
  }

  ReplayedRunStep figures() const {
    ReplayedRunStep step;
    step.measured_seconds = last_ - first_;
    step.simulated_seconds = replay_.length(seconds_, pauses_);
    step.without_pauses_seconds = replay_.length(seconds_);
    step.straggler_free_seconds = replay_.length(even_seconds());
    return step;
  }

 private:
  struct Mark {
    double time = 0.0;
    int order = 0;  // at equal times: ends of waits, begins of exchanges, begins of waits
    std::size_t place = 0;
    bool operator<(const Mark& other) const { return std::tie(time, order) < std::tie(other.time, other.order); }
  };

  std::size_t add(double begin, double end, int rank, std::string kind) {
    begins_.push_back(begin);
    ends_.push_back(end);
    rank_.push_back(rank);
    kinds_.push_back(std::move(kind));
    last_ = std::max(last_, end);
    return replay_.add();
  }

  void add_rank(const SpanBatch& batch) {
    double from = 0.0, until = 0.0;
    std::vector<Mark> marks;
    std::vector<Span> waits, exchanges;
    for (const Span& span : batch.spans) {
      if (span.kind == SpanKind::kStep) from = span.begin, until = span.begin + span.seconds;
      if (span.kind == SpanKind::kWait && span.lane == SpanLane::kMain) waits.push_back(span);
      if (span.kind == SpanKind::kCollective && span.lane == SpanLane::kComm && span.sequence >= 0)
        exchanges.push_back(span);
    }
    for (std::size_t i = 0; i < waits.size(); ++i) {
      marks.push_back({waits[i].begin, 2, i});
      marks.push_back({static_cast<double>(waits[i].begin) + waits[i].seconds, 0, i});
    }
    for (std::size_t i = 0; i < exchanges.size(); ++i) marks.push_back({exchanges[i].begin, 1, i});
    std::stable_sort(marks.begin(), marks.end());

    Rank rank{.batch = batch, .from = from};
    for (const Mark& mark : marks) {
      if (mark.time < from || mark.time > until) continue;
      if (mark.order == 2) {
        close_work(rank, mark.time);
        rank.waiting = true;
      } else if (mark.order == 0) {
        end_wait(rank, waits[mark.place], mark.time);
      } else {
        begin_exchange(rank, exchanges[mark.place]);
      }
    }
    if (!rank.waiting) close_work(rank, until);
  }

  struct Rank {
    const SpanBatch& batch;
    double from = 0.0;  // the piece of work that goes on began then
    bool waiting = false;
    std::optional<std::size_t> last;        // piece of work
    std::optional<std::size_t> waited_for;  // exchange that the next piece follows
    std::map<ExchangeKey, std::size_t> own;
    std::map<std::tuple<std::string, int, int>, std::size_t> lanes;  // the last exchange of a group or pair
  };

  void close_work(Rank& rank, double until) {
    if (rank.waiting) return;
    const std::size_t piece = add(rank.batch.time + rank.from, rank.batch.time + until, rank.batch.rank, "");
    if (rank.last) replay_.after(piece, *rank.last);
    if (rank.waited_for) replay_.after(piece, *rank.waited_for);
    rank.waited_for.reset();
    rank.last = piece;
    rank.from = until;
  }

  void end_wait(Rank& rank, const Span& wait, double time) {
    if (!rank.waiting) return;
    rank.waiting = false;
    const auto found = rank.own.find(key_of(rank.batch, wait));
    if (found != rank.own.end()) {
      rank.waited_for = found->second;
      rank.from = time;
    }  // else nobody knows what for: it counts as work
  }

  void begin_exchange(Rank& rank, const Span& span) {
    if (!rank.waiting) close_work(rank, span.begin);
    const double begin = rank.batch.time + span.begin;
    const std::size_t exchange =
        add(begin, begin + span.seconds, rank.batch.rank, std::string(rank.batch.text(span.name)));
    if (rank.last) replay_.after(exchange, *rank.last);
    const ExchangeKey key = key_of(rank.batch, span);
    const auto [lane, is_new] =
        rank.lanes.try_emplace({std::get<0>(key), std::get<1>(key), std::get<2>(key)}, exchange);
    if (!is_new) {
      replay_.after(exchange, lane->second);
      lane->second = exchange;
    }
    rank.own[key] = exchange;
    exchanges_[key].push_back(exchange);
  }

  // Of exchanges the time since the last member came.
  void find_seconds() {
    seconds_.resize(begins_.size());
    for (const std::vector<std::size_t>& group : replay_.groups()) {
      double last = begins_[group.front()];
      for (const std::size_t i : group) last = std::max(last, begins_[i]);
      for (const std::size_t i : group) seconds_[i] = std::max(0.0, ends_[i] - last);
    }
    pauses_ = replay_.released(ends_, first_);
    for (std::size_t i = 0; i < pauses_.size(); ++i) pauses_[i] = std::max(0.0, begins_[i] - pauses_[i]);
  }

  std::vector<double> even_seconds() const {
    std::map<int, double> work;
    std::map<std::string, std::vector<double>> exchanges;
    for (std::size_t i = 0; i < seconds_.size(); ++i) {
      if (kinds_[i].empty()) {
        work[rank_[i]] += seconds_[i];
      } else {
        exchanges[kinds_[i]].push_back(seconds_[i]);
      }
    }
    double mean = 0.0;
    for (const auto& [rank, seconds] : work) mean += seconds / static_cast<double>(work.size());
    std::map<std::string, double> usual;
    for (const auto& [kind, seconds] : exchanges) usual[kind] = median(seconds);
    std::vector<double> even = seconds_;
    for (std::size_t i = 0; i < even.size(); ++i) {
      if (!kinds_[i].empty()) {
        even[i] = usual.at(kinds_[i]);
      } else if (work.at(rank_[i]) > 0.0) {
        even[i] *= mean / work.at(rank_[i]);
      }
    }
    return even;
  }

  sim::Replay replay_;
  double first_ = 0.0, last_ = 0.0;
  std::vector<double> begins_, ends_, seconds_, pauses_;
  std::vector<int> rank_;
  std::vector<std::string> kinds_;  // name of the exchange; empty: work
  std::map<ExchangeKey, std::vector<std::size_t>> exchanges_;
};

void check_clocks(const RunEvidence& evidence) {
  for (const Place& place : evidence.places) {
    if (place.node != evidence.places.front().node) {
      throw bad_input(fmt::format("run {} was on several nodes, whose clocks differ", evidence.row.info.id),
                      "replay is for runs of one node; lockstep diagnose reads this one");
    }
  }
}

}  // namespace

double ReplayedRunStep::error() const {
  return measured_seconds > 0.0 ? std::abs(simulated_seconds - measured_seconds) / measured_seconds : 0.0;
}

double ReplayedRunStep::slow_down() const {
  return straggler_free_seconds > 0.0 ? without_pauses_seconds / straggler_free_seconds : 1.0;
}

ReplayedRunStep ReplayedRun::mean() const {
  ReplayedRunStep sum;
  const double share = steps.empty() ? 0.0 : 1.0 / static_cast<double>(steps.size());
  for (const ReplayedRunStep& step : steps) {
    sum.measured_seconds += share * step.measured_seconds;
    sum.simulated_seconds += share * step.simulated_seconds;
    sum.without_pauses_seconds += share * step.without_pauses_seconds;
    sum.straggler_free_seconds += share * step.straggler_free_seconds;
  }
  return sum;
}

double ReplayedRun::mean_error() const {
  double sum = 0.0;
  for (const ReplayedRunStep& step : steps) sum += step.error() / static_cast<double>(steps.size());
  return sum;
}

double ReplayedRun::worst_error() const {
  double largest = 0.0;
  for (const ReplayedRunStep& step : steps) largest = std::max(largest, step.error());
  return largest;
}

ReplayedRunStep replay_spans(const std::vector<SpanBatch>& ranks) {
  ReplayedRunStep step = SpansReplay(ranks).figures();
  step.step = ranks.front().step;
  return step;
}

ReplayedRun replay_run(const telemetry::RunStore& store, const std::string& run) {
  const std::optional<telemetry::RunRow> row = store.find(run);
  if (!row) throw bad_input(fmt::format("there is no run `{}`", printable(run)), "lockstep report lists them");
  const RunEvidence evidence = read_evidence(store, *row);
  check_clocks(evidence);
  ReplayedRun replayed{.run = row->info.id, .ranks = evidence.world()};
  std::map<std::int64_t, std::vector<SpanBatch>> by_step;
  for (const SpanBatch& batch : evidence.spans) by_step[batch.step].push_back(batch);
  for (const auto& [step, batches] : by_step) {
    if (std::cmp_equal(batches.size(), evidence.world())) replayed.steps.push_back(replay_spans(batches));
  }
  if (replayed.steps.empty()) {
    throw bad_input(fmt::format("run {} has no step whose spans all {} ranks recorded", row->info.id, evidence.world()),
                    "a run of a few more steps, with `telemetry.spans`, has");
  }
  Diagnosis diagnosis = diagnose_evidence(evidence);
  if (!diagnosis.findings.empty()) replayed.worst = std::move(diagnosis.findings.front());
  return replayed;
}

nlohmann::json to_json(const ReplayedRun& replayed) {
  const auto row_of = [](const ReplayedRunStep& step) -> nlohmann::json {
    return {{"measured_seconds", step.measured_seconds},
            {"simulated_seconds", step.simulated_seconds},
            {"without_pauses_seconds", step.without_pauses_seconds},
            {"straggler_free_seconds", step.straggler_free_seconds},
            {"slowdown", step.slow_down()}};
  };
  nlohmann::json document = row_of(replayed.mean());
  document["schema"] = "lockstep.replay/1";
  document["run"] = replayed.run;
  document["cause"] = replayed.worst ? nlohmann::json(to_string(replayed.worst->cause)) : nlohmann::json();
  document["ranks"] = replayed.worst ? nlohmann::json(replayed.worst->ranks) : nlohmann::json::array();
  document["evidence"] = replayed.worst ? nlohmann::json(replayed.worst->evidence) : nlohmann::json();
  document["fix"] = replayed.worst ? nlohmann::json(replayed.worst->fix) : nlohmann::json();
  document["error"] = {{"mean", replayed.mean_error()}, {"worst", replayed.worst_error()}};
  document["steps"] = nlohmann::json::array();
  for (const ReplayedRunStep& step : replayed.steps) {
    nlohmann::json row = row_of(step);
    row["step"] = step.step;
    row["error"] = step.error();
    document["steps"].push_back(std::move(row));
  }
  return document;
}

}  // namespace lockstep::diagnose
