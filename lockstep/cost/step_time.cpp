#include "lockstep/cost/step_time.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/units.h"
#include "lockstep/cost/collectives.h"
#include "lockstep/cost/states.h"

namespace lockstep::cost {
namespace {

// Shepard's inverse-distance weighting (1968) of log values at points in log space, over the kNeighbours nearest.
// An exact hit returns its value.
constexpr std::size_t kNeighbours = 4;

class LogInterpolation {
 public:
  void add(double squared_distance, double value) { points_.emplace_back(squared_distance, value); }
  bool empty() const { return points_.empty(); }

  double value() {
    const std::size_t used = std::min(kNeighbours, points_.size());
    std::partial_sort(points_.begin(), points_.begin() + static_cast<std::ptrdiff_t>(used), points_.end());
    if (points_.front().first < 1e-12) return points_.front().second;
    double weights = 0;
    double sum = 0;
    for (std::size_t i = 0; i < used; ++i) {
      const double weight = 1.0 / points_[i].first;
      weights += weight;
      sum += weight * std::log(points_[i].second);
    }
    return std::exp(sum / weights);
  }

 private:
  std::vector<std::pair<double, double>> points_;
};

double squared_log_ratio(std::int64_t a, std::int64_t b) {
  const double difference = std::log(static_cast<double>(a) / static_cast<double>(b));
  return difference * difference;
}

// What to try when a table has nothing of the wanted kind, in this order.
std::vector<MatmulKind> substitutes(MatmulKind kind) {
  if (kind == MatmulKind::kConvolutionForward) return {kind, MatmulKind::kForward};
  if (kind == MatmulKind::kConvolutionBackward) return {kind, MatmulKind::kWeightGradient, MatmulKind::kForward};
  return {kind, MatmulKind::kForward};
}

double matmul_seconds(const Profile& profile, MatmulKind kind, spec::Precision precision, const Operator& op,
                      double flops) {
  const auto rate = matmul_flops_per_second(profile, kind, precision, op.m, op.n, op.k);
  if (!rate) {
    throw UserError(ExitCode::kEnvironment, "profile " + profile.identity() + " has no matrix products",
                    "measure this machine with `lockstep calibrate`");
  }
  return flops / *rate;
}

// Seconds of `flops` or `elements` of work by the table's nearest points, scaled by the work itself, so that what is
// interpolated is a rate and not a time.
OperatorSeconds attention_seconds(const Profile& profile, const Operator& op, spec::Precision precision) {
  LogInterpolation forward;
  LogInterpolation backward;
  const double work = op.forward_flops();
  for (const AttentionPoint& point : profile.attention) {
    if (point.precision != precision || point.causal != op.causal) continue;
    const double distance = squared_log_ratio(point.heads, op.heads) + squared_log_ratio(point.sequence, op.sequence) +
                            squared_log_ratio(point.head_dim, op.head_dim);
    Operator measured = op;
    measured.heads = point.heads;
    measured.sequence = point.sequence;
    measured.head_dim = point.head_dim;
    forward.add(distance, measured.forward_flops() / point.forward_seconds);
    backward.add(distance, measured.forward_flops() / point.backward_seconds);
  }
  if (!forward.empty()) return {work / forward.value(), work / backward.value()};
  // Not measured: two products of [sequence, head_dim] x [head_dim, sequence] per head.
  const auto rate =
      matmul_flops_per_second(profile, MatmulKind::kForward, precision, op.sequence, op.sequence, op.head_dim);
  if (!rate) return {profile.operator_seconds, profile.backward_operator_seconds};
  return {work / *rate, op.backward_flops() / *rate};
}

// Straight line on log scales between the nearest measured sizes; beyond the ends, time grows with the elements (above)
// or stays (below). Two zeros stay zero: the stack has fused the operator away.
double pointwise_seconds(const std::vector<std::pair<double, double>>& points, double elements) {
  if (elements <= points.front().first) return points.front().second;
  for (std::size_t i = 1; i < points.size(); ++i) {
    const auto& [low, low_seconds] = points[i - 1];
    const auto& [high, high_seconds] = points[i];
    if (elements > high) continue;
    const double share = (elements - low) / (high - low);
    return low_seconds + share * (high_seconds - low_seconds);
  }
  return points.back().second * elements / points.back().first;
}

OperatorSeconds pointwise_seconds(const Profile& profile, const Operator& op, spec::Precision precision) {
  std::vector<std::pair<double, double>> forward;
  std::vector<std::pair<double, double>> backward;
  for (const PointwisePoint& point : profile.pointwise) {
    if (point.kernel != op.kernel || point.precision != precision) continue;
    forward.emplace_back(static_cast<double>(point.elements), point.forward_seconds);
    backward.emplace_back(static_cast<double>(point.elements), point.backward_seconds);
  }
  const double elements = static_cast<double>(op.elements);
  if (!forward.empty()) {
    std::sort(forward.begin(), forward.end());
    std::sort(backward.begin(), backward.end());
    return {pointwise_seconds(forward, elements), pointwise_seconds(backward, elements)};
  }
  // Not measured: streams its input and output, backward also the incoming gradient.
  const double bytes = elements * static_cast<double>(plan::bytes_per_element(precision));
  return {profile.operator_seconds + 2 * bytes / profile.memory_bytes_per_second,
          profile.backward_operator_seconds + 3 * bytes / profile.memory_bytes_per_second};
}

// On a CPU the fixed cost of an operator comes on top of its work; a GPU works while the host issues the next.
double with_host(const Profile& profile, double host_seconds, double device_seconds) {
  const bool is_cpu = profile.provenance.cores > 0;
  return is_cpu ? host_seconds + device_seconds : std::max(host_seconds, device_seconds);
}

OperatorSeconds convolution_seconds(const Profile& profile, const Operator& op, spec::Precision precision) {
  const double forward = matmul_seconds(profile, MatmulKind::kConvolutionForward, precision, op, op.forward_flops());
  const double backward = matmul_seconds(profile, MatmulKind::kConvolutionBackward, precision, op, op.backward_flops());
  return {with_host(profile, profile.operator_seconds, forward),
          with_host(profile, profile.backward_operator_seconds, backward)};
}

OperatorSeconds linear_seconds(const Profile& profile, const Operator& op, spec::Precision precision) {
  const double flops = op.forward_flops();
  const double forward = matmul_seconds(profile, MatmulKind::kForward, precision, op, flops);
  double backward = matmul_seconds(profile, MatmulKind::kWeightGradient, precision, op, flops);
  if (op.needs_input_gradient) backward += matmul_seconds(profile, MatmulKind::kInputGradient, precision, op, flops);
  return {with_host(profile, profile.operator_seconds, forward),
          with_host(profile, profile.backward_operator_seconds, backward)};
}

// Gradient all-reduce of `bytes` in buckets; what is hidden cannot be longer than the backward it hides behind, and
// the last bucket is only ready when backward is over.
double exposed_all_reduce_seconds(const Profile& profile, double bytes, double bucket_bytes, std::int64_t ranks,
                                  double backward_seconds) {
  const double buckets = std::max(1.0, std::ceil(bytes / std::max(bucket_bytes, 1.0)));
  const auto bucket = collective_seconds(profile, CollectiveOp::kAllReduce, bytes / buckets, ranks);
  if (!bucket) {
    throw UserError(ExitCode::kEnvironment,
                    "profile " + profile.identity() + " has no collectives for " + std::to_string(ranks) + " ranks",
                    "measure with `lockstep calibrate` on as many ranks");
  }
  const double hidden = std::min(profile.overlap * (buckets - 1) * *bucket, backward_seconds);
  return buckets * *bucket - hidden;
}

std::vector<const CalibrationCheck*> checks_of(const Profile& profile, const spec::Model& model) {
  const CheckFamily family = model.is_language_model() ? CheckFamily::kTransformer : CheckFamily::kImage;
  std::vector<const CalibrationCheck*> checks;
  for (const CalibrationCheck& check : profile.checks) {
    if (check.family == family) checks.push_back(&check);
  }
  return checks;
}

double median_spread(const Profile& profile) {
  std::vector<double> spreads;
  for (const MatmulPoint& point : profile.matmuls) spreads.push_back(point.spread);
  if (spreads.empty()) return 0;
  const auto middle = spreads.begin() + static_cast<std::ptrdiff_t>(spreads.size() / 2);
  std::nth_element(spreads.begin(), middle, spreads.end());
  return *middle;
}

// Throughput of work / seconds: the slow end of the time is the low end of the rate.
plan::Interval rate_interval(double work, const plan::Interval& seconds) {
  return {work / seconds.high, work / seconds.expected, work / seconds.low};
}

}  // namespace

double student_t_95(std::size_t degrees) {
  constexpr std::array<double, 10> kTable{6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812};
  return degrees <= kTable.size() ? kTable[degrees - 1] : 1.812;
}

std::optional<double> matmul_flops_per_second(const Profile& profile, MatmulKind kind, spec::Precision precision,
                                              std::int64_t m, std::int64_t n, std::int64_t k) {
  for (const MatmulKind candidate : substitutes(kind)) {
    LogInterpolation rate;
    for (const MatmulPoint& point : profile.matmuls) {
      if (point.kind != candidate || point.precision != precision) continue;
      rate.add(squared_log_ratio(point.m, m) + squared_log_ratio(point.n, n) + squared_log_ratio(point.k, k),
               point.flops_per_second);
    }
    if (!rate.empty()) return rate.value();
  }
  return std::nullopt;
}

OperatorSeconds operator_seconds(const Profile& profile, const Operator& op, spec::Precision precision) {
  switch (op.kind) {
    case OperatorKind::kMatmul:
      return linear_seconds(profile, op, precision);
    case OperatorKind::kConvolution:
      return convolution_seconds(profile, op, precision);
    case OperatorKind::kAttention:
      return attention_seconds(profile, op, precision);
    case OperatorKind::kPointwise:
      return pointwise_seconds(profile, op, precision);
  }
  return {};
}

plan::TimeBreakdown price_step(const Profile& profile, const Workload& workload, const plan::Layout& layout) {
  LOCKSTEP_ASSERT(layout.world() == layout.dp && layout.zero == 0, "tables price plain data parallel");
  double forward = 0;
  double backward = 0;
  for (const Operator& op : list_operators(workload.model, workload.batch.micro, workload.batch.sequence_length)) {
    const OperatorSeconds seconds = operator_seconds(profile, op, workload.precision);
    forward += static_cast<double>(op.count) * seconds.forward;
    backward += static_cast<double>(op.count) * seconds.backward;
  }
  const double trained = workload.trained_share * static_cast<double>(spec::parameter_count(workload.model));
  const ParameterBytes bytes = parameter_bytes(workload.precision, workload.optimizer, {});
  plan::TimeBreakdown time;
  time.compute = static_cast<double>(workload.batch.accumulation) * (forward + backward);
  time.optimizer = trained * optimizer_bytes_per_parameter(workload.precision, workload.optimizer) /
                   profile.optimizer_bytes_per_second;
  if (layout.dp > 1) {
    time.dp_comm =
        exposed_all_reduce_seconds(profile, trained * bytes.gradient, workload.bucket_mib * kMiB, layout.dp, backward);
  }
  return time;
}

Correction correction_of(const Profile& profile, const spec::Model& model) {
  Correction correction;
  const std::vector<const CalibrationCheck*> checks = checks_of(profile, model);
  correction.checks = static_cast<std::int64_t>(checks.size());
  const double count = static_cast<double>(checks.size());
  double residual = 0;
  double noise = median_spread(profile);
  if (!checks.empty()) {
    const auto log_ratio = [](const CalibrationCheck& check) {
      return std::log(check.measured_seconds / check.predicted_seconds);
    };
    double sum = 0;
    double spreads = 0;
    for (const CalibrationCheck* check : checks) {
      sum += log_ratio(*check);
      spreads += check->spread;
    }
    const double mean = sum / count;
    correction.factor = std::exp(mean);
    // A whole step averages over its operators: its own repetitions say how steady it is.
    noise = spreads / count;
    double squares = 0;
    for (const CalibrationCheck* check : checks) squares += (log_ratio(*check) - mean) * (log_ratio(*check) - mean);
    // One check says how far off the tables are but not how steady that is: all of its residual is uncertainty.
    residual = checks.size() == 1
                   ? std::abs(mean)
                   : student_t_95(checks.size() - 1) * std::sqrt(squares / (count - 1) * (1 + 1 / count));
  }
  // The quartile half-distance of a normal is 0.674 sigma; 1.645 sigma cover 90%.
  constexpr double kSpreadToNinety = 1.645 / 0.674;
  correction.half_width = std::hypot(residual, kSpreadToNinety * noise);
  return correction;
}

StepPrediction predict_step(const Profile& profile, const Workload& workload, const plan::Layout& layout) {
  const Correction correction = correction_of(profile, workload.model);
  StepPrediction result;
  result.breakdown = price_step(profile, workload, layout);
  for (double* term : {&result.breakdown.compute, &result.breakdown.dp_comm, &result.breakdown.optimizer}) {
    *term *= correction.factor;
  }
  const double expected = result.breakdown.total();
  // The half-width is of the logarithm, so that both ends stay positive.
  const plan::Interval seconds{expected * std::exp(-correction.half_width), expected,
                               expected * std::exp(correction.half_width)};
  plan::Prediction& prediction = result.prediction;
  prediction.step_seconds = seconds;
  const double samples = static_cast<double>(workload.batch.global_sequences);
  prediction.samples_per_second = rate_interval(samples, seconds);
  if (workload.model.is_language_model()) {
    const std::int64_t sequence = workload.batch.sequence_length;
    prediction.tokens_per_second = rate_interval(samples * static_cast<double>(sequence), seconds);
    const double peak = profile.peak_flops;
    const auto of_peak = [&](double tokens) { return mfu(workload.model, sequence, tokens, layout.world(), peak); };
    const plan::Interval& tokens = prediction.tokens_per_second;
    prediction.mfu = {of_peak(tokens.low), of_peak(tokens.expected), of_peak(tokens.high)};
  }
  return result;
}

}  // namespace lockstep::cost
