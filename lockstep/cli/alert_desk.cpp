#include "lockstep/cli/alert_desk.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/base/text.h"
#include "lockstep/cli/health.h"
#include "lockstep/elastic/control.h"
#include "lockstep/telemetry/alert_delivery.h"
#include "lockstep/telemetry/node_alerts.h"

namespace lockstep::cli {
namespace {

constexpr double kTickSeconds = 1.0;
constexpr double kRankSeconds = 1.0;  // between two looks at how busy ranks are

// Of a rank, as its heartbeats tell.
struct RankPulse {
  std::int64_t step = -1, marks = -1, looked_step = -1;
  double busy_seconds = 0.0, looked_busy_seconds = 0.0;
};

}  // namespace

struct AlertDesk::State {
  State(const elastic::RankRequest& request, Say say_line)
      : say(std::move(say_line)),
        rules(telemetry::alert_context(request.job, request.run_id)),
        delivery(request.job.alerts, {.run = request.run_id, .name = request.job.name, .on_problem = say}) {}

  Say say;
  std::mutex mutex;  // guards what follows
  telemetry::NodeAlerts rules;
  std::shared_ptr<telemetry::Recorder> recorder;
  bool watches = false;
  std::map<int, RankPulse> pulses;
  int generation = 0;
  double looked_at_ranks = 0.0, last_checkpoint_bytes = 0.0;
  telemetry::AlertDelivery delivery;

  void publish(std::vector<telemetry::Alert> alerts, bool is_recorded) {
    for (telemetry::Alert& alert : alerts) {
      if (alert.time == 0.0) alert.time = unix_seconds();
      if (!is_recorded && recorder) recorder->event(to_event(alert));
      say(to_text(alert));
      delivery.tell(alert);
    }
  }

  void tick() {
    const std::lock_guard lock(mutex);
    publish(rules.tick(monotonic_seconds()), false);
  }

  void take_beat(int rank, const nlohmann::json& message) {
    const double now = monotonic_seconds();
    if (const int told = message.value("generation", 0); told != generation) {
      generation = told;
      pulses.clear();
      rules.waits(now);
    }
    RankPulse& pulse = pulses[rank];
    const auto step = message.value("step", std::int64_t{-1}), marks = message.value("marks", std::int64_t{0});
    pulse.busy_seconds = message.value("busy_seconds", 0.0);
    const bool advanced = step != pulse.step || marks != pulse.marks;
    pulse.step = step;
    pulse.marks = marks;
    if (rank == 0 && advanced && step >= 0) publish(rules.advanced(step, now), false);
    if (now - looked_at_ranks >= kRankSeconds) look_at_ranks(now);
  }

  // How long each rank was busy in a step, over the steps since the last look; once all have done some.
  void look_at_ranks(double now) {
    const bool all_stepped = std::ranges::all_of(pulses, [](const auto& entry) {
      return entry.second.step > entry.second.looked_step && entry.second.busy_seconds > 0.0;
    });
    if (pulses.size() < 2 || !all_stepped) return;
    std::map<int, double> busy;
    double step_seconds = 0.0;
    bool is_first = false;
    for (auto& [rank, pulse] : pulses) {
      const auto steps = static_cast<double>(pulse.step - std::max<std::int64_t>(0, pulse.looked_step));
      is_first = is_first || pulse.looked_step < 0;
      busy[rank] = (pulse.busy_seconds - pulse.looked_busy_seconds) / steps;
      if (rank == 0) step_seconds = (now - looked_at_ranks) / steps;
      pulse.looked_step = pulse.step;
      pulse.looked_busy_seconds = pulse.busy_seconds;
    }
    const double since = now - std::exchange(looked_at_ranks, now);
    if (!is_first) publish(rules.ranks_were_busy(busy, step_seconds, since), false);
  }
};

AlertDesk::AlertDesk(const elastic::RankRequest& request, Say say)
    : state_(std::make_shared<State>(request, std::move(say))) {}

AlertDesk::~AlertDesk() = default;

void AlertDesk::watch_nodes(std::shared_ptr<telemetry::Recorder> recorder) {
  {
    const std::lock_guard lock(state_->mutex);
    state_->recorder = std::move(recorder);
    state_->watches = true;
  }
  ticks_.emplace(kTickSeconds, [state = state_] { state->tick(); });
}

void AlertDesk::hear(int rank, const nlohmann::json& message) {
  const std::string type = message.value("type", "");
  const std::lock_guard lock(state_->mutex);
  if (auto alert = telemetry::alert_in(message)) return state_->publish({std::move(*alert)}, true);
  if (!state_->watches) return;
  const std::string node = message.value("node", "").empty() ? telemetry::host_name() : message.value("node", "");
  if (type == elastic::command::kHeartbeat && rank >= 0) state_->take_beat(rank, message);
  // The last steps of a run may all lie between two heartbeats.
  if (const auto step = message.value("step", std::int64_t{-1}); type == "progress" && rank == 0 && step >= 0) {
    state_->publish(state_->rules.advanced(step, monotonic_seconds()), false);
  }
  if (type == "checkpoint") state_->last_checkpoint_bytes = message.value("bytes", 0.0);
  if (type == "usage" && message.contains("disk_free_bytes")) {
    state_->publish(state_->rules.disk_is(node, message.at("disk_free_bytes").get<double>(),
                                          state_->last_checkpoint_bytes, monotonic_seconds()),
                    false);
  }
  if (type == kFinding) {
    const auto severity = value_named<elastic::Severity>(message.value("severity", ""));
    const bool is_bad = severity && *severity >= elastic::Severity::kWarning;
    const std::string subject = message.value("check", "") + " " + message.value("subject", "");
    state_->publish(
        state_->rules.node_is(node, subject, is_bad ? message.value("what", "") : "", message.value("fix", "")), false);
  }
}

}  // namespace lockstep::cli
