#include "lockstep/elastic/run_record.h"

#include <utility>

namespace lockstep::elastic {
namespace {

constexpr double kBeginSeconds = 5.0;
constexpr double kEndSeconds = 10.0;
constexpr int kInterrupted = 130;

}  // namespace

RunRecord::RunRecord(std::shared_ptr<telemetry::Recorder> recorder, const RankRequest& request,
                     const nlohmann::json& versions)
    : recorder_(std::move(recorder)) {
  if (!recorder_) return;
  telemetry::RunInfo info;
  info.id = request.run_id;
  info.name = request.job.name;
  info.world = request.ranks.world;
  info.backend = request.backend;
  info.job_yaml = spec::to_yaml(request.job);
  info.versions = versions;
  recorder_->begin_run(telemetry::describe_this_process(info));
  if (request.plan) recorder_->plan(plan::to_json(*request.plan));
  recorder_->flush(kBeginSeconds);
}

RunRecord::RunRecord(std::shared_ptr<telemetry::Recorder> recorder, const telemetry::RunInfo& info)
    : recorder_(std::move(recorder)) {
  if (!recorder_) return;
  recorder_->begin_run(telemetry::describe_this_process(info));
  recorder_->flush(kBeginSeconds);
}

RunRecord::~RunRecord() { end(1, "could not be started", nullptr); }

void RunRecord::hand_over() {
  if (const auto recorder = std::exchange(recorder_, nullptr)) recorder->flush(kEndSeconds);
}

void RunRecord::end(int exit_code, std::string reason, nlohmann::json summary, std::optional<int> failed_rank) {
  const auto recorder = std::exchange(recorder_, nullptr);
  if (!recorder) return;
  if (failed_rank) {
    recorder->event({.level = telemetry::Level::kError,
                     .kind = std::string(telemetry::event_kind::kFailure),
                     .rank = *failed_rank,
                     .message = reason});
  }
  if (exit_code == kInterrupted && reason.empty()) reason = "stopped by Ctrl-C";
  recorder->end_run(exit_code == 0              ? telemetry::RunStatus::kDone
                    : exit_code == kInterrupted ? telemetry::RunStatus::kInterrupted
                                                : telemetry::RunStatus::kFailed,
                    std::move(reason), summary.is_null() ? nlohmann::json::object() : std::move(summary));
  recorder->flush(kEndSeconds);
}

}  // namespace lockstep::elastic
