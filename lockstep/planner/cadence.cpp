#include "lockstep/planner/cadence.h"

#include <algorithm>
#include <cmath>

#include "lockstep/cost/adapters.h"

namespace lockstep::planner {
namespace {

// fp16 or bf16 weights, fp32 master copy, two fp32 moments of AdamW.
constexpr double kStateBytesPerParameter = 2 + 4 + 4 + 4;
// A node's devices copy to pinned host memory together; PCIe 4.0 x16 alone moves more, memory and NUMA take their
// share.
constexpr double kHostCopyBytesPerSecondPerNode = 20e9;
constexpr double kRestartSeconds = 300;
constexpr double kSecondsPerThousandDays = 1000.0 * 86400.0;
// Where neither failures nor a cap ask for checkpoints.
constexpr double kLongestInterval = 86400;
// Runs whose machines are not as assumed, and what they fail like.
constexpr double kBrokenShare = 0.01;
constexpr double kBrokenMeanSeconds = 3600;
// Where a checkpoint costs nothing.
constexpr double kShortestWork = 1e-3;

double seconds_to_move(double bytes, double bytes_per_second) {
  return bytes_per_second > 0 ? bytes / bytes_per_second : 0;
}

// What one checkpoint takes.
struct Save {
  double stall;       // training stands still
  double background;  // then it is written while training goes on
  double durable() const { return stall + background; }
};

Save save_of(const CadenceQuestion& question) {
  const double copy = seconds_to_move(question.state_bytes, question.host_copy_bytes_per_second);
  const double write = seconds_to_move(question.state_bytes, question.write_bytes_per_second);
  return {.stall = question.stall_seconds >= 0 ? question.stall_seconds : copy,
          .background = question.write_seconds >= 0 ? question.write_seconds : write};
}

// Seconds of training between two checkpoints: as near to `best` as the bounds allow, in whole steps. At least what the
// checkpoint before takes to be written, so that they do not overlap; that bound wins over the cap.
double work_between(double best, const Save& save, double cap, double step) {
  const double least = std::max({save.background, step, kShortestWork});
  const double most = std::max(least, cap - save.durable() - save.stall);
  const double work = std::clamp(best, least, most);
  if (step <= 0) return work;
  const double fewest = std::ceil(least / step), greatest = std::max(fewest, std::floor(most / step));
  return step * std::clamp(std::round(work / step), fewest, greatest);
}

}  // namespace

double young_interval(double stall_seconds, double mean_seconds_between_failures) {
  return std::sqrt(2 * stall_seconds * mean_seconds_between_failures);
}

// Daly's interval is the work between two dumps, ours has the dump in it.
double daly_interval(double stall_seconds, double mean_seconds_between_failures) {
  if (stall_seconds >= 2 * mean_seconds_between_failures) return mean_seconds_between_failures + stall_seconds;
  const double ratio = stall_seconds / (2 * mean_seconds_between_failures);
  return young_interval(stall_seconds, mean_seconds_between_failures) * (1 + std::sqrt(ratio) / 3 + ratio / 9);
}

double expected_failure_rate(double assumed_per_second, std::int64_t failures, double seen_seconds) {
  const double assumed_mean = assumed_per_second > 0 ? 1 / assumed_per_second : 0;
  if (failures == 0) return assumed_per_second > 0 ? 1 / (assumed_mean + seen_seconds) : 0;
  const double count = static_cast<double>(failures) + 1;
  const double broken = count / (kBrokenMeanSeconds + seen_seconds);
  if (assumed_per_second <= 0) return broken;
  const double assumed = count / (assumed_mean + seen_seconds);
  // Logarithms: the powers leave the range of doubles.
  const auto log_weight = [&](double share, double mean) {
    return std::log(share * mean) - count * std::log(mean + seen_seconds);
  };
  const double odds =
      std::exp(log_weight(kBrokenShare, kBrokenMeanSeconds) - log_weight(1 - kBrokenShare, assumed_mean));
  const double share = std::isinf(odds) ? 1 : odds / (1 + odds);
  return share * broken + (1 - share) * assumed;
}

bool is_other_cadence(double now, double wanted) { return wanted > 1.3 * now || wanted < 0.7 * now; }

double goodput_of(double interval_seconds, double stall_seconds, double background_seconds, double restart_seconds,
                  double failures_per_second) {
  const double work = interval_seconds - stall_seconds;
  if (failures_per_second <= 0) return work / interval_seconds;
  const double kept_intervals =
      std::exp(-failures_per_second * background_seconds) / std::expm1(failures_per_second * interval_seconds);
  // A life lasts 1/rate; restarting, begun anew whenever it fails, adds (exp(rate x restart) - 1) / rate.
  const double life_and_restart = std::exp(failures_per_second * restart_seconds) / failures_per_second;
  return kept_intervals * work / life_and_restart;
}

plan::CheckpointCadence choose_cadence(const CadenceQuestion& question) {
  const Save save = save_of(question);
  const double best =
      question.failures_per_second > 0 ? daly_interval(save.stall, 1 / question.failures_per_second) : kLongestInterval;
  const double work = work_between(std::min(best, kLongestInterval) - save.stall, save, question.max_lost_seconds,
                                   question.step_seconds);
  plan::CheckpointCadence cadence;
  cadence.interval_seconds = save.stall + work;
  cadence.stall_seconds = save.stall;
  cadence.expected_lost_seconds = cadence.interval_seconds / 2 + save.durable();
  cadence.worst_lost_seconds = cadence.interval_seconds + save.durable();
  // A cap that is met exactly must not look exceeded by a rounding error.
  if (cadence.worst_lost_seconds < question.max_lost_seconds * (1 + 1e-9)) {
    cadence.worst_lost_seconds = std::min(cadence.worst_lost_seconds, question.max_lost_seconds);
  }
  cadence.goodput = goodput_of(cadence.interval_seconds, save.stall, save.background, question.restart_seconds,
                               question.failures_per_second);
  return cadence;
}

CadenceQuestion cadence_question(const spec::Model& model, const spec::Cluster& cluster, double step_seconds,
                                 double max_lost_seconds, const spec::Lora& lora) {
  CadenceQuestion question;
  const std::int64_t trained = lora.rank > 0 ? cost::adapter_parameters(lora, model) : spec::parameter_count(model);
  question.state_bytes = kStateBytesPerParameter * static_cast<double>(trained);
  question.write_bytes_per_second = cluster.storage.write_bytes_per_second;
  question.step_seconds = step_seconds;
  question.max_lost_seconds = max_lost_seconds;
  question.restart_seconds =
      kRestartSeconds + seconds_to_move(question.state_bytes, cluster.storage.read_bytes_per_second);
  for (const spec::NodeGroup& group : cluster.groups) {
    const auto nodes = static_cast<double>(group.nodes);
    question.failures_per_second += nodes * group.failures_per_1000_node_days / kSecondsPerThousandDays;
    question.host_copy_bytes_per_second += nodes * kHostCopyBytesPerSecondPerNode;
  }
  return question;
}

}  // namespace lockstep::planner
