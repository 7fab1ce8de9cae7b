// The run store at size: what long runs and many runs weigh, how long a page waits for it, and what recording costs a
// rank. Prints one line of JSON per figure; bench/reports/store.md has a table made of them.
//
// usage: store_bench curve|many|month|writer FOLDER [RUNS METRICS POINTS]
// Everything is written through RunStore::write() or a Recorder. FOLDER is made and left there.
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <random>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/telemetry/recorder.h"
#include "lockstep/telemetry/run_store.h"

namespace {

using namespace lockstep;
using namespace lockstep::telemetry;
namespace fs = std::filesystem;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

void print(const std::string& what, double value, const std::string& unit) {
  fmt::print("{{\"what\": \"{}\", \"value\": {:.6g}, \"unit\": \"{}\"}}\n", what, value, unit);
  std::fflush(stdout);
}

// The first call, and the median of some more.
void time_query(const std::string& what, const std::function<std::size_t()>& query) {
  std::vector<double> times;
  std::size_t rows = 0;
  for (int i = 0; i < 15; ++i) {
    const double begin = now();
    rows = query();
    times.push_back((now() - begin) * 1e3);
  }
  print(what + fmt::format(" ({} rows), first", rows), times[0], "ms");
  std::sort(times.begin(), times.end());
  print(what + ", median", times[times.size() / 2], "ms");
  print(what + ", fastest", times[0], "ms");
}

double megabytes(const fs::path& folder) {
  double bytes = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file()) bytes += static_cast<double>(entry.file_size());
  return bytes / 1e6;
}

RunInfo run_info(const std::string& id, int world, double started_at) {
  RunInfo info = describe_this_process({.id = id, .name = "bench", .world = world, .backend = "local"});
  info.started_at = started_at;
  return info;
}

class Noise {
 public:
  // As an engine makes them: a float that falls, or a duration with all its digits.
  double loss(double step) { return static_cast<float>(10.0 / std::sqrt(step) + 0.01 * normal_(random_)); }
  double seconds() { return 0.8 + 0.02 * normal_(random_); }

 private:
  std::mt19937_64 random_{1};
  std::normal_distribution<double> normal_;
};

