#include "lockstep/cli/doctor_nodes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/cli/health.h"
#include "lockstep/elastic/link_probe.h"
#include "lockstep/elastic/store.h"
#include "lockstep/spec/machine.h"
#include "lockstep/telemetry/schema.h"

namespace lockstep::cli {
namespace {

using elastic::milliseconds;
using nlohmann::json;

constexpr double kSlowShare = 0.5;  // of the median link
constexpr double kMostClockSeconds = 1.0;

milliseconds in_milliseconds(double seconds) { return milliseconds(static_cast<std::int64_t>(seconds * 1000)); }

std::string key_of(int node, const char* what) { return fmt::format("node/{}/{}", node, what); }

// What is wrong with this node: {"what", "fix", "fails"} each.
json problems_here(const DoctorOptions& options) {
  json problems = json::array();
  for (const Check& check : run_checks(options)) {
    if (check.status == CheckStatus::kOk) continue;
    problems.push_back({{"what", check.name + ": " + check.detail},
                        {"fix", check.fix},
                        {"fails", check.status == CheckStatus::kFail}});
  }
  for (const elastic::Finding& finding : health_now({})) {
    if (finding.severity < elastic::Severity::kWarning) continue;
    problems.push_back({{"what", elastic::describe(finding)},
                        {"fix", finding.fix},
                        {"fails", finding.severity == elastic::Severity::kFatal}});
  }
  return problems;
}

json link_to(int next, const elastic::NodeList& nodes, elastic::KeyValueStore& store,
             const NodesDoctorOptions& options) {
  const std::string& host = nodes.nodes[static_cast<std::size_t>(next)].host;
  try {
    const std::string port = store.get(key_of(next, "echo"), in_milliseconds(options.patience_seconds));
    const elastic::LinkFigures figures = elastic::probe_link(host, std::stoi(port), options.token);
    return {{"to", host},
            {"latency_seconds", figures.latency_seconds},
            {"bytes_per_second", figures.bytes_per_second},
            {"clock_offset_seconds", figures.clock_offset_seconds}};
  } catch (const Fault& fault) {
    // One that did not come is named by the first node.
    if (!store.try_get(key_of(next, "echo"))) return {{"to", host}, {"absent", true}};
    return {{"to", host}, {"error", fault.what()}};
  }
}

json report_here(const NodesDoctorOptions& options, const elastic::NodeList& nodes, elastic::KeyValueStore& store) {
  json report = {{"node", nodes.self},
                 {"host", telemetry::host_name()},
                 {"version", LOCKSTEP_VERSION},
                 {"cores", std::max(1U, std::thread::hardware_concurrency())},
                 {"memory_bytes", spec::machine_memory_bytes()},
                 {"gpus", probe_gpu(options.checks.root, options.checks.environment).detail},
                 {"problems", problems_here(options.checks)}};
  const int count = static_cast<int>(nodes.nodes.size());
  if (count > 1) report["link"] = link_to((nodes.self + 1) % count, nodes, store, options);
  return report;
}

// What only shows when all are compared.
void compare(std::vector<json>& reports) {
  std::vector<double> speeds;
  for (const json& report : reports) {
    if (report.contains("link") && report["link"].contains("bytes_per_second")) {
      speeds.push_back(report["link"]["bytes_per_second"].get<double>());
    }
  }
  std::sort(speeds.begin(), speeds.end());
  const double usual = speeds.empty() ? 0.0 : speeds[speeds.size() / 2];
  for (json& report : reports) {
    const auto add = [&](const std::string& what, const std::string& fix, bool fails) {
      report["problems"].push_back({{"what", what}, {"fix", fix}, {"fails", fails}});
    };
    if (report.value("version", "") != reports.front().value("version", "")) {
      add("lockstep " + report.value("version", "") + " here, " + reports.front().value("version", "") +
              " on the first",
          "install the same version everywhere", true);
    }
    if (!report.contains("link") || report["link"].contains("absent")) continue;
    const json& link = report["link"];
    if (link.contains("error")) {
      add(fmt::format("no link to {}: {}", link.value("to", ""), link.value("error", "")),
          "check routes, firewalls and the names of the nodes", true);
      continue;
    }
    if (link["bytes_per_second"].get<double>() < kSlowShare * usual) {
      add(fmt::format("the link to {} is slow: {:.2f} Gb/s, others have {:.2f}", link.value("to", ""),
                      link["bytes_per_second"].get<double>() * 8 / 1e9, usual * 8 / 1e9),
          "check cables and the switch port, or leave this node out", false);
    }
    if (std::abs(link["clock_offset_seconds"].get<double>()) > kMostClockSeconds) {
      add(fmt::format("the clock of {} is off by {}", link.value("to", ""),
                      format_seconds(std::abs(link["clock_offset_seconds"].get<double>()))),
          "run chrony or systemd-timesyncd", false);
    }
  }
}

std::string link_text(const json& report) {
  if (!report.contains("link")) return "";
  if (!report["link"].contains("bytes_per_second")) return "none";
  const json& link = report["link"];
  return fmt::format("{}, {:.2f} Gb/s", format_seconds(link["latency_seconds"].get<double>()),
                     link["bytes_per_second"].get<double>() * 8 / 1e9);
}

bool fails(const json& report) {
  const json& problems = report["problems"];
  return std::any_of(problems.begin(), problems.end(),
                     [](const json& problem) { return problem.value("fails", false); });
}

void print_table(const std::vector<json>& reports) {
  std::size_t width = 4, link_width = 12;
  for (const json& report : reports) {
    width = std::max(width, report.value("host", "").size());
    link_width = std::max(link_width, link_text(report).size());
  }
  fmt::print("{:<6}{:<{}}  {:>5}  {:>9}  {:<{}}  {}\n", "node", "host", width, "cores", "memory", "link to next",
             link_width, "state");
  for (const json& report : reports) {
    fmt::print("{:<6}{:<{}}  {:>5}  {:>9}  {:<{}}  {}\n", report.value("node", 0), report.value("host", ""), width,
               report.value("cores", 0), format_bytes(report.value("memory_bytes", 0.0)), link_text(report), link_width,
               fails(report)                ? "FAIL"
               : report["problems"].empty() ? "ok"
                                            : "warn");
  }
  for (const json& report : reports) {
    for (const json& problem : report["problems"]) {
      fmt::print("  {} {}: {}; {}\n", problem.value("fails", false) ? "FAIL" : "warn", report.value("host", ""),
                 problem.value("what", ""), problem.value("fix", ""));
    }
  }
}

// Or until the patience is over; says so when it takes long.
void wait_for_all(const elastic::NodeList& nodes, elastic::KeyValueStore& store, double seconds) {
  std::vector<std::string> keys;
  keys.reserve(nodes.nodes.size());
  for (int node = 0; node < static_cast<int>(nodes.nodes.size()); ++node) keys.push_back(key_of(node, "echo"));
  const double first = std::min(5.0, seconds);
  for (const double part : {first, seconds - first}) {
    try {
      return store.wait(keys, in_milliseconds(part));
    } catch (const Fault&) {
      const auto there =
          std::count_if(keys.begin(), keys.end(), [&](const auto& key) { return store.try_get(key).has_value(); });
      fmt::print(stderr, "lockstep: {} of {} nodes have come\n", there, keys.size());
    }
  }
}

// The first node waits for all and prints.
int conclude(const NodesDoctorOptions& options, const elastic::NodeList& nodes, elastic::KeyValueStore& store) {
  std::vector<json> reports;
  for (int node = 0; node < static_cast<int>(nodes.nodes.size()); ++node) {
    const std::string& host = nodes.nodes[static_cast<std::size_t>(node)].host;
    try {
      // The others had as long to come as this node waited for its own link.
      const double patience = store.try_get(key_of(node, "echo")) ? 2 * options.patience_seconds : 1.0;
      reports.push_back(json::parse(store.get(key_of(node, "report"), in_milliseconds(patience))));
    } catch (const Fault&) {
      reports.push_back({{"node", node},
                         {"host", host},
                         {"version", LOCKSTEP_VERSION},
                         {"problems", json::array({{{"what", "did not come"},
                                                    {"fix", "is the machine up, and lockstep installed there?"},
                                                    {"fails", true}}})}});
    }
  }
  store.set("over", "1");
  compare(reports);
  const bool ok = std::none_of(reports.begin(), reports.end(), fails);
  if (options.checks.json) {
    fmt::print("{}\n", json{{"schema", "lockstep.doctor_nodes/1"}, {"ok", ok}, {"nodes", reports}}.dump(
                           -1, ' ', false, json::error_handler_t::replace));
  } else {
    print_table(reports);
    fmt::print("\n{}\n", ok ? fmt::format("{} nodes are ready to train; next: lockstep launch JOB.yaml", reports.size())
                            : "not all nodes are ready; repair what is marked FAIL or leave them out");
  }
  return static_cast<int>(ok ? ExitCode::kOk : ExitCode::kEnvironment);
}

}  // namespace

int run_doctor_member(const NodesDoctorOptions& options, const elastic::NodeList& nodes) {
  const std::string address = nodes.on_loopback() ? "127.0.0.1" : "0.0.0.0";
  const elastic::NodeAddress& first = nodes.nodes.front();
  std::unique_ptr<elastic::StoreServer> server;
  if (nodes.self == 0) {
    server = std::make_unique<elastic::StoreServer>(
        elastic::StoreServerOptions{.address = address, .port = first.port, .token = options.token});
  }
  elastic::StoreClient store({.address = first.host,
                              .port = first.port,
                              .token = options.token,
                              .connect_timeout = in_milliseconds(options.patience_seconds)});
  const elastic::LinkEcho echo(address, options.token);
  store.set(key_of(nodes.self, "echo"), std::to_string(echo.port()));
  if (nodes.self == 0) wait_for_all(nodes, store, options.patience_seconds);
  store.set(key_of(nodes.self, "report"), report_here(options, nodes, store).dump());
  if (nodes.self == 0) {
    const int code = conclude(options, nodes, store);
    // The others read that it is over before the store goes.
    std::this_thread::sleep_for(milliseconds(300));
    return code;
  }
  try {  // its echo is needed until all have measured
    store.get("over", in_milliseconds(3 * options.patience_seconds));
  } catch (const Fault&) {
    // The first node has printed and left.
  }
  return 0;
}

}  // namespace lockstep::cli
