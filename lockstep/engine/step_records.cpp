#include "lockstep/engine/step_records.h"

#include <sys/resource.h>

#include <algorithm>
#include <bit>

#include "lockstep/engine/chaos.h"
#include "lockstep/engine/nvtx.h"

namespace lockstep::engine {
namespace {

namespace metric = telemetry::metric;
using telemetry::Phase;

constexpr std::int64_t kFirstSteps = 10;  // whose spans are all kept
constexpr double kSecondsBetweenSpans = 0.25;
constexpr std::int64_t kLongestCadence = 1024;
constexpr double kDecay = 0.9;

struct Usage {
  double cpu_seconds = 0.0, preemptions = 0.0;
};

double seconds_of(const timeval& time) {
  return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
}

Usage usage_of_process() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return {seconds_of(usage.ru_utime) + seconds_of(usage.ru_stime), static_cast<double>(usage.ru_nivcsw)};
}

}  // namespace

std::shared_ptr<telemetry::SpanLog> start_log(RunContext& context) {
  auto log = std::make_shared<telemetry::SpanLog>(context.rank());
  if (context.chaos != nullptr) context.chaos->slow_down(*log);
  context.world.record_to(log);
  show_nvtx_ranges(context.device);
  return log;
}

void SpanCadence::stepped(double mean_seconds) {
  seconds_ = seconds_ == 0.0 ? mean_seconds : kDecay * seconds_ + (1.0 - kDecay) * mean_seconds;
  if (seconds_ <= 0.0) return;
  const double steps = std::clamp(kSecondsBetweenSpans / seconds_, 1.0, static_cast<double>(kLongestCadence));
  every_ = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(steps)));
}

bool SpanCadence::keeps(std::int64_t step) const { return step <= first_step_ + kFirstSteps || step % every_ == 0; }

void StepRecords::begin(std::int64_t step) {
  if (!context_.log) return;
  if (!cadence_) {
    cadence_.emplace(step);
    first_step_ = step;
    running_.restart();
  }
  const Usage usage = usage_of_process();
  cpu_seconds_ = usage.cpu_seconds;
  preemptions_ = usage.preemptions;
  cpu_wait_seconds_ = cpu_wait_.seconds().value_or(0.0);
  context_.log->begin_step(context_.recorder && context_.job.telemetry.spans && cadence_->keeps(step + 1));
}

// Steps that an earlier generation did count as this one's do on average.
double StepRecords::goodput(double useful_seconds, std::int64_t step) {
  useful_seconds_ += useful_seconds;
  const double done = static_cast<double>(std::max<std::int64_t>(1, step - first_step_));
  const double before = context_.generation > 1 ? static_cast<double>(first_step_) * useful_seconds_ / done : 0.0;
  const double since_start = running_.seconds() + context_.endured.seconds;
  return std::min(1.0, (useful_seconds_ + std::min(before, context_.endured.seconds)) / std::max(1e-9, since_start));
}

// The rank that the others wait for communicates least: what is beyond its seconds (of the step before, which is the
// newest that all know of) is waiting. Where an exchange was quicker before, the log knows better.
double StepRecords::waited(const telemetry::SpanLog::Step& step, double least_before) const {
  const double comm = step[Phase::kComm];
  return least_before < 0.0 ? step.wait_seconds : std::clamp(comm - least_before, step.wait_seconds, comm);
}

void StepRecords::end(const StepResult& result, const Facts& facts) {
  if (!context_.log) return;
  cadence_->stepped(result.wishes.seconds / context_.world.size());
  const bool keeps_next = context_.recorder && context_.job.telemetry.spans && cadence_->keeps(facts.step + 1);
  telemetry::SpanLog::Step step = context_.log->end_step(facts.step, keeps_next);
  last_ = {step.seconds, step[Phase::kData], step[Phase::kCheckpoint], step[Phase::kComm]};
  lost_spans_ += step.lost_spans;
  if (!context_.recorder) return;
  std::vector<telemetry::Metric> metrics;
  metrics.reserve(24);
  const auto add = [&](std::string_view name, double value) { metrics.push_back({std::string(name), value}); };
  const double forward = step[Phase::kForward], backward = step[Phase::kBackward];
  add(metric::kStepSeconds, step.seconds);
  add(metric::kComputeSeconds, forward + backward + step[Phase::kCompute]);
  add(metric::kForwardSeconds, forward);
  add(metric::kBackwardSeconds, backward);
  add(metric::kExposedCommSeconds, step[Phase::kComm]);
  add(metric::kWaitSeconds, waited(step, result.wishes.comm_seconds));
  add(metric::kDataSeconds, step[Phase::kData]);
  add(metric::kOptimizerSeconds, step[Phase::kOptimizer]);
  add(metric::kCheckpointSeconds, step[Phase::kCheckpoint]);
  add(metric::kHostSeconds, step[Phase::kHost]);
  // Ranks that are threads of one process cannot be told apart.
  if (context_.request.backend != "local" || context_.world.size() == 1) {
    const Usage usage = usage_of_process();
    add(metric::kCpuSeconds, usage.cpu_seconds - std::exchange(cpu_seconds_, usage.cpu_seconds));
    add(metric::kPreemptions, usage.preemptions - std::exchange(preemptions_, usage.preemptions));
    if (const auto waited = cpu_wait_.seconds()) {
      add(metric::kCpuWaitSeconds, *waited - std::exchange(cpu_wait_seconds_, *waited));
    }
  }
  if (result.expert_imbalance > 0) add(metric::kExpertImbalance, result.expert_imbalance);
  if (result.targets > 0) add(metric::kTargets, static_cast<double>(result.targets));
  add(metric::kMemoryBytes, facts.peak_memory_bytes);
  if (facts.allocated_bytes > 0) add(metric::kAllocatedBytes, facts.allocated_bytes);
  if (context_.rank() == 0) {
    add(metric::kLoss, result.loss);
    if (result.auxiliary_loss != 0) add(metric::kAuxiliaryLoss, result.auxiliary_loss);
    add(metric::kGradientNorm, result.gradient_norm);
    add(metric::kLearningRate, result.learning_rate);
    add(facts.counts_tokens ? metric::kTokensPerSecond : metric::kSamplesPerSecond, facts.items / result.seconds);
    if (facts.efficiency) add(context_.device.is_cpu() ? metric::kEfficiency : metric::kMfu, *facts.efficiency);
    const bool counts = !result.skipped && !result.withheld;
    add(metric::kGoodput, goodput(counts ? result.seconds : 0.0, facts.step));
  }
  context_.recorder->metrics(context_.rank(), facts.step, std::move(metrics));
  if (!step.spans.spans.empty()) context_.recorder->spans(std::move(step.spans));
}

}  // namespace lockstep::engine
