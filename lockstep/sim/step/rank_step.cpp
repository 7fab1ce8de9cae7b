// One rank's record of one simulated step.
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "lockstep/sim/step/record.h"

namespace lockstep::sim {
namespace {

using plan::PipelineTaskKind;
using telemetry::Span;
using telemetry::SpanKind;
using telemetry::SpanLane;
namespace metric = telemetry::metric;

SpanKind kind_of(PipelineTaskKind kind) {
  switch (kind) {
    case PipelineTaskKind::kForward:
      return SpanKind::kForward;
    case PipelineTaskKind::kWeightGradient:
      return SpanKind::kWeightGradient;
    case PipelineTaskKind::kBackward:
    case PipelineTaskKind::kInputGradient:
      return SpanKind::kBackward;
  }
  return SpanKind::kHost;
}

bool finishes(const PlayedPass& pass, const plan::PipelineSchedule& table) {
  const bool last = pass.task.micro + 1 == table.micro_batches;
  return last && (pass.task.kind == PipelineTaskKind::kBackward || pass.task.kind == PipelineTaskKind::kWeightGradient);
}

// Seconds of the rank's own thread by what it does; they add up to the step.
struct Phases {
  double forward = 0, backward = 0, comm = 0, wait = 0, data = 0, optimizer = 0, checkpoint = 0, host = 0;
};

class RankRecorder {
 public:
  RankRecorder(const StepsQuestion& question, const Simulation& simulation, std::int64_t step, std::int64_t rank)
      : question_(question),
        program_(question.program),
        table_(question.program.schedule),
        simulated_(simulation.steps[static_cast<std::size_t>(step - 1)]),
        step_(*simulated_.played),
        number_(step),
        rank_(rank),
        stage_number_(static_cast<int>(question.ranks.stage_of(rank))),
        class_(simulation.symmetry.class_of[static_cast<std::size_t>(question.ranks.data_rank_of(rank))]),
        stage_(stage_of(stage_number_)),
        names_(std::make_shared<std::vector<std::string>>()) {
    out_.spans.rank = out_.metrics.rank = static_cast<int>(rank);
    out_.spans.step = out_.metrics.step = step;
  }

  RankStep write() {
    span({.kind = SpanKind::kStep}, 0, simulated_.seconds);
    if (stage_.published > 0) {
      span({.kind = SpanKind::kPublish}, 0, stage_.published);
      phases_.comm += stage_.published;
    }
    double before = stage_.published;
    for (std::size_t i = 0; i < stage_.passes.size(); ++i) {
      waiting_for_input(stage_.passes[i], before);
      pass(stage_.passes[i], i);
      before = stage_.passes[i].end;
    }
    reductions();
    end_of_step();
    metrics();
    std::sort(out_.spans.spans.begin(), out_.spans.spans.end(),
              [](const Span& a, const Span& b) { return a.begin < b.begin; });
    out_.spans.names = names_;
    return std::move(out_);
  }

 private:
  const StepsQuestion& question_;
  const StepProgram& program_;
  const plan::PipelineSchedule& table_;
  const SimulatedStep& simulated_;
  const PlayedStep& step_;
  std::int64_t number_;
  std::int64_t rank_;
  int stage_number_;
  int class_;
  const PlayedStage& stage_;
  std::shared_ptr<std::vector<std::string>> names_;
  Phases phases_;
  double arrived_ = std::numeric_limits<double>::infinity();  // at the next exchange of coupled ranks
  RankStep out_;

  std::int32_t text(const std::string& name) {
    const auto found = std::find(names_->begin(), names_->end(), name);
    if (found == names_->end()) {
      names_->push_back(name);
      return static_cast<std::int32_t>(names_->size() - 1);
    }
    return static_cast<std::int32_t>(found - names_->begin());
  }

  void span(Span span, double begin, double end) {
    span.begin = static_cast<float>(begin);
    span.seconds = static_cast<float>(end - begin);
    out_.spans.spans.push_back(span);
  }

  void collective(const char* name, const std::string& group, std::int64_t sequence, double bytes, double begin,
                  double end) {
    span({.kind = SpanKind::kCollective,
          .lane = SpanLane::kComm,
          .name = text(name),
          .group = text(group),
          .bytes = static_cast<std::int64_t>(bytes),
          .sequence = sequence},
         begin, end);
  }

  const StageProgram& stage_program() const { return program_.stages[static_cast<std::size_t>(stage_number_)]; }
  std::int64_t place_in_group() const { return rank_ % question_.ranks.group_size(); }
  std::int64_t rank_on(int stage) const {
    return question_.ranks.first_rank(question_.ranks.data_rank_of(rank_), stage) + place_in_group();
  }

  const PlayedStage& stage_of(int stage) const {
    const int number = class_ * table_.stages + stage;
    return step_.stages[static_cast<std::size_t>(number)];
  }

