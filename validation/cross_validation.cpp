#include "validation/cross_validation.h"

#include <atomic>
#include <cmath>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "lockstep/planner/rows/observed_rows.h"
#include "validation/stall_fit.h"

namespace lockstep::validation {
namespace {

// Complete configurations count fully; the rest, with its guessed micro-batches and recompute, far less.
double time_sigma(const Measurement& m) { return m.strict ? 0.05 : 0.15; }
constexpr double kMemorySigma = 0.04;

cost::Constants combine(const cost::Constants& time, const cost::Constants& memory) {
  cost::Constants constants = time;
  for (const cost::ConstantInfo& info : cost::constant_table()) {
    if (info.is_memory) constants.*info.member = memory.*info.member;
  }
  return constants;
}

constexpr int kStallRounds = 2;  // of a fit without the runs that stalled by the one before

// One thread's own measurements: pricers are turned while they are fitted.
class Workbench {
 public:
  Workbench(const std::string& folder, std::size_t most_rows_of_a_source, const Accept& accept = nullptr)
      : measurements_(load_measurements(folder)) {
    const std::set<std::string> kept = ids_of_each_source(measurements_, most_rows_of_a_source);
    for (Measurement& m : measurements_) {
      if (!m.pricer || !kept.contains(m.row.id) || (accept && !accept(m))) continue;
      if (m.step_seconds) add_time(m);
      if (m.memory_bytes) add_memory(m);
    }
  }

  // Without the rows of `left_out` ("": all).
  Fit fit_without(const std::string& left_out, const GroupOf& group, const Fit& start, const FitOptions& time_options,
                  const FitOptions& memory_options) {
    Fit result{.time = start.time, .memory = start.memory, .stalls = {}};
    const auto fit_time = [&] {
      result.time = fit(chosen(time_, time_owner_, left_out, group), result.time, time_options);
    };
    stalled_.clear();
    if (start.time.by_stack.empty()) fit_time();
    for (int round = 0; round < kStallRounds; ++round) {
      find_stalls(result, left_out, group);
      fit_time();
    }
    find_stalls(result, left_out, group);
    current_ = &result;
    result.memory = fit(chosen(memory_, memory_owner_, left_out, group), start.memory, memory_options);
    return result;
  }

  const std::vector<Measurement>& measurements() const { return measurements_; }

 private:
  void add_time(Measurement& m) {
    const planner::RowQuestion& question = *m.reading.question;
    time_.push_back({.hardware = m.hardware,
                     .stack = question.stack,
                     .sigma = time_sigma(m),
                     .log_error = [&m, &question](const cost::Constants& constants) {
                       m.pricer->recalibrate(constants, cost::Stalls{});
                       const cost::Price price = m.pricer->price(question.layout, question.batch);
                       return std::log(price.step_seconds() / *m.step_seconds);
                     }});
    time_owner_.push_back(&m);
  }

  void add_memory(Measurement& m) {
    const planner::RowQuestion& question = *m.reading.question;
    memory_.push_back({.hardware = m.hardware,
                       .stack = question.stack,
                       .sigma = kMemorySigma,
                       .log_error = [this, &m, &question](const cost::Constants& constants) {
                         // Of these runs it is known whether they stalled.
                         m.pricer->recalibrate(combine(current_->time.at(m.hardware, question.stack), constants),
                                               stalled_.contains(&m) ? cost::certain_stall() : cost::Stalls{});
                         const cost::Price price = m.pricer->price(question.layout, question.batch);
                         const double predicted = planner::memory_bytes_of(question, *m.pricer, price);
                         return std::log(predicted / *m.memory_bytes);
                       }});
    memory_owner_.push_back(&m);
  }

  // Sets what runs stalled under the constants of `fit`, and what that says of layouts.
  void find_stalls(Fit& fit, const std::string& left_out, const GroupOf& group) {
    std::map<std::pair<std::string, std::string>, std::vector<StallExample>> examples;
    std::map<std::pair<std::string, std::string>, std::vector<const Measurement*>> owners;
    for (const Measurement* m : time_owner_) {
      if (!left_out.empty() && group(*m) == left_out) continue;
      const planner::RowQuestion& question = *m->reading.question;
      m->pricer->recalibrate(fit.at(m->hardware, question.stack), cost::Stalls{});
      const std::pair key(m->hardware, question.stack);
      examples[key].push_back(stall_example(*m));
      owners[key].push_back(m);
    }
    stalled_.clear();
    fit.stalls.clear();
    for (const auto& [key, runs] : examples) {
      const cost::Stalls stalls = fit_stalls(runs);
      if (stalls.runs == 0) continue;
      fit.stalls[key] = stalls;
      for (std::size_t i = 0; i < runs.size(); ++i) {
        if (is_stalled(runs[i])) stalled_.insert(owners[key][i]);
      }
    }
  }

