// Weights and gradients of a step: published, reduced, and turned into new weights.
#include <algorithm>

#include "lockstep/sim/step/play.h"

namespace lockstep::sim {

void Player::start_collective(const LinkSeconds& seconds, const std::vector<int>& members, bool beside, Job job) {
  const bool inside = seconds.inside > 0;
  job.then = inside ? seconds.between : 0;
  fabric_.collective(inside ? seconds.inside : seconds.between, inside ? Reach::kInside : Reach::kBetween, members,
                     beside, tag_of(job));
}

void Player::continue_between(Job job) {
  const double seconds = job.then;
  job.then = 0;
  const bool beside = job.what == What::kBeside || job.what == What::kPublished || job.what == What::kReduce;
  const bool of_stage = job.what != What::kBefore && job.what != What::kBeside;
  const std::vector<int>& members = of_stage ? lanes_[static_cast<std::size_t>(job.actor)].actors
                                             : groups_[static_cast<std::size_t>(job.actor)].actors;
  fabric_.collective(seconds, Reach::kBetween, members, beside, tag_of(job));
}

void Player::publish(int number) {
  Lane& lane = lanes_[static_cast<std::size_t>(number)];
  const StageProgram& stage = stage_program(number);
  const LinkSeconds before = part(stage.publish, stage.reduce_exposed);
  if (before.total() > 0) {
    return start_collective(before, lane.actors, false, {.what = What::kPublish, .actor = number});
  }
  begin_passes(number);
}

void Player::begin_passes(int number) {
  publish_rest(number);
  for (const int actor : lanes_[static_cast<std::size_t>(number)].actors) {
    played(actor).published = fabric_.now();
    advance(actor);
  }
}

void Player::publish_rest(int number) {
  Lane& lane = lanes_[static_cast<std::size_t>(number)];
  const StageProgram& stage = stage_program(number);
  const LinkSeconds rest = part(stage.publish, (1 - stage.reduce_exposed) / table_.chunks);
  if (rest.total() <= 0) lane.published = table_.chunks;
  if (lane.published == table_.chunks) return;
  start_collective(rest, lane.actors, true, {.what = What::kPublished, .actor = number});
}

void Player::chunk_published(int number) {
  Lane& lane = lanes_[static_cast<std::size_t>(number)];
  ++lane.published;
  publish_rest(number);
  for (const int actor : lane.actors) {
    if (!at(actor).holds) continue;
    at(actor).holds = false;
    end_pass(actor);
  }
}

void Player::begin_reduction(int stage, int chunk) {
  Lane& lane = lanes_[static_cast<std::size_t>(stage)];
  if (++lane.begun[static_cast<std::size_t>(chunk)] < static_cast<int>(lane.actors.size())) return;
  lane.waiting.push_back(chunk);
  reduce_next(stage);
}

void Player::reduce_next(int stage) {
  Lane& lane = lanes_[static_cast<std::size_t>(stage)];
  if (lane.busy) return;
  const StageProgram& program = stage_program(stage);
  if (!lane.waiting.empty()) {
    lane.waiting.pop_front();
    const LinkSeconds seconds = part(program.reduce, (1 - program.reduce_exposed) / table_.chunks);
    if (seconds.total() <= 0) return reduce_next(stage);
    lane.busy = true;
    step_.reductions.push_back({.stage = stage, .begin = fabric_.now()});
    return start_collective(seconds, lane.actors, true, {.what = What::kReduce, .actor = stage});
  }
  if (lane.done < static_cast<int>(lane.actors.size())) return;
  const LinkSeconds rest = part(program.reduce, program.reduce_exposed);
  if (rest.total() <= 0) return stage_reduced(stage);
  lane.busy = true;
  step_.reductions.push_back({.stage = stage, .exposed = true, .begin = fabric_.now()});
  start_collective(rest, lane.actors, false, {.what = What::kReduceRest, .actor = stage});
}

void Player::end_reduction(int stage) {
  const auto under_way = std::find_if(step_.reductions.rbegin(), step_.reductions.rend(),
                                      [stage](const PlayedReduction& reduction) { return reduction.stage == stage; });
  under_way->end = fabric_.now();
}

void Player::end_passes(int actor) {
  played(actor).reduce_begin = fabric_.now();
  Lane& lane = lanes_[static_cast<std::size_t>(stage_of(actor))];
  if (++lane.done == static_cast<int>(lane.actors.size())) reduce_next(stage_of(actor));
}

void Player::stage_reduced(int stage) {
  for (const int actor : lanes_[static_cast<std::size_t>(stage)].actors) played(actor).reduce_end = fabric_.now();
  if (++reduced_ < stages_) return;
  for (int actor = 0; actor < classes_ * stages_; ++actor) {
    played(actor).optimizer_begin = fabric_.now();
    const double seconds = compute_seconds_of_optimizer(actor);
    fabric_.wait(seconds, tag_of({.what = What::kOptimizer, .actor = actor}));
  }
}

double Player::compute_seconds_of_optimizer(int actor) {
  double slowest = 1;
  const std::int64_t first = ranks_.first_rank(data_rank_of(actor), stage_of(actor));
  for (const auto& [rank, factor] : disturbances_.slow_ranks) {
    if (rank >= first && rank < first + ranks_.group_size()) slowest = std::max(slowest, factor);
  }
  return slowest * stage_program(stage_of(actor)).optimizer;
}

}  // namespace lockstep::sim