  // When the pass ended that `position` gets its input from.
  double sent_at(int from_position, int micro, bool forward) const {
    const PlayedStage& from = stage_of(table_.rank_of(from_position));
    for (const PlayedPass& pass : from.passes) {
      const bool is_forward = pass.task.kind == PipelineTaskKind::kForward;
      if (pass.task.micro == micro && pass.task.chunk == table_.chunk_of(from_position) && is_forward == forward &&
          pass.task.kind != PipelineTaskKind::kWeightGradient) {
        return pass.end;
      }
    }
    return 0;
  }

  void message(const char* name, int from_position, int to_position, int micro, double begin, double end) {
    const int other = table_.rank_of(name[0] == 's' ? to_position : from_position);
    const std::int64_t from = rank_on(table_.rank_of(from_position)), to = rank_on(table_.rank_of(to_position));
    span({.kind = SpanKind::kCollective,
          .lane = SpanLane::kComm,
          .micro = static_cast<std::int16_t>(micro),
          .name = text(name),
          .group = text(fmt::format("pp/{}-{}", from, to)),
          .peer = static_cast<std::int32_t>(rank_on(other)),
          .bytes = static_cast<std::int64_t>(stage_program().send_bytes),
          .sequence = static_cast<std::int64_t>(to_position) * table_.micro_batches + micro},
         begin, end);
  }

  // From `before` on the rank is free.
  void waiting_for_input(const PlayedPass& pass, double before) {
    const int position = table_.position(stage_number_, pass.task.chunk);
    const bool forward = pass.task.kind == PipelineTaskKind::kForward;
    const int from = forward ? position - 1 : position + 1;
    const bool has_sender = from >= 0 && from < table_.positions() &&
                            pass.task.kind != PipelineTaskKind::kWeightGradient &&
                            table_.rank_of(from) != stage_number_;
    if (has_sender) message("recv", from, position, pass.task.micro, before, pass.ready);
    if (pass.ready <= before) return;
    span({.kind = SpanKind::kWait, .micro = static_cast<std::int16_t>(pass.task.micro), .name = text("recv")}, before,
         pass.ready);
    phases_.comm += pass.ready - before;
    const double sent = has_sender ? sent_at(from, pass.task.micro, forward) : pass.ready;
    phases_.wait += std::clamp(sent - before, 0.0, pass.ready - before);
  }

  // Of the slowest rank of the group, which all of it waits for, this one has so much.
  double own_share(std::size_t pass) const {
    const Disturbances& disturbances = question_.disturbances;
    if (disturbances.slow_ranks.empty() && disturbances.jitter <= 0) return 1;
    const std::int64_t first = rank_ - place_in_group();
    double slowest = 0;
    for (std::int64_t rank = first; rank < first + question_.ranks.group_size(); ++rank) {
      slowest = std::max(slowest, stretch_of(disturbances, question_.seed, number_, rank, pass));
    }
    return stretch_of(disturbances, question_.seed, number_, rank_, pass) / slowest;
  }

  void pass(const PlayedPass& pass, std::size_t number) {
    const auto micro = static_cast<std::int16_t>(pass.task.micro);
    const int position = table_.position(stage_number_, pass.task.chunk);
    if (pass.loaded > pass.ready) {
      span({.kind = SpanKind::kLoad, .micro = micro}, pass.ready, pass.loaded);
      phases_.data += pass.loaded - pass.ready;
    }
    joining(pass, number);
    const double exchange = exchange_seconds(program_.positions[static_cast<std::size_t>(position)], pass);
    const double shared = pass.done - pass.begin - exchange;  // compute of the slowest of the group
    const double own = shared * own_share(number);
    span({.kind = kind_of(pass.task.kind), .micro = micro, .stage = static_cast<std::int16_t>(position)}, pass.begin,
         pass.end);
    (pass.task.kind == PipelineTaskKind::kForward ? phases_.forward : phases_.backward) += own;
    const double blocked = pass.end - pass.begin - own;
    if (blocked > 0) {
      span({.kind = SpanKind::kWait, .micro = micro, .name = text("exchange")}, pass.begin + own, pass.end);
    }
    phases_.comm += blocked;
    phases_.wait += (shared - own) + (pass.end - pass.done);
    if (exchange > 0) {
      collective("all_reduce (tp)", fmt::format("tp/{}", rank_ - place_in_group()), static_cast<std::int64_t>(number),
                 exchange * stage_program().exchange_bytes_per_second, pass.begin + own, pass.done);
    }
    sending(pass, position);
  }

  static double exchange_seconds(const PositionProgram& position, const PlayedPass& pass) {
    return std::min(pass.done - pass.begin, pass_exchange(position, pass.task.kind));
  }

