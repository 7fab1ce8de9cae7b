#include "lockstep/sim/step/player.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "lockstep/base/counter_random.h"
#include "lockstep/base/error.h"
#include "lockstep/sim/step/play.h"

namespace lockstep::sim {
namespace {

bool sends_gradient(PipelineTaskKind kind) {
  return kind == PipelineTaskKind::kBackward || kind == PipelineTaskKind::kInputGradient;
}
bool finishes_gradients(PipelineTaskKind kind) {
  return kind == PipelineTaskKind::kBackward || kind == PipelineTaskKind::kWeightGradient;
}

void add(const Pass& pass, PassCosts& costs) {
  costs.compute += pass.compute;
  costs.exchange += pass.exchange;
  costs.before.inside += pass.exposed * pass.beside.inside;
  costs.before.between += pass.exposed * pass.beside.between;
  costs.beside.inside += (1 - pass.exposed) * pass.beside.inside;
  costs.beside.between += (1 - pass.exposed) * pass.beside.between;
}

PassCosts costs_of(const PositionProgram& position, PipelineTaskKind kind) {
  PassCosts costs;
  if (kind == PipelineTaskKind::kForward) add(position.forward, costs);
  if (sends_gradient(kind)) add(position.input_gradient, costs);
  if (finishes_gradients(kind)) add(position.weight_gradient, costs);
  return costs;
}

}  // namespace

Player::Player(const StepProgram& program, const RankMap& ranks, const Symmetry& symmetry,
               const Disturbances& disturbances, const PlayOptions& options)
    : program_(program),
      table_(program.schedule),
      ranks_(ranks),
      symmetry_(symmetry),
      disturbances_(disturbances),
      options_(options),
      stages_(table_.stages),
      classes_(static_cast<int>(symmetry.classes.size())),
      fabric_(classes_ * stages_, program.overlap_slowdown, options.contention),
      actors_(static_cast<std::size_t>(classes_ * stages_)),
      groups_(symmetry.blocks.size() * static_cast<std::size_t>(stages_)),
      lanes_(static_cast<std::size_t>(stages_)) {
  const auto cells = static_cast<std::size_t>(classes_) * static_cast<std::size_t>(table_.positions()) *
                     static_cast<std::size_t>(table_.micro_batches);
  for (std::vector<char>* arrived : {&input_, &gradient_}) arrived->assign(cells, 0);
  set_up();
}

PlayedStep Player::play() {
  for (int stage = 0; stage < stages_; ++stage) publish(stage);
  std::uint32_t tag = 0;
  while (fabric_.next(tag)) {
    const Job job = jobs_[tag];
    free_.push_back(tag);
    if (job.then > 0) {
      continue_between(job);
      continue;
    }
    finished(job);
  }
  LOCKSTEP_ASSERT(optimized_ == classes_ * stages_, "a step that waits for itself");
  step_.seconds = fabric_.now() + program_.host_seconds;
  step_.events = fabric_.events();
  return std::move(step_);
}

Player::Group& Player::group_of(int actor) {
  const int block = symmetry_.classes[static_cast<std::size_t>(class_of(actor))].block;
  const int number = block * stages_ + stage_of(actor);
  return groups_[static_cast<std::size_t>(number)];
}

std::size_t Player::cell(int data_class, int position, int micro) const {
  return (static_cast<std::size_t>(data_class) * static_cast<std::size_t>(table_.positions()) +
          static_cast<std::size_t>(position)) *
             static_cast<std::size_t>(table_.micro_batches) +
         static_cast<std::size_t>(micro);
}

std::uint32_t Player::tag_of(const Job& job) {
  if (free_.empty()) {
    jobs_.push_back(job);
    return static_cast<std::uint32_t>(jobs_.size() - 1);
  }
  const std::uint32_t tag = free_.back();
  free_.pop_back();
  jobs_[tag] = job;
  return tag;
}

void Player::set_up() {
  step_.stages.resize(actors_.size());
  for (int actor = 0; actor < classes_ * stages_; ++actor) {
    PlayedStage& stage = played(actor);
    stage.data_class = class_of(actor);
    stage.stage = stage_of(actor);
    stage.passes.reserve(list_of(actor).size());
    group_of(actor).actors.push_back(actor);
    lanes_[static_cast<std::size_t>(stage_of(actor))].actors.push_back(actor);
    fabric_.set_nic_speed(actor, nic_speed(actor));
  }
  for (Lane& lane : lanes_) lane.begun.assign(static_cast<std::size_t>(table_.chunks), 0);
  if (options_.background > 0) fabric_.set_background(options_.background);
}

double Player::nic_speed(int actor) const {
  if (disturbances_.slow_links.empty()) return 1;
  const std::int64_t first = ranks_.first_rank(data_rank_of(actor), stage_of(actor));
  double speed = 1;
  for (std::int64_t rank = first; rank < first + ranks_.group_size(); ++rank) {
    const auto slow = disturbances_.slow_links.find(ranks_.node_of(rank));
    if (slow != disturbances_.slow_links.end()) speed = std::min(speed, slow->second);
  }
  return speed;
}

// Inside a node or between nodes, never both.
void Player::send(int from, int position, int to_position, int micro, bool forward) {
  const int to = actor_of(class_of(from), table_.rank_of(to_position));
  const LinkSeconds& seconds = program_.positions[static_cast<std::size_t>(std::min(position, to_position))].send;
  const Job job{.what = What::kMessage, .actor = to, .position = to_position, .micro = micro, .forward = forward};
  if (to == from) return arrive(job);
  const Reach reach = seconds.inside > 0 ? Reach::kInside : Reach::kBetween;
  fabric_.message(program_.send_exposed * seconds.total(), reach, from, to, tag_of(job));
}

// What is still on its way when the receiver begins.
void Player::send_rest(const Job& job) {
  const int from_position = job.forward ? job.position - 1 : job.position + 1;
  const LinkSeconds& seconds = program_.positions[static_cast<std::size_t>(std::min(job.position, from_position))].send;
  const double rest = (1 - program_.send_exposed) * seconds.total();
  if (rest <= 0) return;
  const int from = actor_of(class_of(job.actor), table_.rank_of(from_position));
  fabric_.message(rest, seconds.inside > 0 ? Reach::kInside : Reach::kBetween, from, job.actor,
                  tag_of({.what = What::kRest}));
}

void Player::arrive(const Job& job) {
  std::vector<char>& arrived = job.forward ? input_ : gradient_;
  arrived[cell(class_of(job.actor), job.position, job.micro)] = 1;
  if (at(job.actor).waits) advance(job.actor);
}

bool Player::has_input(int actor, const PipelineTask& task) const {
  const int position = table_.position(stage_of(actor), task.chunk);
  const std::size_t place = cell(class_of(actor), position, task.micro);
  if (task.kind == PipelineTaskKind::kForward) return position == 0 || input_[place] != 0;
  return !sends_gradient(task.kind) || position + 1 == table_.positions() || gradient_[place] != 0;
}

void Player::advance(int actor) {
  Actor& state = at(actor);
  state.waits = false;
  if (state.next == list_of(actor).size()) return end_passes(actor);
  const PipelineTask& task = list_of(actor)[state.next];
  if (!has_input(actor, task)) {
    state.waits = true;
    return;
  }
  const double now = fabric_.now();
  played(actor).passes.push_back({.task = task, .ready = now, .loaded = now});
  const double loading = loader_seconds(actor, task);
  if (loading > 0) return fabric_.wait(loading, tag_of({.what = What::kLoad, .actor = actor}));
  join(actor);
}

double Player::loader_seconds(int actor, const PipelineTask& task) const {
  if (disturbances_.loader_seconds.empty() || task.kind != PipelineTaskKind::kForward) return 0;
  if (table_.position(stage_of(actor), task.chunk) != 0) return 0;
  const std::int64_t first = ranks_.first_rank(data_rank_of(actor), 0);
  double seconds = 0;
  for (std::int64_t rank = first; rank < first + ranks_.group_size(); ++rank) {
    const auto slow = disturbances_.loader_seconds.find(rank);
    if (slow != disturbances_.loader_seconds.end()) seconds = std::max(seconds, slow->second);
  }
  return seconds;
}

void Player::join(int actor) {
  played(actor).passes.back().loaded = fabric_.now();
  Group& group = group_of(actor);
  if (++group.arrived < static_cast<int>(group.actors.size())) return;
  group.arrived = 0;
  const PassCosts costs = costs_here(actor);
  if (costs.before.total() > 0) {
    return start_collective(costs.before, group.actors, false, {.what = What::kBefore, .actor = number_of(group)});
  }
  begin_together(group);
}

PassCosts Player::costs_here(int actor) {
  const PipelineTask& task = played(actor).passes.back().task;
  return costs_of(program_.positions[static_cast<std::size_t>(table_.position(stage_of(actor), task.chunk))],
                  task.kind);
}

void Player::begin_together(Group& group) {
  group.running = static_cast<int>(group.actors.size());
  const PassCosts costs = costs_here(group.actors.front());
  if (costs.beside.total() > 0) {
    ++group.running;
    start_collective(costs.beside, group.actors, true, {.what = What::kBeside, .actor = number_of(group)});
  }
  for (const int actor : group.actors) begin(actor);
}

void Player::begin(int actor) {
  PlayedPass& pass = played(actor).passes.back();
  pass.begin = fabric_.now();
  const PassCosts costs = costs_here(actor);
  const double compute = compute_seconds(actor, pass.task, costs.compute);
  const double seconds = compute + costs.exchange;
  const Reach reach = stage_program(stage_of(actor)).exchanges_between_nodes ? Reach::kBetween : Reach::kInside;
  fabric_.pass(seconds, seconds > 0 ? costs.exchange / seconds : 0, reach, actor,
               tag_of({.what = What::kPass, .actor = actor}));
  if (finishes_gradients(pass.task.kind) && pass.task.micro + 1 == table_.micro_batches) {
    begin_reduction(stage_of(actor), pass.task.chunk);
  }
}

double Player::compute_seconds(int actor, const PipelineTask& task, double planned) {
  const std::int64_t data_rank = data_rank_of(actor);
  if (options_.compute) return options_.compute(data_rank, stage_of(actor), task, planned);
  if (disturbances_.slow_ranks.empty() && disturbances_.jitter <= 0) return planned;
  const std::int64_t first = ranks_.first_rank(data_rank, stage_of(actor));
  double slowest = 0;
  for (std::int64_t rank = first; rank < first + ranks_.group_size(); ++rank) {
    slowest = std::max(slowest, stretch_of(disturbances_, options_.seed, options_.step, rank, at(actor).next));
  }
  return slowest * planned;
}

void Player::pass_done(int actor) {
  played(actor).passes.back().done = fabric_.now();
  part_done(group_of(actor));
}

void Player::part_done(Group& group) {
  if (--group.running > 0) return;
  for (const int actor : group.actors) end_pass(actor);
}

void Player::end_pass(int actor) {
  PlayedPass& pass = played(actor).passes.back();
  const PipelineTask task = pass.task;
  if (task.kind == PipelineTaskKind::kForward && task.micro == 0 &&
      lanes_[static_cast<std::size_t>(stage_of(actor))].published <= task.chunk) {
    at(actor).holds = true;
    return;
  }
  pass.end = fabric_.now();
  const int position = table_.position(stage_of(actor), task.chunk);
  if (task.kind == PipelineTaskKind::kForward && position + 1 < table_.positions()) {
    send(actor, position, position + 1, task.micro, true);
  }
  if (sends_gradient(task.kind) && position > 0) send(actor, position, position - 1, task.micro, false);
  ++at(actor).next;
  advance(actor);
}

void Player::finished(const Job& job) {
  switch (job.what) {
    case What::kPass:
      return pass_done(job.actor);
    case What::kLoad:
      return join(job.actor);
    case What::kBefore:
      return begin_together(groups_[static_cast<std::size_t>(job.actor)]);
    case What::kBeside:
      return part_done(groups_[static_cast<std::size_t>(job.actor)]);
    case What::kMessage:
      send_rest(job);
      return arrive(job);
    case What::kRest:
      return;
    case What::kPublish:
      return begin_passes(job.actor);
    case What::kPublished:
      return chunk_published(job.actor);
    case What::kReduce:
      end_reduction(job.actor);
      lanes_[static_cast<std::size_t>(job.actor)].busy = false;
      return reduce_next(job.actor);
    case What::kReduceRest:
      end_reduction(job.actor);
      return stage_reduced(job.actor);
    case What::kOptimizer:
      played(job.actor).optimizer_end = fabric_.now();
      ++optimized_;
      return;
  }
}

PlayedStep play_step(const StepProgram& program, const RankMap& ranks, const Symmetry& symmetry,
                     const Disturbances& disturbances, const PlayOptions& options) {
  return Player(program, ranks, symmetry, disturbances, options).play();
}

std::vector<plan::PlayedTask> played_tasks(const PlayedStep& step, int data_class) {
  std::vector<plan::PlayedTask> tasks;
  for (const PlayedStage& stage : step.stages) {
    if (stage.data_class != data_class) continue;
    for (const PlayedPass& pass : stage.passes) tasks.push_back({pass.task, stage.stage, pass.begin, pass.end});
  }
  return tasks;
}

double stretch_of(const Disturbances& disturbances, std::uint64_t seed, std::int64_t step, std::int64_t rank,
                  std::size_t pass) {
  const auto slow = disturbances.slow_ranks.find(rank);
  const double factor = slow == disturbances.slow_ranks.end() ? 1.0 : slow->second;
  if (disturbances.jitter <= 0) return factor;
  const std::uint64_t key =
      combine(combine(combine(seed, static_cast<std::uint64_t>(step)), static_cast<std::uint64_t>(rank)), pass);
  const auto uniform = [](std::uint64_t bits) { return static_cast<double>((bits >> 11) + 1) * 0x1p-53; };  // (0, 1]
  const double normal = std::sqrt(-2 * std::log(uniform(mix(key)))) *
                        std::cos(2 * std::numbers::pi * uniform(mix(key + kGolden)));  // Box and Muller 1958
  return factor * std::exp(disturbances.jitter * normal);
}

}  // namespace lockstep::sim
