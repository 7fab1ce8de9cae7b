#include "lockstep/telemetry/alert.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"

namespace lockstep::telemetry {
namespace {

constexpr std::size_t kLongestMessage = 400;

Level level_of(const Alert& alert) {
  if (!alert.firing) return Level::kInfo;
  const bool severe = alert.rule == spec::AlertRule::kNonfinite || alert.rule == spec::AlertRule::kHeartbeat;
  return severe ? Level::kError : Level::kWarning;
}

double number_in(const nlohmann::json& data, const char* key) {
  const auto found = data.find(key);
  return found != data.end() && found->is_number() ? found->get<double>() : 0.0;
}

std::string text_in(const nlohmann::json& data, const char* key) {
  const auto found = data.find(key);
  return found != data.end() && found->is_string() ? found->get<std::string>() : std::string();
}

std::string cost_text(const Alert& alert) {
  std::string text;
  if (alert.cost_percent > 0) text += fmt::format("; costs {:.1f}% of the run's speed", alert.cost_percent);
  if (alert.usd_per_day > 0) text += fmt::format(", ${:.2f} a day", alert.usd_per_day);
  if (alert.lost_seconds > 0) text += fmt::format("; {} of work at stake", format_seconds(alert.lost_seconds));
  return text;
}

}  // namespace

Event to_event(const Alert& alert) {
  nlohmann::json data = {{"rule", lockstep::to_string(alert.rule)},
                         {"state", alert.firing ? "firing" : "resolved"},
                         {"subject", alert.subject},
                         {"value", alert.value},
                         {"limit", alert.limit},
                         {"usual", alert.usual},
                         {"cost_percent", alert.cost_percent},
                         {"lost_seconds", alert.lost_seconds},
                         {"usd_per_day", alert.usd_per_day},
                         {"fix", alert.fix}};
  return {.time = alert.time,
          .level = level_of(alert),
          .kind = std::string(event_kind::kAlert),
          .rank = alert.rank,
          .step = alert.step,
          .message = alert.message,
          .data = std::move(data)};
}

Alert alert_of(const Event& event) {
  const auto rule = event.data.is_object() ? value_named<spec::AlertRule>(text_in(event.data, "rule")) : std::nullopt;
  if (event.kind != event_kind::kAlert || !rule) {
    throw UserError(ExitCode::kUsage, "the event `" + printable(event.kind) + "` is not an alert");
  }
  const nlohmann::json& data = event.data;
  return {.rule = *rule,
          .firing = text_in(data, "state") != "resolved",
          .subject = text_in(data, "subject"),
          .rank = event.rank,
          .step = event.step,
          .time = event.time,
          .value = number_in(data, "value"),
          .limit = number_in(data, "limit"),
          .usual = number_in(data, "usual"),
          .cost_percent = number_in(data, "cost_percent"),
          .lost_seconds = number_in(data, "lost_seconds"),
          .usd_per_day = number_in(data, "usd_per_day"),
          .message = event.message,
          .fix = text_in(data, "fix")};
}

nlohmann::json alert_message(const Alert& alert) {
  return {{"type", event_kind::kAlert}, {"line", to_json_line("", to_event(alert))}};
}

std::optional<Alert> alert_in(const nlohmann::json& message) {
  const auto type = message.find("type"), line = message.find("line");
  if (type == message.end() || *type != event_kind::kAlert || line == message.end() || !line->is_string()) return {};
  try {
    const ParsedLine parsed = parse_json_line(line->get<std::string>());
    const auto* event = std::get_if<Event>(&parsed.record);
    if (event != nullptr) return alert_of(*event);
  } catch (const UserError&) {
    return std::nullopt;
  }
  return std::nullopt;
}

std::string to_text(const Alert& alert) {
  const std::string message = printable(alert.message, kLongestMessage);
  if (!alert.firing) return fmt::format("over {}: {}", lockstep::to_string(alert.rule), message);
  return fmt::format("alert {}: {}{}{}", lockstep::to_string(alert.rule), message, cost_text(alert),
                     alert.fix.empty() ? "" : "; do: " + printable(alert.fix, kLongestMessage));
}

}  // namespace lockstep::telemetry
