#include "lockstep/report/incidents.h"

#include <algorithm>
#include <array>
#include <optional>

#include "lockstep/report/json_numbers.h"

namespace lockstep::report {
namespace {

using nlohmann::json;
using telemetry::Event;
namespace kinds = telemetry::event_kind;

// Signs of one failure come within this time of each other: what was done on purpose, that a rank is gone, a hang.
constexpr double kSameFailureSeconds = 120.0;
// Spikes this many steps apart are one.
constexpr std::int64_t kSameSpikeSteps = 25;
constexpr std::size_t kMostDetails = 20;

std::string text_in(const json& data, const char* key) {
  if (!data.is_object()) return "";
  const auto found = data.find(key);
  return found != data.end() && found->is_string() ? found->get<std::string>() : "";
}

std::vector<int> ranks_of(const Event& event) {
  if (event.data.is_object() && event.data.contains("missing") && event.data["missing"].is_array()) {
    std::vector<int> missing;
    for (const json& rank : event.data["missing"]) {
      if (rank.is_number_integer()) missing.push_back(rank.get<int>());
    }
    if (!missing.empty()) return missing;
  }
  return event.rank >= 0 ? std::vector<int>{event.rank} : std::vector<int>{};
}

// Chaos that slows a run down or poisons its loss is no failure.
bool breaks_the_run(const Event& event) {
  if (event.kind == kinds::kRankLost || event.kind == kinds::kHang || event.kind == kinds::kFailure) return true;
  if (event.kind != kinds::kChaos) return false;
  constexpr std::array<const char*, 4> kHarmless{"slow", "nan", "full-disk", "corrupt"};
  const std::string kind = text_in(event.data, "kind");
  return std::none_of(kHarmless.begin(), kHarmless.end(), [&](const char* name) { return kind == name; });
}

std::optional<IncidentKind> kind_of(const Event& event) {
  if (event.kind == kinds::kRollback) return IncidentKind::kRollback;
  if (event.kind == kinds::kSpike || event.kind == kinds::kOutlier || event.kind == kinds::kSkip) {
    return IncidentKind::kLoss;
  }
  if (event.kind == kinds::kAlert) return IncidentKind::kAlert;
  if (event.kind == kinds::kCheckpointFailed) return IncidentKind::kCheckpoint;
  if (event.kind == kinds::kRecordsLost) return IncidentKind::kRecords;
  if (event.kind == kinds::kNodeHealth) return IncidentKind::kHealth;
  if (event.kind == kinds::kReplicas) return IncidentKind::kReplicas;
  if (event.kind == kinds::kInterrupted) return IncidentKind::kStopped;
  if (event.kind == kinds::kChaos) return IncidentKind::kHealth;
  return std::nullopt;
}

Incident begun_by(const Event& event, IncidentKind kind) {
  Incident incident;
  incident.kind = kind;
  incident.level = event.level;
  incident.began_at = event.time;
  incident.step = event.step;
  incident.ranks = ranks_of(event);
  incident.what = event.message;
  incident.fix = text_in(event.data, "fix");
  return incident;
}

void add_to(Incident& incident, const Event& event) {
  incident.level = std::max(incident.level, event.level);
  for (const int rank : ranks_of(event)) {
    if (std::find(incident.ranks.begin(), incident.ranks.end(), rank) == incident.ranks.end()) {
      incident.ranks.push_back(rank);
    }
  }
  if (incident.details.size() < kMostDetails) incident.details.push_back(event.message);
}

class Joiner {
 public:
  explicit Joiner(const RunFacts& facts) : facts_(facts), step_seconds_(facts.mean_phases().step) {
    const json& summary = facts.run.summary;
    const auto found = summary.is_object() ? summary.find("recovery_seconds") : summary.end();
    if (summary.is_object() && found != summary.end() && found->is_array()) recovery_seconds_ = *found;
  }

  Incidents join() {
    for (std::size_t i = 0; i < facts_.events.size(); ++i) add(facts_.events[i], facts_.first_step_at[i]);
    use_the_runs_own_seconds();
    std::stable_sort(result_.incidents.begin(), result_.incidents.end(),
                     [](const Incident& a, const Incident& b) { return a.began_at < b.began_at; });
    return std::move(result_);
  }

 private:
  void add(const Event& event, double first_step_at) {
    if (event.kind == kinds::kCheckpoint) {
      result_.checkpoints.push_back({event.time, event.step, number_at(event.data, {"seconds"}),
                                     number_at(event.data, {"stall_seconds"}), number_at(event.data, {"bytes"}),
                                     text_in(event.data, "path")});
    } else if (breaks_the_run(event)) {
      fail(event);
    } else if (event.kind == kinds::kResume || event.kind == kinds::kRestart) {
      resume(event, first_step_at);
    } else if (event.kind == kinds::kAlert) {
      alert(event);
    } else if (const auto kind = kind_of(event)) {
      other(event, *kind);
    }
  }

  void fail(const Event& event) {
    if (open_failure_ && event.time - result_.incidents[*open_failure_].began_at < kSameFailureSeconds) {
      return add_to(result_.incidents[*open_failure_], event);
    }
    open_failure_ = result_.incidents.size();
    result_.incidents.push_back(begun_by(event, IncidentKind::kFailure));
  }

