// `lockstep report RUN`: one run from the store.
#include <fmt/format.h>

#include "lockstep/base/counted.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/cli/verbs.h"
#include "lockstep/diagnose/run.h"
#include "lockstep/report/ledger.h"
#include "lockstep/report/run_page/run_page.h"
#include "lockstep/report/run_report.h"
#include "lockstep/telemetry/progress.h"
#include "lockstep/telemetry/recorder.h"
#include "lockstep/telemetry/run_store.h"

namespace lockstep::cli {
namespace {

struct ReportOptions {
  std::string run = "last";
  bool json = false, list = false, ledger = false, job = false;
  std::string html, pdf;  // files; "": not wanted
};

int list_runs(const telemetry::RunStore& store, bool json) {
  nlohmann::json rows = nlohmann::json::array();
  for (const telemetry::RunRow& row : store.runs()) {
    if (json) {
      rows.push_back({{"run", row.info.id}, {"status", telemetry::to_string(row.status)}, {"world", row.info.world}});
    } else {
      fmt::print("{:<44} {:<12} {}\n", printable(row.info.id, 100), telemetry::to_string(row.status),
                 counted(row.info.world, "rank"));
    }
  }
  if (json) fmt::print("{}\n", nlohmann::json{{"schema", "lockstep.runs/1"}, {"runs", rows}}.dump());
  return 0;
}

// What the run itself says it did, where it ended by itself.
std::optional<std::int64_t> steps_of(const telemetry::RunRow& run) {
  if (!run.summary.is_object() || !run.summary.contains("steps")) return std::nullopt;
  return run.summary.value("steps", std::int64_t{0});
}

int report_ledger(const telemetry::RunStore& store, const ReportOptions& options) {
  const telemetry::RunRow run = report::find_run(store, options.run);
  const report::LedgerProof proof =
      report::prove(telemetry::read_ledger(telemetry::home_directory(), run.info.id), steps_of(run));
  if (options.json) {
    fmt::print("{}\n", report::to_json(proof, run.info.id).dump());
  } else {
    fmt::print("{}", report::to_text(proof, printable(run.info.id), telemetry::detect_style(stdout)));
  }
  return static_cast<int>(proof.exact() ? ExitCode::kOk : ExitCode::kAnswerIsNo);
}

int report_job(const telemetry::RunStore& store, const ReportOptions& options) {
  const telemetry::RunRow run = report::find_run(store, options.run);
  if (run.info.job_yaml.empty()) {
    throw bad_input("run '" + printable(run.info.id) + "' recorded no job",
                    "`lockstep report --list` shows the others");
  }
  std::fwrite(run.info.job_yaml.data(), 1, run.info.job_yaml.size(), stdout);
  return 0;
}

int write_pages(const telemetry::RunStore& store, const ReportOptions& options) {
  const std::string id = report::find_run(store, options.run).info.id;  // `last` may be another one in a moment
  const report::RunPage page = report::make_run_page(store, id, diagnose::diagnose_run(store, id));
  const report::Document document = report::run_document(page);
  nlohmann::json written = nlohmann::json::array();
  const auto write = [&](const std::string& file, const auto& render) {
    if (file.empty()) return;
    write_file_atomically(file, render(document));
    if (!options.json) fmt::print("wrote {}\n", printable(file, 400));
    written.push_back(file);
  };
  write(options.html, [](const report::Document& each) { return report::to_html(each); });
  write(options.pdf, [](const report::Document& each) { return report::to_pdf(each); });
  if (options.json) {
    nlohmann::json answer = report::to_json(page.report);
    answer["written"] = written;
    fmt::print("{}\n", answer.dump());
  }
  return 0;
}

int report_run(const ReportOptions& options) {
  const auto store = telemetry::open_run_store(telemetry::home_directory());
  if (options.list) return list_runs(*store, options.json);
  if (options.ledger) return report_ledger(*store, options);
  if (options.job) return report_job(*store, options);
  if (!options.html.empty() || !options.pdf.empty()) return write_pages(*store, options);
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
  verb->add_flag("--ledger", options->ledger,
                 "Prove from what the ranks read that no sample was lost or came twice; exit 3 when not "
                 "(docs/reference/ledger.md)");
  const auto others = {"--list", "--ledger"};
  CLI::Option* job = verb->add_flag("--job", options->job, "Print the run's job file, to run it again");
  CLI::Option* html =
      verb->add_option("--html", options->html, "Write one self-contained page: curves, waterfall, ranks, incidents");
  CLI::Option* pdf = verb->add_option("--pdf", options->pdf, "The same on paper");
  for (CLI::Option* option : {job, html, pdf}) {
    for (const char* other : others) option->excludes(verb->get_option(other));
  }
  job->excludes(html);
  job->excludes(pdf);
  verb->add_flag("--json", options->json, "JSON on stdout (lockstep.report/1, lockstep.ledger-proof/1)");
  set_examples(*verb,
               "  lockstep report last\n  lockstep report --list\n  lockstep report 20261115 --json\n"
               "  lockstep report last --html run.html --pdf run.pdf\n  lockstep report last --job > again.yaml\n"
               "  lockstep report last --ledger");
  verb->callback([options, &outcome] {
    outcome.json = options->json;
    outcome.exit_code = report_run(*options);
  });
}

}  // namespace lockstep::cli