  // Peers, and what must be gathered first.
  void joining(const PlayedPass& pass, std::size_t number) {
    if (program_.coupled_data_ranks < 2) return;
    const double gathering = pass.begin - pass.loaded;
    if (gathering > 0) {
      span({.kind = SpanKind::kWait, .micro = static_cast<std::int16_t>(pass.task.micro), .name = text("all_gather")},
           pass.loaded, pass.begin);
      phases_.comm += gathering;
    }
    const std::int64_t block = question_.ranks.data_rank_of(rank_) / program_.coupled_data_ranks;
    collective("all_gather (zero: weights)", fmt::format("shard/{}.{}.{}", stage_number_, block, place_in_group()),
               static_cast<std::int64_t>(number), stage_program().weight_bytes / table_.chunks,
               std::min(pass.loaded, arrived_), pass.begin);
    arrived_ = pass.done;  // ranks that end a pass together are at the next exchange when they have computed
  }

  void sending(const PlayedPass& pass, int position) {
    if (pass.task.kind == PipelineTaskKind::kWeightGradient) return;
    const int to = pass.task.kind == PipelineTaskKind::kForward ? position + 1 : position - 1;
    if (to < 0 || to >= table_.positions() || table_.rank_of(to) == stage_number_) return;
    const double seconds = program_.positions[static_cast<std::size_t>(std::min(position, to))].send.total();
    message("send", position, to, pass.task.micro, pass.end, pass.end + program_.send_exposed * seconds);
  }

  void reductions() {
    std::vector<double> arrivals;  // at the hidden ones
    for (const PlayedPass& pass : stage_.passes) {
      if (finishes(pass, table_)) arrivals.push_back(pass.begin);
    }
    const bool scatters = question_.ranks.layout.zero > 0;
    const std::string group = fmt::format("dp/{}.{}", stage_number_, place_in_group());
    const StageProgram& program = stage_program();
    double moving = 0;
    std::size_t hidden = 0;
    std::int64_t sequence = 0;
    for (const PlayedReduction& reduction : step_.reductions) {
      if (reduction.stage != stage_number_) continue;
      const double arrived = reduction.exposed || hidden >= arrivals.size() ? stage_.reduce_begin : arrivals[hidden++];
      const double share = reduction.exposed ? program.reduce_exposed : (1 - program.reduce_exposed) / table_.chunks;
      collective(scatters ? "reduce_scatter (zero: gradients)" : "all_reduce (dp: gradients)", group, sequence++,
                 share * program.gradient_bytes, std::min(arrived, reduction.begin), reduction.end);
      moving += std::max(0.0, reduction.end - std::max(reduction.begin, stage_.reduce_begin));
    }
    const double blocked = stage_.optimizer_begin - stage_.reduce_begin;
    if (blocked > 0)
      span({.kind = SpanKind::kWait, .name = text("gradients")}, stage_.reduce_begin, stage_.optimizer_begin);
    phases_.comm += blocked;
    phases_.wait += std::max(0.0, blocked - moving);
  }

  void end_of_step() {
    const double all_done = step_.seconds - program_.host_seconds;
    const auto slow = question_.disturbances.slow_ranks.find(rank_);
    const double own =
        std::min(stage_program().optimizer * (slow == question_.disturbances.slow_ranks.end() ? 1.0 : slow->second),
                 all_done - stage_.optimizer_begin);
    span({.kind = SpanKind::kOptimizer}, stage_.optimizer_begin, stage_.optimizer_begin + own);
    phases_.optimizer = own;
    const double rest = all_done - stage_.optimizer_begin - own;
    if (rest > 0) span({.kind = SpanKind::kWait, .name = text("step")}, all_done - rest, all_done);
    phases_.comm += rest;
    phases_.wait += rest;
    phases_.host = program_.host_seconds;
    phases_.checkpoint = simulated_.checkpoint_stall;
    if (simulated_.checkpoint_stall > 0) {
      span({.kind = SpanKind::kCheckpoint}, step_.seconds, step_.seconds + simulated_.checkpoint_stall);
    }
  }

  void metrics() {
    const auto add = [&](std::string_view name, double value) {
      out_.metrics.metrics.push_back({std::string(name), value});
    };
    add(metric::kStepSeconds, simulated_.seconds);
    add(metric::kComputeSeconds, phases_.forward + phases_.backward);
    add(metric::kForwardSeconds, phases_.forward);
    add(metric::kBackwardSeconds, phases_.backward);
    add(metric::kExposedCommSeconds, phases_.comm);
    add(metric::kWaitSeconds, phases_.wait);
    add(metric::kDataSeconds, phases_.data);
    add(metric::kOptimizerSeconds, phases_.optimizer);
    add(metric::kCheckpointSeconds, phases_.checkpoint);
    add(metric::kHostSeconds, phases_.host);
  }
};

}  // namespace

RankStep rank_step(const StepsQuestion& question, const Simulation& simulation, std::int64_t step, std::int64_t rank) {
  return RankRecorder(question, simulation, step, rank).write();
}

}  // namespace lockstep::sim