  std::vector<const Observation*> chosen(const std::vector<Observation>& all,
                                         const std::vector<const Measurement*>& owner, const std::string& left_out,
                                         const GroupOf& group) const {
    const bool memory = &all == &memory_;
    std::vector<const Observation*> kept;
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (!memory && stalled_.contains(owner[i])) continue;
      if (left_out.empty() || group(*owner[i]) != left_out) kept.push_back(&all[i]);
    }
    return kept;
  }

  std::vector<Measurement> measurements_;
  std::vector<Observation> time_, memory_;
  std::vector<const Measurement*> time_owner_, memory_owner_;
  std::set<const Measurement*> stalled_;
  const Fit* current_ = nullptr;
};

}  // namespace

StallExample stall_example(const Measurement& m) {
  const planner::RowQuestion& question = *m.reading.question;
  const cost::Price price = m.pricer->price(question.layout, question.batch);
  const std::int64_t node = question.cluster.groups.front().devices_per_node;
  return {.terms = cost::stall_terms(question.layout, node, price.fill),
          .slots = static_cast<double>(cost::step_slots(question.layout, question.batch.accumulation)),
          .measured_seconds = *m.step_seconds,
          .ordinary_seconds = price.step_seconds()};
}

cost::Stalls Fit::stalls_at(const std::string& hardware, const std::string& stack) const {
  const auto found = stalls.find({hardware, stack});
  return found == stalls.end() ? cost::Stalls{} : found->second;
}

cost::Constants Fit::at(const std::string& hardware, const std::string& stack) const {
  return combine(time.at(hardware, stack), memory.at(hardware, stack));
}

Fit fit_all(const std::string& folder, int threads, std::size_t most_rows_of_a_source, const Accept& accept) {
  Workbench bench(folder, most_rows_of_a_source, accept);
  const auto none = [](const Measurement&) { return std::string(); };
  return bench.fit_without("", none, Fit{}, {.memory = false, .iterations = 40, .threads = threads},
                           {.memory = true, .iterations = 40, .threads = threads});
}

std::map<std::string, Fit> fit_without_each(const std::string& folder, const Fit& whole, const GroupOf& group,
                                            int threads, const FitProgress& progress, const FoldEffort& effort) {
  std::map<std::string, Fit> fits;
  {
    const Workbench bench(folder, effort.most_rows_of_a_source, effort.accept);
    for (const Measurement& m : bench.measurements()) {
      if (effort.accept && !effort.accept(m)) continue;
      if (m.pricer && (m.step_seconds || m.memory_bytes || m.failed)) fits[group(m)];
    }
  }
  std::vector<std::map<std::string, Fit>::iterator> work;
  for (auto it = fits.begin(); it != fits.end(); ++it) work.push_back(it);
  std::atomic<std::size_t> next = 0;
  std::size_t done = 0;
  std::mutex mutex;
  const auto run = [&] {
    Workbench bench(folder, effort.most_rows_of_a_source, effort.accept);
    // Wide again first, so that what only the left-out rows had said is forgotten before the narrow end.
    const FitOptions warm{
        .memory = false, .iterations = effort.iterations, .widenings = effort.widenings, .threads = 1};
    FitOptions warm_memory = warm;
    warm_memory.memory = true;
    for (std::size_t i = next++; i < work.size(); i = next++) {
      work[i]->second = bench.fit_without(work[i]->first, group, whole, warm, warm_memory);
      const std::lock_guard lock(mutex);
      if (progress.report) progress.report(++done, work.size());
    }
  };
  std::vector<std::thread> pool;
  for (int t = 0; t < std::max(1, threads); ++t) pool.emplace_back(run);
  for (std::thread& thread : pool) thread.join();
  return fits;
}

}  // namespace lockstep::validation
