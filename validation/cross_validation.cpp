#include "validation/cross_validation.h"

#include <atomic>
#include <cmath>
#include <mutex>
#include <set>
#include <thread>

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

// One thread's own measurements: pricers are turned while they are fitted.
class Workbench {
 public:
  Workbench(const std::string& folder, std::size_t most_rows_of_a_source) : measurements_(load_measurements(folder)) {
    const std::set<std::string> kept = ids_of_each_source(measurements_, most_rows_of_a_source);
    for (Measurement& m : measurements_) {
      if (!m.pricer || !kept.contains(m.row.id)) continue;
      if (m.step_seconds) add_time(m);
      if (m.memory_bytes) add_memory(m);
    }
  }

  // Without the rows of `left_out` ("": all).
  Fit fit_without(const std::string& left_out, const GroupOf& group, const Fit& start, const FitOptions& time_options,
                  const FitOptions& memory_options) {
    Fit result;
    result.time = fit(chosen(time_, time_owner_, left_out, group), start.time, time_options);
    current_time_ = &result.time;
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
                       m.pricer->recalibrate(constants);
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
                         m.pricer->recalibrate(combine(current_time_->at(m.hardware, question.stack), constants));
                         const cost::Price price = m.pricer->price(question.layout, question.batch);
                         const double predicted =
                             question.memory_is_reserved ? price.memory.total() : price.allocated_bytes();
                         return std::log(predicted / *m.memory_bytes);
                       }});
    memory_owner_.push_back(&m);
  }

  static std::vector<const Observation*> chosen(const std::vector<Observation>& all,
                                                const std::vector<const Measurement*>& owner,
                                                const std::string& left_out, const GroupOf& group) {
    std::vector<const Observation*> kept;
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (left_out.empty() || group(*owner[i]) != left_out) kept.push_back(&all[i]);
    }
    return kept;
  }

  std::vector<Measurement> measurements_;
  std::vector<Observation> time_, memory_;
  std::vector<const Measurement*> time_owner_, memory_owner_;
  const PooledConstants* current_time_ = nullptr;
};

}  // namespace

cost::Constants Fit::at(const std::string& hardware, const std::string& stack) const {
  return combine(time.at(hardware, stack), memory.at(hardware, stack));
}

Fit fit_all(const std::string& folder, int threads, std::size_t most_rows_of_a_source) {
  Workbench bench(folder, most_rows_of_a_source);
  const auto none = [](const Measurement&) { return std::string(); };
  return bench.fit_without("", none, Fit{}, {.memory = false, .iterations = 40, .threads = threads},
                           {.memory = true, .iterations = 40, .threads = threads});
}

std::map<std::string, Fit> fit_without_each(const std::string& folder, const Fit& whole, const GroupOf& group,
                                            int threads, const FitProgress& progress, const FoldEffort& effort) {
  std::map<std::string, Fit> fits;
  {
    const Workbench bench(folder, effort.most_rows_of_a_source);
    for (const Measurement& m : bench.measurements()) {
      if (m.pricer && (m.step_seconds || m.memory_bytes || m.failed)) fits[group(m)];
    }
  }
  std::vector<std::map<std::string, Fit>::iterator> work;
  for (auto it = fits.begin(); it != fits.end(); ++it) work.push_back(it);
  std::atomic<std::size_t> next = 0;
  std::size_t done = 0;
  std::mutex mutex;
  const auto run = [&] {
    Workbench bench(folder, effort.most_rows_of_a_source);
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
