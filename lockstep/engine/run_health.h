// Is training going well? Watches the losses, decides when to give up, and knows the last checkpoint that proved sound
// (docs/reference/resume-and-health.md).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/engine/training_state.h"
#include "lockstep/spec/job.h"
#include "lockstep/telemetry/robust.h"

namespace lockstep::engine {

// What a step changed; recorded as an event of the run. kWithheld: the policy kept its update from being made.
enum class HealthEvent { kNone, kSkipped, kWithheld, kSpikeBegan, kSpikeOver, kOutlier };

// Every rank has one and tells it the same, so that all decide alike. A loss is high when it is above the median of up
// to 64 healthy ones before by more than the median itself and eight times their median deviation; it spikes when the
// median of the last three is. The norm of a gradient is an outlier when it is above five times the median of those
// before, and by more than eight times their median deviation.
class RunHealth {
 public:
  RunHealth(const spec::Health& policy, bool loss_scaled);

  // Before an update, where the policy may withhold it (spec::Health::judges_updates).
  bool may_update(double loss, double gradient_norm) const;

  // After every step; `skipped` means that the gradient was not finite, `withheld` that may_update() said no. A norm of
  // 0 is not looked at. Throws UserError (run failed) when the policy ends the run.
  HealthEvent observe(std::int64_t step, double loss, bool skipped, double gradient_norm = 0.0, bool withheld = false);

  // Why the run must go back now, as one clause; "" where it need not. rolled_back() when it has.
  const std::string& rollback_reason() const { return rollback_reason_; }
  void rolled_back();
  std::int64_t rollbacks() const { return rollbacks_; }
  std::int64_t withheld_steps() const { return withheld_; }

  // At the end of the run: throws UserError (run failed) when the last step was not sound.
  void require_sound_end(std::int64_t step) const;

  bool is_healthy() const { return !spiking_ && skipped_in_a_row_ == 0 && withheld_in_a_row_ == 0; }
  double usual_loss() const { return usual_; }  // the median that a spike was measured against
  double usual_norm() const;

  // A checkpoint of `step` is there. It proves sound when some healthy steps have followed; a resumed one at once.
  void saved(std::int64_t step);
  // Goes on from a checkpoint of `step`, with the usual_losses() of then.
  void resumed(std::int64_t step, const std::vector<double>& losses);
  std::vector<double> usual_losses() const { return usual_losses_.values(); }
  // The newest that proved sound: retention must keep it.
  std::optional<std::int64_t> pinned_step() const { return pinned_; }
  // State after later steps than this one is not to be trusted: of the checkpoints only one up to it is sound.
  void distrust_after(std::int64_t step);

 private:
  bool is_high(double loss) const;
  bool is_spike() const;
  bool is_outlier(double gradient_norm) const;
  void end_or_go_back(bool go_back, const std::string& why);
  void count_skips(std::int64_t step, bool skipped, bool withheld);
  bool look_at_norm(std::int64_t step, double gradient_norm, bool withheld);
  void prove(std::int64_t step);

  spec::Health policy_;
  bool loss_scaled_;
  static constexpr std::size_t kUsualLosses = 64, kLastLosses = 3;
  telemetry::RecentValues usual_losses_{kUsualLosses}, last_losses_{kLastLosses}, usual_norms_{kUsualLosses};
  double usual_ = 0.0, last_loss_ = 0.0;
  bool seen_ = false, spiking_ = false;
  std::int64_t skipped_in_a_row_ = 0, withheld_in_a_row_ = 0, withheld_ = 0, rollbacks_ = 0;
  std::int64_t most_withheld_ = 0;
  std::string rollback_reason_;
  std::vector<std::int64_t> unproven_, proven_;
  std::optional<std::int64_t> pinned_;
};

// Whether every value is a number; what is not floating point is.
bool is_finite(const torch::Tensor& tensor);

// The first tensor of weights or optimizer state that holds a value that is not finite.
std::optional<std::string> find_not_finite(const checkpoint::CheckpointPart& part);
// Collective: throws the same UserError (run failed) on every rank when any found such a tensor of its own. `doing`
// begins the message: "the checkpoint of step 9 was not saved".
void require_finite(const std::optional<std::string>& not_finite, comm::Communicator& world, const std::string& doing);

}  // namespace lockstep::engine
