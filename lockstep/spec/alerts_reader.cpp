#include "lockstep/spec/alerts_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "lockstep/base/http_request.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/base/yaml.h"

namespace lockstep::spec {
namespace {

constexpr double kMostSeconds = 366.0 * 86400.0;
constexpr double kMostShare = 10.0;
constexpr double kMostTimes = 1e6;

bool is_variable(std::string_view name) {
  return !name.empty() && std::isdigit(static_cast<unsigned char>(name[0])) == 0 &&
         std::ranges::all_of(name, [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; });
}

// The job is kept with every run and checkpoint: an address that is a secret must not be in it.
void read_webhook(MapReader& map, std::string& webhook) {
  if (!map.text("webhook", webhook)) return;
  const std::string fix = "put it into a variable or a file: `webhook: env:NAME` or `webhook: file:/path`";
  if (webhook.starts_with("https://")) {
    throw map.error_at("webhook", "an https address is a secret, and a job file is kept with every run", fix);
  }
  if (webhook.starts_with("env:")) {
    if (is_variable(std::string_view(webhook).substr(4))) return;
    throw map.error_at("webhook", "after env: comes the name of a variable", "for example env:LOCKSTEP_WEBHOOK");
  }
  if (webhook.starts_with("file:")) {
    if (webhook.starts_with("file:/")) return;
    throw map.error_at("webhook", "after file: comes a path that begins with /", "for example file:/etc/webhook");
  }
  if (!webhook.starts_with("http://")) throw map.error_at("webhook", "webhook is not an address", fix);
  try {
    require_http_url(webhook);
  } catch (const UserError&) {
    throw map.error_at("webhook", "webhook is not an address", "for example http://relay:8080/alerts");
  }
}

void read_off(MapReader& map, std::vector<AlertRule>& off) {
  std::vector<std::string> names;
  if (!map.texts("off", names)) return;
  off.clear();
  constexpr auto kNames = names_of(AlertRule{});
  for (const std::string& name : names) {
    const auto rule = value_named<AlertRule>(name);
    if (!rule) {
      throw map.error_at("off", "there is no rule `" + printable(name) + "`",
                         did_you_mean(name, {kNames.begin(), kNames.end()}));
    }
    if (std::ranges::find(off, *rule) == off.end()) off.push_back(*rule);
  }
}

void read_seconds(MapReader& map, const char* key, double& seconds) {
  if (!map.seconds(key, seconds) || seconds <= kMostSeconds) return;
  throw map.error_at(key, fmt::format("{} is longer than a year", key), "for example 1m");
}

}  // namespace

void read_alerts(MapReader& job, Alerts& alerts) {
  auto map = job.map("alerts");
  if (!map) return;
  constexpr double kLeastShare = 0.001;
  map->real("slow_down", alerts.slow_down, kLeastShare, kMostShare);
  map->real("mfu_drop", alerts.mfu_drop, kLeastShare, 0.99);
  map->real("below_prediction", alerts.below_prediction, 0.0, kMostShare);
  map->real("straggler", alerts.straggler, kLeastShare, kMostShare);
  map->real("loss_spike", alerts.loss_spike, 1.0, kMostTimes);
  map->real("gradient_outlier", alerts.gradient_outlier, 1.0, kMostTimes);
  map->real("loader_stall", alerts.loader_stall, kLeastShare, 1.0);
  map->real("memory_creep", alerts.memory_creep, kLeastShare, kMostShare);
  map->real("checkpoint_overdue", alerts.checkpoint_overdue, 0.01, kMostTimes);
  read_seconds(*map, "heartbeat", alerts.heartbeat_seconds);
  read_seconds(*map, "disk_filling", alerts.disk_seconds);
  read_seconds(*map, "hold", alerts.hold_seconds);
  read_seconds(*map, "pause", alerts.pause_seconds);
  read_off(*map, alerts.off);
  read_webhook(*map, alerts.webhook);
  map->texts("command", alerts.command);
  if (map->has("command") && (alerts.command.empty() || alerts.command[0].empty())) {
    throw map->error_at("command", "the command is empty", "for example [mail, -s, lockstep, me@example.org]");
  }
  map->finish();
}

std::string alerts_text(const Alerts& alerts) {
  std::string text = fmt::format(
      "alerts:\n  slow_down: {}\n  mfu_drop: {}\n  below_prediction: {}\n  straggler: {}\n  loss_spike: {}\n"
      "  gradient_outlier: {}\n  loader_stall: {}\n  memory_creep: {}\n  checkpoint_overdue: {}\n  heartbeat: {}\n"
      "  disk_filling: {}\n  hold: {}\n  pause: {}\n",
      exact_real(alerts.slow_down), exact_real(alerts.mfu_drop), exact_real(alerts.below_prediction),
      exact_real(alerts.straggler), exact_real(alerts.loss_spike), exact_real(alerts.gradient_outlier),
      exact_real(alerts.loader_stall), exact_real(alerts.memory_creep), exact_real(alerts.checkpoint_overdue),
      exact_seconds(alerts.heartbeat_seconds), exact_seconds(alerts.disk_seconds), exact_seconds(alerts.hold_seconds),
      exact_seconds(alerts.pause_seconds));
  std::vector<std::string> off, command;
  for (const AlertRule rule : alerts.off) off.emplace_back(to_string(rule));
  for (const std::string& word : alerts.command) command.push_back(yaml_quote(word));
  if (!off.empty()) text += fmt::format("  off: [{}]\n", join(off, ", "));
  if (!alerts.webhook.empty()) text += fmt::format("  webhook: {}\n", yaml_quote(alerts.webhook));
  if (!command.empty()) text += fmt::format("  command: [{}]\n", join(command, ", "));
  return text;
}

}  // namespace lockstep::spec
