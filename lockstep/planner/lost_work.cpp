#include "lockstep/planner/lost_work.h"

#include <fmt/format.h>

#include <cmath>

#include "lockstep/base/units.h"
#include "lockstep/planner/search/objective.h"

namespace lockstep::planner {
namespace {

constexpr double kMostBytesPerSecond = 1e15;
constexpr int kHalvings = 60;

bool keeps_bound(const CadenceQuestion& question) {
  return choose_cadence(question).worst_lost_seconds <= question.max_lost_seconds;
}

// The value nearest to `bad` that keeps the bound, between it and `good`, which does. A failure never costs more with
// faster storage and shorter steps but for whole steps that do not fit, so that halving finds a limit.
double nearest_that_keeps(CadenceQuestion question, double CadenceQuestion::*field, double bad, double good) {
  for (int i = 0; i < kHalvings; ++i) {
    question.*field = std::sqrt(bad * good);
    (keeps_bound(question) ? good : bad) = question.*field;
  }
  return good;
}

// The bound that the plan as it is keeps, in whole minutes from an hour on, else in tens of seconds.
double lowest_round_bound(double worst_seconds) {
  const double unit = worst_seconds >= 600 ? 60 : 10;
  return unit * std::ceil(worst_seconds / unit);
}

std::string why(const CadenceQuestion& question, const plan::CheckpointCadence& cadence) {
  const double write = cadence.worst_lost_seconds - cadence.interval_seconds - cadence.stall_seconds;
  std::string text = fmt::format("a checkpoint of {} stops training for {}", format_bytes(question.state_bytes),
                                 format_seconds(cadence.stall_seconds));
  if (question.write_bytes_per_second > 0) {
    text += fmt::format(", is durable {} later (storage writes {}), and only then the next begins",
                        format_seconds(write), format_rate(question.write_bytes_per_second, "B"));
  }
  return text + fmt::format("; a step takes {}", format_seconds(question.step_seconds));
}

}  // namespace

LostWorkRemedy cheapest_remedy(const CadenceQuestion& question) {
  LostWorkRemedy remedy;
  CadenceQuestion other = question;
  other.write_bytes_per_second = kMostBytesPerSecond;
  if (question.write_bytes_per_second > 0 && keeps_bound(other)) {
    remedy.write_bytes_per_second = nearest_that_keeps(question, &CadenceQuestion::write_bytes_per_second,
                                                       question.write_bytes_per_second, kMostBytesPerSecond);
    return remedy;
  }
  constexpr double kShortestStep = 1e-3;
  other = question;
  other.step_seconds = kShortestStep;
  if (question.step_seconds > kShortestStep && keeps_bound(other)) {
    remedy.step_seconds =
        nearest_that_keeps(question, &CadenceQuestion::step_seconds, question.step_seconds, kShortestStep);
  }
  return remedy;
}

std::optional<UserError> find_lost_work_problem(const SearchRequest& request, const plan::Candidate& best) {
  if (!best.checkpoint || !best.prediction || request.lora.rank > 0) return std::nullopt;
  const std::int64_t devices = best.layout.world();
  CadenceQuestion question = Scorer(request, {devices}).world(devices).cadence;
  question.step_seconds = best.prediction->step_seconds.expected;
  const plan::CheckpointCadence cadence = choose_cadence(question);
  if (cadence.worst_lost_seconds <= question.max_lost_seconds) return std::nullopt;
  const LostWorkRemedy remedy = cheapest_remedy(question);
  std::string fix;
  if (remedy.write_bytes_per_second > 0) {
    fix = fmt::format("storage that writes {} keeps it (storage.write of the cluster, {:.2g} times as fast), or ",
                      format_rate(remedy.write_bytes_per_second, "B"),
                      remedy.write_bytes_per_second / question.write_bytes_per_second);
  } else if (remedy.step_seconds > 0) {
    fix = fmt::format(
        "steps of at most {} keep it (a global batch of about {:.0f} instead of {}), or ",
        format_seconds(remedy.step_seconds),
        std::floor(static_cast<double>(best.batch.global_sequences) * remedy.step_seconds / question.step_seconds),
        best.batch.global_sequences);
  }
  fix += fmt::format("allow {:.0f}s (--max-lost, checkpoint.max_lost): it costs nothing but up to {} of work",
                     lowest_round_bound(cadence.worst_lost_seconds), format_seconds(cadence.worst_lost_seconds));
  return does_not_fit(fmt::format("the bound on lost work cannot be kept: a failure may cost {}, allowed are {}: {}",
                                  format_seconds(cadence.worst_lost_seconds), format_seconds(question.max_lost_seconds),
                                  why(question, cadence)),
                      fix);
}

}  // namespace lockstep::planner
