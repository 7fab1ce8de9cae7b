// What recording costs a rank, measured as processor time in this process: the steps of a recorded run are done again
// without the training, that is every span, phase and metric of theirs, into a store of their own.
//
//   bench_recording HOME RUN STEPS SCRATCH-HOME  ->  one line of JSON
#include <fmt/format.h>
#include <sys/resource.h>
#include <time.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/telemetry/recorder.h"
#include "lockstep/telemetry/run_store.h"
#include "lockstep/telemetry/span_log.h"

using namespace lockstep;
using namespace lockstep::telemetry;

namespace {

double seconds_of(clockid_t clock) {
  timespec time{};
  ::clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// As many spans as the batch has, nested or not as they come: the cost is the same.
void replay(SpanLog& log, const SpanBatch& batch) {
  for (const Span& span : batch.spans) {
    const SpanMark mark{.kind = span.kind,
                        .lane = span.lane,
                        .micro = span.micro,
                        .stage = span.stage,
                        .peer = span.peer,
                        .name = "all_reduce",
                        .site = span.group >= 0 ? "dp: gradients" : nullptr,
                        .group = span.group >= 0 ? "everyone:0-3" : nullptr,
                        .bytes = span.bytes,
                        .sequence = span.sequence};
    if (span.kind == SpanKind::kStep) continue;
    if (span.lane == SpanLane::kMain) {
      const SpanScope scope(mark);
    } else {
      const SpanScope scope(&log, mark);
    }
  }
}

std::vector<Metric> metrics_of_step() {
  std::vector<Metric> metrics;
  for (const char* name :
       {"step_seconds", "compute_seconds", "forward_seconds",   "backward_seconds",   "comm_seconds",
        "wait_seconds", "data_seconds",    "optimizer_seconds", "checkpoint_seconds", "host_seconds",
        "cpu_seconds",  "preemptions",     "targets",           "memory_bytes",       "allocated_bytes",
        "loss",         "gradient_norm",   "learning_rate",     "tokens_per_second",  "goodput"}) {
    metrics.push_back({name, 1.0 / static_cast<double>(metrics.size() + 3)});
  }
  return metrics;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  try {
    const std::string run = argv[2];
    const int steps = std::atoi(argv[3]);
    const auto store = open_run_store(argv[1]);
    const std::vector<std::int64_t> kept = store->span_steps(run, 0);
    if (kept.empty()) throw bad_input("the run has no spans", "record one with telemetry.spans: true");
    const std::vector<SpanBatch> batches = store->spans(run, kept.back(), kept.back(), 0);
    const SpanBatch& batch = batches.front();
    auto recorder = open_recorder(argv[4], "recording-cost", 0);
    SpanLog log(0);
    const CurrentSpanLog current(&log);
    log.begin_step(true);
    double main_seconds = 0.0;
    const double process_before = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
    for (int step = 1; step <= steps; ++step) {
      const double before = seconds_of(CLOCK_THREAD_CPUTIME_ID);
      replay(log, batch);
      rusage usage{};
      ::getrusage(RUSAGE_SELF, &usage);
      SpanLog::Step done = log.end_step(step, true);
      recorder->metrics(0, step, metrics_of_step());
      recorder->spans(std::move(done.spans));
      main_seconds += seconds_of(CLOCK_THREAD_CPUTIME_ID) - before;
      // A step every 5 ms, so that the background thread writes as it does beside a run.
      const timespec pause{0, 5'000'000};
      ::nanosleep(&pause, nullptr);
    }
    recorder->flush(30.0);
    const double process = seconds_of(CLOCK_PROCESS_CPUTIME_ID) - process_before;
    const RecorderStats stats = recorder->stats();
    fmt::print(
        "{{\"spans_per_step\": {}, \"steps\": {}, \"step_thread_us\": {:.3f}, \"all_threads_us\": {:.3f}, \"dropped\": "
        "{}}}\n",
        batch.spans.size(), steps, 1e6 * main_seconds / steps, 1e6 * process / steps, stats.dropped);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
  return 0;
}
