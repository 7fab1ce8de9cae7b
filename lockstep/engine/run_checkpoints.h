// RunCheckpoints: when a run saves, what it does when a save fails, and what it tells. One per rank; every rank makes
// the same calls, and what they have to agree on travels with the steps (checkpoint/saver.h).
//
// A save that fails or takes too long is a warning: the state is saved again after a pause. Only the last state of a
// run must be saved, else the run ends with exit code 4.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/base/clock.h"
#include "lockstep/checkpoint/saver.h"
#include "lockstep/engine/checkpoint_cadence.h"
#include "lockstep/engine/run_context.h"
#include "lockstep/engine/run_health.h"
#include "lockstep/engine/sound_pin.h"
#include "lockstep/engine/step_result.h"
#include "lockstep/engine/training_state.h"

namespace lockstep::engine {

// Progress added up over all ranks. Collective.
checkpoint::SaveProgress sum_progress(comm::Communicator& world, const checkpoint::SaveProgress& own);

class RunCheckpoints {
 public:
  // Collective: every rank writes and reads in the folder; UserError (environment) when one cannot. Without a folder
  // nothing is ever saved.
  // `health` says which checkpoint is sound; `guard` is called around a check that the state's numbers are numbers.
  using Guard = std::function<void(const std::function<void()>& check)>;
  RunCheckpoints(RunContext& context, RunHealth& health, Guard guard);

  // This rank's share of the next step's wishes. Clocks differ between ranks, so the first one decides when it is time.
  bool wants_save() const;
  checkpoint::SaveProgress progress() const;

  // Collective, after every step: moves the save in flight on and, unless `last`, begins one when it is due.
  void after_step(TrainingState& state, const StepResult& result, bool last);
  // Collective: the state as it is, durable on return. Throws UserError (environment) naming the last good one.
  void save_last(TrainingState& state);
  // Collective: waits for the save in flight.
  void finish();

  // The state came from a checkpoint of this step: there is nothing to save yet.
  void resumed_at(std::int64_t step) { saved_step_ = step; }
  // What that checkpoint knows of saves (CheckpointFacts::extra).
  void remember(const nlohmann::json& extra);
  // The state came from the memory of the ranks: the newest checkpoint is as old as it is.
  void recovered_from_memory();
  // Before the first step. `covered`: for the user, which failures need no checkpoint; "": none.
  void start(const std::string& covered);
  std::int64_t saved_step() const { return saved_step_; }

  // For alerts. A save runs beside the steps.
  bool is_saving() const;
  // Of work that is not in a durable checkpoint: since the newest one began, or since this process started with it.
  double at_stake_seconds() const;
  // How much that may become: checkpoint.max_lost, or twice the interval that the job gives; 0: nothing is saved by
  // itself.
  double bound_seconds(double step_seconds) const;

 private:
  void prepare(TrainingState& state);
  void begin(TrainingState& state);
  checkpoint::SaveOutcome wait();
  void end(const checkpoint::SaveOutcome& outcome);
  void settle(const checkpoint::SaveOutcome& outcome);
  Endured endured() const;
  void tell_cadence(bool is_new);
  void pin_sound();
  void tell_saved(const checkpoint::SaveOutcome& outcome);
  void tell_failed(const checkpoint::SaveOutcome& outcome, double pause_seconds);

  RunContext& context_;
  RunHealth& health_;
  const Guard guard_;
  std::shared_ptr<SoundPin> pin_;             // shared with the thread that publishes
  std::unique_ptr<checkpoint::Saver> saver_;  // null: nothing is saved
  CheckpointCadence cadence_;                 // the first rank's counts
  std::string covered_;
  bool ending_ = false;  // no save follows
  Stopwatch since_start_, since_save_;
  const double started_ = monotonic_seconds();
  double begun_ = 0.0, durable_begun_ = 0.0;  // by the same clock: the newest save, and the newest that is durable
  double age_before_ = 0.0;                   // of the newest checkpoint when since_save_ began
  double stall_seconds_ = 0.0;                // of the newest save; once it is complete, the largest of all ranks
  std::int64_t saved_step_ = -1;
  std::string last_good_;  // folder; "": none of this run
  // The same on every rank:
  bool prepared_ = false;
  bool pending_ = false;  // one was due while another was in flight
  int failures_ = 0;      // in a row
  // The first rank's alone:
  double retry_at_ = 0.0;
  bool told_wait_ = false;
};

}  // namespace lockstep::engine
