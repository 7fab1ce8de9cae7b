#include "lockstep/sim/step/record.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "lockstep/base/text.h"
#include "lockstep/plan/run.h"

namespace lockstep::sim {
namespace {

using nlohmann::json;
namespace metric = telemetry::metric;

constexpr std::int64_t kSmallWorld = 256;  // ranks: all of them are recorded
constexpr std::int64_t kMostRanks = 512;   // of a large one
constexpr std::int64_t kOfEachKind = 2;    // data ranks, so that every rank has a peer to compare with
constexpr std::int64_t kMostSpanSteps = 20;

// A job that reads back to what was played, for whoever looks at the run.
std::string job_of(const RecordRequest& request, std::int64_t steps) {
  spec::Job job;
  job.name = request.name;
  job.model = request.plan.model;
  job.cluster = request.plan.cluster;
  job.steps = steps;
  plan::follow(job, request.plan.best);
  return spec::to_yaml(job);
}

telemetry::RunInfo info_of(const StepsQuestion& question, const Simulation& simulation, const RecordRequest& request) {
  telemetry::RunInfo info;
  info.id = telemetry::make_run_id(request.name);
  info.name = request.name;
  info = telemetry::describe_this_process(std::move(info));
  info.started_at = request.ended_at - simulation.seconds();
  info.world = static_cast<int>(question.ranks.layout.world());
  info.backend = kSimulatedBackend;
  info.job_yaml = job_of(request, question.steps);
  info.versions = {{"simulated", request.asked}};
  return info;
}

std::vector<telemetry::Record> events_of(const StepsQuestion& question, const Simulation& simulation,
                                         const RecordRequest& request, double started_at, std::size_t recorded) {
  const std::int64_t world = question.ranks.layout.world();
  json nodes = json::array();
  for (std::int64_t rank = 0; rank < world; ++rank) nodes.push_back(question.ranks.node_of(rank));
  std::vector<telemetry::Record> events;
  events.emplace_back(telemetry::Event{.time = started_at,
                                       .kind = std::string(telemetry::event_kind::kPlacement),
                                       .message = fmt::format("{} simulated ranks", world),
                                       .data = {{"nodes", std::move(nodes)}}});
  std::string what = fmt::format("simulated, {}", request.asked);
  if (static_cast<std::int64_t>(recorded) < world) {
    what += fmt::format("; {} of {} ranks are recorded: those that differ, and some that stand for the others",
                        recorded, world);
  }
  events.emplace_back(telemetry::Event{.time = started_at,
                                       .kind = kSimulatedBackend,
                                       .message = what,
                                       .data = {{"recorded_ranks", recorded}, {"world", world}}});
  for (std::size_t i = 0; i < simulation.steps.size(); ++i) {
    const SimulatedStep& step = simulation.steps[i];
    if (step.checkpoint_stall <= 0) continue;
    events.emplace_back(
        telemetry::Event{.time = started_at + step.begin + step.seconds,
                         .kind = std::string(telemetry::event_kind::kCheckpoint),
                         .step = static_cast<std::int64_t>(i + 1),
                         .message = "simulated checkpoint",
                         .data = {{"seconds", step.checkpoint_stall + question.checkpoints.write_seconds},
                                  {"stall_seconds", step.checkpoint_stall}}});
  }
  return events;
}

// Throughput of the whole job, as rank 0 of a real run says it.
void add_throughput(const RecordRequest& request, double seconds, telemetry::MetricBatch& batch) {
  const plan::BatchPlan& plan = request.plan.best.batch;
  const auto samples = static_cast<double>(plan.global_sequences);
  batch.metrics.push_back({std::string(metric::kSamplesPerSecond), samples / seconds});
  if (plan.sequence_length > 0) {
    batch.metrics.push_back(
        {std::string(metric::kTokensPerSecond), samples * static_cast<double>(plan.sequence_length) / seconds});
  }
  if (request.mfu_seconds > 0) batch.metrics.push_back({std::string(metric::kMfu), request.mfu_seconds / seconds});
}

}  // namespace

std::vector<std::int64_t> ranks_to_record(const StepsQuestion& question, const Symmetry& symmetry) {
  const RankMap& ranks = question.ranks;
  const std::int64_t world = ranks.layout.world(), stages = ranks.layout.pp, group = ranks.group_size();
  std::set<std::int64_t> chosen;
  if (world <= kSmallWorld) {
    for (std::int64_t rank = 0; rank < world; ++rank) chosen.insert(rank);
    return {chosen.begin(), chosen.end()};
  }
  std::vector<std::int64_t> seen(symmetry.classes.size(), 0);
  const std::int64_t each = stages * group <= kMostRanks ? group : 1;  // of the ranks that go through a stage together
  const auto take = [&](std::int64_t data_rank) {
    for (std::int64_t stage = 0; stage < stages; ++stage) {
      const std::int64_t first = ranks.first_rank(data_rank, stage);
      for (std::int64_t rank = first; rank < first + each; ++rank) chosen.insert(rank);
    }
  };
  for (std::int64_t data_rank = 0; data_rank < ranks.layout.data_ranks(); ++data_rank) {
    std::int64_t& of_kind = seen[static_cast<std::size_t>(symmetry.class_of[static_cast<std::size_t>(data_rank)])];
    const bool room = static_cast<std::int64_t>(chosen.size()) + stages * each <= kMostRanks;
    if (of_kind++ < kOfEachKind && (room || data_rank == 0)) take(data_rank);
  }
  for (const auto& [rank, factor] : question.disturbances.slow_ranks) chosen.insert(rank);
  for (const auto& [rank, seconds] : question.disturbances.loader_seconds) chosen.insert(rank);
  return {chosen.begin(), chosen.end()};
}

std::string record(const StepsQuestion& question, const Simulation& simulation, const RecordRequest& request,
                   telemetry::RunStore& store) {
  const telemetry::RunInfo info = info_of(question, simulation, request);
  const std::vector<std::int64_t> ranks = ranks_to_record(question, simulation.symmetry);
  std::vector<telemetry::Record> batch = {info, telemetry::PlanRecord{plan::to_json(request.plan)}};
  for (telemetry::Record& event : events_of(question, simulation, request, info.started_at, ranks.size())) {
    batch.push_back(std::move(event));
  }
  const auto steps = static_cast<std::int64_t>(simulation.steps.size());
  for (std::int64_t step = 1; step <= steps; ++step) {
    const SimulatedStep& simulated = simulation.steps[static_cast<std::size_t>(step - 1)];
    for (const std::int64_t rank : ranks) {
      RankStep recorded = rank_step(question, simulation, step, rank);
      recorded.spans.time = info.started_at + simulated.begin;
      recorded.metrics.time = recorded.spans.time + simulated.seconds;
      if (rank == 0) add_throughput(request, simulated.seconds, recorded.metrics);
      batch.emplace_back(std::move(recorded.metrics));
      if (step > steps - kMostSpanSteps) batch.emplace_back(std::move(recorded.spans));
    }
    store.write(info.id, batch);
    batch.clear();
  }
  const double mean = simulation.seconds() / static_cast<double>(std::max<std::int64_t>(1, steps));
  json summary = {{"simulated", true}, {"steps", steps}, {"step_seconds", mean}};
  const plan::BatchPlan& plan = request.plan.best.batch;
  if (plan.sequence_length > 0) {
    summary["tokens_per_second"] = static_cast<double>(plan.global_sequences * plan.sequence_length) / mean;
  }
  batch.emplace_back(telemetry::RunEnd{.time = request.ended_at, .exit_reason = "", .summary = std::move(summary)});
  store.write(info.id, batch);
  return info.id;
}

}  // namespace lockstep::sim