  void resume(const Event& event, double first_step_at) {
    const bool by_hand = event.kind == kinds::kResume && number_at(event.data, {"generation"}) <= 1.0;
    if (by_hand) {
      result_.incidents.push_back(begun_by(event, IncidentKind::kResume));
      result_.incidents.back().ended_at = event.time;
      return;
    }
    if (!open_failure_) {
      fail(event);
      result_.incidents.back().ranks.clear();  // who resumes is not who failed
    }
    Incident& incident = result_.incidents[*open_failure_];
    if (incident.what != event.message) incident.details.push_back(event.message);
    incident.ended_at = first_step_at > 0.0 ? first_step_at : event.time;
    incident.down_seconds = incident.ended_at - incident.began_at;
    incident.lost_steps = static_cast<std::int64_t>(number_at(event.data, {"lost_steps"}));
    incident.lost_seconds = static_cast<double>(incident.lost_steps) * step_seconds_;
    if (incident.step < 0) incident.step = event.step;
    recovered_.push_back(*open_failure_);
    open_failure_.reset();
  }

  void alert(const Event& event) {
    const std::string rule = text_in(event.data, "rule");
    const bool over = text_in(event.data, "state") == "resolved";
    const auto is_open = [&](const Incident& known) {
      return known.kind == IncidentKind::kAlert && known.rule == rule && known.ended_at == 0.0;
    };
    const auto known = std::find_if(result_.incidents.begin(), result_.incidents.end(), is_open);
    if (known != result_.incidents.end()) {
      add_to(*known, event);
      if (over) known->ended_at = event.time;
      return;
    }
    if (over) return;  // of an alert whose begin was not recorded
    result_.incidents.push_back(begun_by(event, IncidentKind::kAlert));
    result_.incidents.back().rule = rule;
    result_.incidents.back().cost_percent = number_at(event.data, {"cost_percent"});
  }

  void other(const Event& event, IncidentKind kind) {
    const auto is_same = [&](const Incident& known) {
      return kind == IncidentKind::kLoss && known.kind == kind && event.step >= 0 &&
             event.step - known.step <= kSameSpikeSteps;
    };
    if (!result_.incidents.empty()) {
      const auto known = std::find_if(result_.incidents.rbegin(), result_.incidents.rend(), is_same);
      if (known != result_.incidents.rend()) {
        known->ended_at = event.time;
        return add_to(*known, event);
      }
    }
    Incident incident = begun_by(event, kind);
    incident.ended_at = event.time;
    if (kind == IncidentKind::kRollback) {
      const double from = number_at(event.data, {"from_step"}), to = number_at(event.data, {"to_step"});
      incident.lost_steps = static_cast<std::int64_t>(std::max(0.0, from - to));
      incident.lost_seconds = static_cast<double>(incident.lost_steps) * step_seconds_;
    }
    result_.incidents.push_back(std::move(incident));
  }

  // The agent knows the moment of a failure better than events do, where it could say so at the end.
  void use_the_runs_own_seconds() {
    if (!recovery_seconds_.is_array() || recovery_seconds_.size() != recovered_.size()) return;
    for (std::size_t i = 0; i < recovered_.size(); ++i) {
      if (!recovery_seconds_[i].is_number()) continue;
      Incident& incident = result_.incidents[recovered_[i]];
      incident.down_seconds = recovery_seconds_[i].get<double>();
      incident.began_at = std::min(incident.began_at, incident.ended_at - incident.down_seconds);
    }
  }

  const RunFacts& facts_;
  double step_seconds_;
  json recovery_seconds_;
  Incidents result_;
  std::optional<std::size_t> open_failure_;
  std::vector<std::size_t> recovered_;
};

json incident_json(const Incident& incident) {
  return {{"kind", to_string(incident.kind)},
          {"level", telemetry::to_string(incident.level)},
          {"began_at", incident.began_at},
          {"ended_at", positive_or_null(incident.ended_at)},
          {"down_seconds", incident.down_seconds},
          {"lost_steps", incident.lost_steps},
          {"lost_seconds", incident.lost_seconds},
          {"step", incident.step},
          {"ranks", incident.ranks},
          {"what", incident.what},
          {"details", incident.details},
          {"rule", incident.rule},
          {"fix", incident.fix},
          {"cost_percent", incident.cost_percent}};
}

}  // namespace

bool is_of_an_incident(const Event& event) {
  return breaks_the_run(event) || event.kind == kinds::kResume || event.kind == kinds::kRestart ||
         kind_of(event).has_value();
}

Incidents make_incidents(const RunFacts& facts) { return Joiner(facts).join(); }

json to_json(const Incidents& incidents) {
  json list = json::array(), saved = json::array();
  for (const Incident& incident : incidents.incidents) list.push_back(incident_json(incident));
  for (const SavedCheckpoint& checkpoint : incidents.checkpoints) {
    saved.push_back({{"time", checkpoint.time},
                     {"step", checkpoint.step},
                     {"seconds", checkpoint.seconds},
                     {"stall_seconds", checkpoint.stall_seconds},
                     {"bytes", checkpoint.bytes},
                     {"path", checkpoint.path}});
  }
  return {{"schema", "lockstep.incidents/1"}, {"incidents", list}, {"checkpoints", saved}};
}

}  // namespace lockstep::report
