// `lockstep import FILE...`: runs recorded as JSON lines, into the tables of this home.
#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/cli/verbs.h"
#include "lockstep/telemetry/import_lines.h"
#include "lockstep/telemetry/recorder.h"

namespace lockstep::cli {
namespace {

int import_files(const std::vector<std::string>& paths, bool json) {
  const std::filesystem::path home = telemetry::home_directory();
  const auto store = telemetry::make_sqlite_run_store(telemetry::store_file(home));
  if (!store) throw environment_error("this build has no SQLite", "copy the files to runs/<id>/ in LOCKSTEP_HOME");
  nlohmann::json runs = nlohmann::json::array();
  for (const std::string& path : paths) {
    for (const auto& [run, records] : telemetry::import_lines(path, *store)) {
      runs.push_back({{"run", run}, {"records", records}});
      if (!json) fmt::print("{}: {} records\n", printable(run, 100), records);
    }
  }
  if (json) {
    fmt::print("{}\n", nlohmann::json{{"schema", "lockstep.imported/1"}, {"runs", runs}}.dump(
                           -1, ' ', false, nlohmann::json::error_handler_t::replace));
  }
  return 0;
}

}  // namespace

void add_import(CLI::App& app, Outcome& outcome) {
  auto paths = std::make_shared<std::vector<std::string>>();
  CLI::App* verb = app.add_subcommand("import", "Reads runs recorded as JSON lines into the run store");
  verb->add_option("paths", *paths, "Files (*.jsonl) or folders with them, such as runs/<id> of another machine")
      ->required();
  auto json = std::make_shared<bool>(false);
  verb->add_flag("--json", *json, "What was read, as JSON on stdout (lockstep.imported/1)");
  set_examples(*verb,
               "  lockstep export last --to run.jsonl\n"
               "  LOCKSTEP_HOME=/elsewhere lockstep import run.jsonl\n"
               "  lockstep import /mnt/node7/lockstep/runs/20261115-031500-a1b2c3-job");
  verb->callback([paths, json, &outcome] {
    outcome.json = *json;
    outcome.exit_code = import_files(*paths, *json);
  });
}

}  // namespace lockstep::cli