void curve(const fs::path& folder) {
  constexpr std::int64_t kSteps = 1'000'000;
  const auto store = make_sqlite_run_store(store_file(folder));
  Noise noise;
  std::vector<Record> batch{run_info("run", 1, 1.0)};
  const double begin = now();
  for (std::int64_t step = 1; step <= kSteps; ++step) {
    const auto at = static_cast<double>(step);
    batch.emplace_back(MetricBatch{0, step, at, {{"loss", noise.loss(at)}, {"step_seconds", noise.seconds()}}});
    if (batch.size() < 4096) continue;
    store->write("run", batch);
    batch.clear();
  }
  store->write("run", batch);
  print("2 metrics x 1M steps written", now() - begin, "s");
  print("store", megabytes(folder), "MB");
  for (const std::string metric : {"loss", "step_seconds"}) {
    time_query(metric + ": 1,500 buckets of 1M steps",
               [&] { return store->buckets("run", metric, 0, 1, kSteps, 1500).size(); });
    time_query(metric + ": zoom to 100,000 steps",
               [&] { return store->buckets("run", metric, 0, 400'001, 500'000, 1500).size(); });
    time_query(metric + ": zoom to the last 10,000",
               [&] { return store->buckets("run", metric, 0, 990'001, kSteps, 1500).size(); });
    time_query(metric + ": what is new after 999,990",
               [&] { return store->points_after("run", metric, 0, 999'990).size(); });
  }
  time_query("loss: all points", [&] { return store->points("run", "loss", 0).size(); });
}

void many(const fs::path& folder, int runs, int metrics, int points) {
  const auto store = make_sqlite_run_store(store_file(folder));
  Noise noise;
  std::vector<std::string> names{"loss", "tokens_per_second", "step_seconds"};
  while (static_cast<int>(names.size()) < metrics) names.push_back(fmt::format("layer_{:04}_norm", names.size()));
  const double begin = now();
  for (int run = 0; run < runs; ++run) {
    const std::string id = fmt::format("20261101-{:06}-abcdef-bench", run);
    std::vector<Record> batch{run_info(id, 1, 1000.0 + run)};
    for (int step = 1; step <= points; ++step) {
      MetricBatch values{0, step, 1000.0 + run + step, {}};
      values.metrics.reserve(names.size());
      for (const std::string& name : names) values.metrics.push_back({name, noise.loss(step)});
      batch.emplace_back(std::move(values));
      if (batch.size() < 64) continue;
      store->write(id, batch);
      batch.clear();
    }
    batch.emplace_back(RunEnd{2000.0, RunStatus::kDone, "", {{"steps", points}}});
    store->write(id, batch);
  }
  print(fmt::format("{} runs x {} metrics x {} points written", runs, metrics, points), now() - begin, "s");
  print("store", megabytes(folder), "MB");
}

void read_many(const fs::path& folder) {
  const double begin = now();
  const auto opened = open_run_store(folder);
  const auto rows = opened->runs(100);
  for (const RunRow& row : rows) {
    const std::string& id = row.info.id;
    for (const char* metric : {"loss", "tokens_per_second"}) {
      const auto last = opened->last_step(id, metric, 0);
      if (last) opened->points_after(id, metric, 0, *last - 1);
    }
  }
  print(fmt::format("first page of {} runs: list, last loss and throughput of each", rows.size()),
        (now() - begin) * 1e3, "ms");
  time_query("runs()", [&] { return opened->runs(100).size(); });
  const std::string id = rows[rows.size() / 2].info.id;
  time_query("metric_names() of one", [&] { return opened->metric_names(id).size(); });
  time_query("one curve, 1,500 buckets",
             [&] { return opened->buckets(id, "layer_0500_norm", 0, 1, 10'000, 1500).size(); });
  time_query("100 curves (one of every run), 400 buckets each", [&] {
    std::size_t all = 0;
    for (const RunRow& row : rows) all += opened->buckets(row.info.id, "loss", 0, 1, 10'000, 400).size();
    return all;
  });
}

constexpr const char* kRankMetrics[] = {
    "step_seconds", "compute_seconds", "forward_seconds",   "backward_seconds",   "comm_seconds",
    "wait_seconds", "data_seconds",    "optimizer_seconds", "checkpoint_seconds", "host_seconds",
    "cpu_seconds",  "preemptions",     "targets",           "memory_bytes",       "allocated_bytes"};
constexpr const char* kRunMetrics[] = {"loss", "gradient_norm", "learning_rate", "tokens_per_second", "mfu", "goodput"};

std::vector<Metric> step_metrics(int rank, std::int64_t step, Noise& noise) {
  std::vector<Metric> metrics;
  for (const char* name : kRankMetrics) metrics.push_back({name, noise.seconds()});
  metrics[11].value = static_cast<double>(step % 7);
  metrics[12].value = 8192;
  metrics[13].value = metrics[14].value = 60e9;
  if (rank != 0) return metrics;
  for (const char* name : kRunMetrics) metrics.push_back({name, noise.loss(static_cast<double>(step))});
  return metrics;
}

SpanBatch step_spans(int rank, std::int64_t step, Noise& noise, int count) {
  static const auto kNames = std::make_shared<const std::vector<std::string>>(
      std::vector<std::string>{"all_reduce", "dp", "reduce_scatter", "tp"});
  SpanBatch batch{rank, step, 1e9 + static_cast<double>(step), kNames, {}};
  for (int i = 0; i < count; ++i) {
    batch.spans.push_back({.kind = i % 3 ? SpanKind::kForward : SpanKind::kCollective,
                           .lane = i % 3 ? SpanLane::kMain : SpanLane::kComm,
                           .micro = static_cast<std::int16_t>(i % 8),
                           .name = i % 3 ? -1 : 0,
                           .group = i % 3 ? -1 : 1,
                           .begin = static_cast<float>(0.01 * i),
                           .seconds = static_cast<float>(0.01 * noise.seconds()),
                           .bytes = i % 3 ? 0 : 1 << 20,
                           .sequence = i % 3 ? -1 : step * count + i});
  }
  return batch;
}

// Thirty days of a step a second and 64 ranks. Ranks do not share series: three are written, the rest is their sum.
void month(const fs::path& folder) {
  constexpr int kWorld = 64;
  constexpr std::int64_t kSteps = 30 * 86400;
  const auto store = make_sqlite_run_store(store_file(folder));
  store->write("run", std::vector<Record>{run_info("run", kWorld, 1.0)});
  Noise noise;
  double before = megabytes(folder), rank0 = 0, others = 0;
  for (int rank = 0; rank < 3; ++rank) {
    const double begin = now(), cpu = cpu_seconds();
    std::vector<Record> batch;
    for (std::int64_t step = 1; step <= kSteps; ++step) {
      batch.emplace_back(MetricBatch{rank, step, static_cast<double>(step), step_metrics(rank, step, noise)});
      if (step <= 1000 || step % 10 == 0 || step > kSteps - 2000)
        batch.emplace_back(step_spans(rank, step, noise, 150));
      if (batch.size() < 512) continue;
      store->write("run", batch);
      batch.clear();
    }
    store->write("run", batch);
    const double size = megabytes(folder);
    print(fmt::format("rank {}: {} steps written", rank, kSteps), now() - begin, "s");
    print(fmt::format("rank {}: CPU of making and writing a step", rank), (cpu_seconds() - cpu) / kSteps * 1e6, "us");
    print(fmt::format("rank {}: store grew by", rank), size - before, "MB");
    (rank == 0 ? rank0 : others) += size - before;
    before = size;
  }
  print("30 days, 64 ranks: rank 0 + 63 x the mean of two others", rank0 + 63 * others / 2, "MB");
  time_query("loss, 1,500 buckets of 2.6M steps",
             [&] { return store->buckets("run", "loss", 0, 1, kSteps, 1500).size(); });
  time_query("step_seconds of rank 2, 1,500 buckets",
             [&] { return store->buckets("run", "step_seconds", 2, 1, kSteps, 1500).size(); });
  time_query("what is new", [&] { return store->points_after("run", "loss", 0, kSteps - 4).size(); });
  time_query("spans of one step", [&] { return store->spans("run", kSteps, kSteps).size(); });
  time_query("steps that have spans", [&] { return store->span_steps("run").size(); });
}

// What a rank pays: steps at a pace, all threads of the process counted; making the records is measured apart.
void writer(const fs::path& folder) {
  constexpr int kSteps = 600;
  constexpr double kStepSeconds = 0.02;
  Noise noise;
  const double making = cpu_seconds();
  std::size_t made = 0;
  for (int step = 1; step <= kSteps; ++step)
    made += step_metrics(0, step, noise).size() + step_spans(0, step, noise, 150).spans.size();
  const double make_cpu = cpu_seconds() - making;
  auto recorder = open_recorder(folder, "run", 0);
  recorder->begin_run(run_info("run", 4, 1.0));
  recorder->flush(10.0);
  const double cpu = cpu_seconds();
  double in_calls = 0;
  for (int step = 1; step <= kSteps; ++step) {
    auto metrics = step_metrics(0, step, noise);
    auto spans = step_spans(0, step, noise, 150);
    const double begin = now();
    recorder->metrics(0, step, std::move(metrics));
    recorder->spans(std::move(spans));
    in_calls += now() - begin;
    std::this_thread::sleep_for(std::chrono::duration<double>(kStepSeconds));
  }
  recorder->flush(10.0);
  print(fmt::format("21 metrics and 150 spans a step ({} values): in the step", made / kSteps), in_calls / kSteps * 1e6,
        "us");
  print("CPU of the background thread for a step", (cpu_seconds() - cpu - make_cpu) / kSteps * 1e6, "us");
  print("dropped", static_cast<double>(recorder->stats().dropped), "records");
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() < 2) {
    fmt::print(stderr, "usage: store_bench curve|many|read-many|month|writer FOLDER [RUNS METRICS POINTS]\n");
    return 2;
  }
  try {
    make_folders(words[1]);
    const auto number = [&](std::size_t i, int otherwise) {
      return words.size() > i ? std::stoi(words[i]) : otherwise;
    };
    if (words[0] == "curve") curve(words[1]);
    if (words[0] == "many") many(words[1], number(2, 100), number(3, 1000), number(4, 10'000));
    if (words[0] == "many" || words[0] == "read-many") read_many(words[1]);
    if (words[0] == "month") month(words[1]);
    if (words[0] == "writer") writer(words[1]);
  } catch (const UserError& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
  return 0;
}
