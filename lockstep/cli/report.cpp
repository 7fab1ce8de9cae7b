// `lockstep report RUN`: one run from the store.
#include <fmt/format.h>

#include "lockstep/cli/verbs.h"
#include "lockstep/report/run_report.h"
#include "lockstep/telemetry/progress.h"
#include "lockstep/telemetry/recorder.h"
#include "lockstep/telemetry/run_store.h"

namespace lockstep::cli {
namespace {

struct ReportOptions {
  std::string run = "last";
  bool json = false, list = false;
};

int list_runs(const telemetry::RunStore& store, bool json) {
  nlohmann::json rows = nlohmann::json::array();
  for (const telemetry::RunRow& row : store.runs()) {
    if (json) {
      rows.push_back({{"run", row.info.id}, {"status", telemetry::to_string(row.status)}, {"world", row.info.world}});
    } else {
      fmt::print("{:<44} {:<12} {} ranks\n", row.info.id, telemetry::to_string(row.status), row.info.world);
    }
  }
  if (json) fmt::print("{}\n", nlohmann::json{{"schema", "lockstep.runs/1"}, {"runs", rows}}.dump());
  return 0;
}

int report_run(const ReportOptions& options) {
  const auto store = telemetry::open_run_store(telemetry::home_directory());
  if (options.list) return list_runs(*store, options.json);
  const report::RunReport made = report::make_run_report(*store, options.run);
  if (options.json) {
    fmt::print("{}\n", report::to_json(made).dump());
    return 0;
  }
  fmt::print("{}", report::to_text(made, telemetry::detect_style(stdout)));
  return 0;
}

}  // namespace

void add_report(CLI::App& app, Outcome& outcome) {
  auto options = std::make_shared<ReportOptions>();
  CLI::App* verb = app.add_subcommand("report", "Prints a recorded run: predicted beside measured, curves, events");
  verb->add_option("run", options->run, "Run id, its beginning, or `last`");
  verb->add_flag("--list", options->list, "List the runs instead");
  verb->add_flag("--json", options->json, "JSON on stdout (lockstep.report/1)");
  set_examples(*verb, "  lockstep report last\n  lockstep report --list\n  lockstep report 20261115 --json");
  verb->callback([options, &outcome] {
    outcome.json = options->json;
    outcome.exit_code = report_run(*options);
  });
}

}  // namespace lockstep::cli
