#include "lockstep/report/goodput.h"

#include <algorithm>

#include "lockstep/report/json_numbers.h"

namespace lockstep::report {
namespace {

using nlohmann::json;

void add_line(Goodput& goodput, const RunFacts& facts, const Incidents& incidents) {
  double at = 0.0;
  const auto go_to = [&](double end, Period period) {
    end = std::clamp(end, 0.0, goodput.elapsed_seconds);
    if (end <= at) return;
    goodput.line.push_back({period, at, end});
    at = end;
  };
  const double started = facts.run.info.started_at;
  if (facts.steps() == 0) return go_to(goodput.elapsed_seconds, Period::kStart);
  go_to(goodput.start_seconds, Period::kStart);
  for (const Incident& incident : incidents.incidents) {
    if (incident.kind != IncidentKind::kFailure || incident.ended_at <= 0.0) continue;
    go_to(incident.began_at - started, Period::kTraining);
    go_to(incident.ended_at - started, Period::kRecovery);
  }
  go_to(facts.last_step_at - started, Period::kTraining);
  go_to(goodput.elapsed_seconds, Period::kEnd);
}

}  // namespace

Goodput make_goodput(const RunFacts& facts, const Incidents& incidents) {
  Goodput goodput;
  goodput.elapsed_seconds = std::max(0.0, facts.until - facts.run.info.started_at);
  double left = goodput.elapsed_seconds;  // clocks of ranks differ: no term takes more than there is
  const auto take = [&](double seconds) {
    seconds = std::clamp(seconds, 0.0, left);
    left -= seconds;
    return seconds;
  };
  if (facts.steps() > 0) goodput.start_seconds = take(facts.began_at - facts.run.info.started_at);
  double recovery = 0.0, lost = 0.0;
  for (const Incident& incident : incidents.incidents) {
    recovery += incident.down_seconds;
    lost += incident.lost_seconds;
  }
  goodput.recovery_seconds = take(recovery);
  goodput.useful_seconds = take(facts.total_step_seconds - facts.total_checkpoint_seconds);
  goodput.lost_seconds = take(lost);
  goodput.checkpoint_seconds = take(facts.total_checkpoint_seconds);
  goodput.other_seconds = left;
  add_line(goodput, facts, incidents);
  return goodput;
}

Goodput make_goodput(const RunFacts& facts) { return make_goodput(facts, make_incidents(facts)); }

json to_json(const Goodput& goodput) {
  json line = json::array();
  for (const TimeSpan& span : goodput.line) {
    line.push_back({{"period", to_string(span.period)}, {"begin", span.begin}, {"end", span.end}});
  }
  return {{"schema", "lockstep.goodput/1"},
          {"goodput", goodput.elapsed_seconds > 0.0 ? json(goodput.share()) : json()},
          {"elapsed_seconds", goodput.elapsed_seconds},
          {"useful_seconds", goodput.useful_seconds},
          {"checkpoint_seconds", goodput.checkpoint_seconds},
          {"lost_seconds", goodput.lost_seconds},
          {"recovery_seconds", goodput.recovery_seconds},
          {"start_seconds", goodput.start_seconds},
          {"other_seconds", goodput.other_seconds},
          {"line", line}};
}

}  // namespace lockstep::report
