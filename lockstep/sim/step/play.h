// The state of one step that is being played: player.h. Internal to this folder: passes and messages in
// player.cpp, weights and gradients in play_gradients.cpp.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "lockstep/sim/step/player.h"

namespace lockstep::sim {

using plan::PipelineTask;
using plan::PipelineTaskKind;

// What a pass takes, whichever it is.
struct PassCosts {
  double compute = 0, exchange = 0;
  LinkSeconds before, beside;  // ZeRO: exposed, and hidden
};

// What is under way and what happens when it is done.
enum class What : std::uint8_t {
  kPass,
  kLoad,
  kBefore,      // what a pass gathers first
  kBeside,      // what moves while it computes
  kMessage,     // the receiver may begin
  kRest,        // of a message, on its way
  kPublish,     // before the first pass
  kPublished,   // beside it
  kReduce,      // beside the last backward
  kReduceRest,  // after it
  kOptimizer,
};
struct Job {
  What what = What::kPass;
  int actor = 0;  // or the number of a group, or a stage
  int position = 0, micro = 0;
  bool forward = false;
  double then = 0;  // seconds between nodes that follow those inside
};

class Player {
 public:
  Player(const StepProgram& program, const RankMap& ranks, const Symmetry& symmetry, const Disturbances& disturbances,
         const PlayOptions& options);

  PlayedStep play();

 private:
  struct Actor {
    std::size_t next = 0;  // pass of its list
    bool waits = false;    // for its input
    bool holds = false;    // its pass is done but for weights that are still on their way
  };
  // The data ranks of a block on a stage: they go through passes together.
  struct Group {
    std::vector<int> actors;
    int arrived = 0;  // at the pass that comes next
    int running = 0;  // parts of the pass under way
  };
  // All data ranks of a stage: weights come and gradients go chunk by chunk, one at a time.
  struct Lane {
    std::vector<int> actors;
    std::vector<int> begun;   // by chunk: actors whose last backward of it has begun
    std::deque<int> waiting;  // chunks
    bool busy = false;
    int done = 0;       // actors whose passes are all done
    int published = 0;  // chunks whose weights are there
  };

  int actor_of(int data_class, int stage) const { return data_class * stages_ + stage; }
  int class_of(int actor) const { return actor / stages_; }
  int stage_of(int actor) const { return actor % stages_; }
  Group& group_of(int actor);
  PlayedStage& played(int actor) { return step_.stages[static_cast<std::size_t>(actor)]; }
  Actor& at(int actor) { return actors_[static_cast<std::size_t>(actor)]; }
  const StageProgram& stage_program(int stage) const { return program_.stages[static_cast<std::size_t>(stage)]; }
  const std::vector<PipelineTask>& list_of(int actor) const {
    return table_.ranks[static_cast<std::size_t>(stage_of(actor))];
  }
  std::size_t cell(int data_class, int position, int micro) const;
  std::int64_t data_rank_of(int actor) const {
    return symmetry_.classes[static_cast<std::size_t>(class_of(actor))].data_rank;
  }

  std::uint32_t tag_of(const Job& job);
  void set_up();
  double nic_speed(int actor) const;

  // Transfers.
  void start_collective(const LinkSeconds& seconds, const std::vector<int>& members, bool beside, Job job);
  static LinkSeconds part(const LinkSeconds& seconds, double share) {
    return {share * seconds.inside, share * seconds.between};
  }
  void continue_between(Job job);
  void send(int from, int position, int to_position, int micro, bool forward);
  void send_rest(const Job& job);

  // Passes.
  void arrive(const Job& job);
  bool has_input(int actor, const PipelineTask& task) const;
  void advance(int actor);
  double loader_seconds(int actor, const PipelineTask& task) const;
  void join(int actor);
  int number_of(const Group& group) const { return static_cast<int>(&group - groups_.data()); }
  PassCosts costs_here(int actor);
  void begin_together(Group& group);
  void begin(int actor);
  double compute_seconds(int actor, const PipelineTask& task, double planned);
  void pass_done(int actor);
  void part_done(Group& group);
  void end_pass(int actor);

  // Weights and gradients.
  void publish(int number);
  void begin_passes(int number);
  void publish_rest(int number);
  void chunk_published(int number);
  void begin_reduction(int stage, int chunk);
  void reduce_next(int stage);
  void end_reduction(int stage);
  void end_passes(int actor);
  void stage_reduced(int stage);
  double compute_seconds_of_optimizer(int actor);

  // What is done.
  void finished(const Job& job);

  const StepProgram& program_;
  const plan::PipelineSchedule& table_;
  const RankMap& ranks_;
  const Symmetry& symmetry_;
  const Disturbances& disturbances_;
  const PlayOptions& options_;
  int stages_;
  int classes_;
  Fabric fabric_;
  std::vector<Actor> actors_;
  std::vector<Group> groups_;
  std::vector<Lane> lanes_;
  std::vector<char> input_, gradient_;  // [class][position][micro]: has arrived
  std::vector<Job> jobs_;
  std::vector<std::uint32_t> free_;
  int reduced_ = 0;    // stages
  int optimized_ = 0;  // actors
  PlayedStep step_;
};

}  // namespace lockstep::sim
