#include "lockstep/sim/step/simulation.h"

#include <algorithm>

namespace lockstep::sim {
namespace {

// Plays steps, and those that are like one that was played not again.
class StepSource {
 public:
  StepSource(const StepsQuestion& question, const Symmetry& symmetry) : question_(question), symmetry_(symmetry) {}

  std::shared_ptr<const PlayedStep> play(std::int64_t number, bool writes, std::uint64_t& events) {
    std::shared_ptr<const PlayedStep>& known = writes ? while_writing_ : usual_;
    if (known && question_.disturbances.jitter <= 0) return known;
    PlayOptions options;
    options.contention = question_.contention;
    options.background = writes ? question_.checkpoints.nic_share : 0;
    options.seed = question_.seed;
    options.step = number;
    known = std::make_shared<const PlayedStep>(
        play_step(question_.program, question_.ranks, symmetry_, question_.disturbances, options));
    events += known->events;
    return known;
  }

 private:
  const StepsQuestion& question_;
  const Symmetry& symmetry_;
  std::shared_ptr<const PlayedStep> usual_, while_writing_;
};

}  // namespace

Simulation simulate(const StepsQuestion& question) {
  Simulation simulation;
  simulation.symmetry = find_symmetry(question.ranks, question.disturbances, question.program.coupled_data_ranks);
  StepSource source(question, simulation.symmetry);
  const CheckpointProgram& checkpoints = question.checkpoints;
  double now = 0, last_began = 0, written = 0;
  for (std::int64_t number = 1; number <= question.steps; ++number) {
    SimulatedStep step;
    step.begin = now;
    step.writes = now < written;
    step.played = source.play(number, step.writes, simulation.events);
    now += step.played->seconds;
    if (checkpoints.interval_seconds > 0 && now - last_began >= checkpoints.interval_seconds && now >= written) {
      last_began = now;
      step.checkpoint_stall = checkpoints.stall_seconds;
      now += checkpoints.stall_seconds;
      written = now + checkpoints.write_seconds;
    }
    step.seconds = now - step.begin;
    simulation.steps.push_back(std::move(step));
  }
  return simulation;
}

TimeShares time_shares(const PlayedStep& step, const PlayedStage& stage, const StepProgram& program) {
  TimeShares shares;
  shares.gather = stage.published;
  double before = stage.published;
  for (const PlayedPass& pass : stage.passes) {
    const int position = program.schedule.position(stage.stage, pass.task.chunk);
    const double inside = pass.done - pass.begin;
    const double exchange =
        std::min(inside, pass_exchange(program.positions[static_cast<std::size_t>(position)], pass.task.kind));
    shares.idle += pass.ready - before;
    shares.data += pass.loaded - pass.ready;
    shares.gather += (pass.begin - pass.loaded) + (pass.end - pass.done);
    shares.exchange += exchange;
    shares.compute += inside - exchange;
    before = pass.end;
  }
  shares.reduce = stage.optimizer_begin - before;
  shares.optimizer = stage.optimizer_end - stage.optimizer_begin;
  shares.host = step.seconds - stage.optimizer_end;
  return shares;
}

}  // namespace lockstep::sim
