// `lockstep runbook PLAN|JOB`: the plan as a research team executes it, on about six pages.
#include <fmt/format.h>

#include <filesystem>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/cli/runbook_input.h"
#include "lockstep/cli/verbs.h"
#include "lockstep/schedulers/scheduler.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;

struct RunbookOptions {
  RunbookFlags flags;
  std::vector<std::string> outputs;
  bool json = false;
};

std::string rendered(const report::Runbook& book, const std::string& extension) {
  if (extension == ".html") return report::to_html(book.document);
  if (extension == ".md") return report::to_markdown(book.document);
  if (extension == ".json") return book.facts.dump(1) + "\n";
  return report::to_pdf(book.document);
}

void require_formats(const std::vector<std::string>& outputs) {
  for (const std::string& output : outputs) {
    const std::string extension = fs::path(output).extension().string();
    if (extension == ".pdf" || extension == ".html" || extension == ".md" || extension == ".json") continue;
    throw bad_input(fmt::format("`{}` does not end in .pdf, .html, .md or .json", printable(output)),
                    "the end of the name says what is written", {"--output"});
  }
}

int runbook_verb(const RunbookOptions& options) {
  require_formats(options.outputs);
  const report::Runbook book = report::make_runbook(runbook_input(options.flags));
  for (const std::string& output : options.outputs) {
    write_file_atomically(output, rendered(book, fs::path(output).extension().string()));
    if (!options.json) fmt::print("wrote {}\n", printable(output, kLongestName));
  }
  if (options.json) {
    fmt::print("{}\n", book.facts.dump(1));
  } else if (options.outputs.empty()) {
    fmt::print("{}", report::to_markdown(book.document));
  }
  return 0;
}

}  // namespace

void add_runbook(CLI::App& app, Outcome& outcome) {
  auto options = std::make_shared<RunbookOptions>();
  RunbookFlags& flags = options->flags;
  CLI::App* verb =
      app.add_subcommand("runbook", "A plan as a team executes it: about six pages, every figure the plan's");
  verb->add_option("source", flags.source, "Plan file (.json of lockstep plan --output), or job file, which is planned")
      ->required();
  verb->add_option("overrides", flags.overrides, "key=value for any field of the job file");
  verb->add_option("--output,-o", options->outputs,
                   "File that ends in .pdf, .html, .md or .json; may be given again; none: Markdown on stdout")
      ->allow_extra_args(false);
  std::vector<std::string> names = schedulers::scheduler_names();
  names.emplace_back(report::kHere);
  verb->add_option("--scheduler", flags.scheduler,
                   "Write the commands for: " + join(names, ", ") +
                       " (default: the job's launch.on, else slurm, and local on one node)")
      ->check(CLI::IsMember(names));
  verb->add_option("--job", flags.job_file,
                   "With a plan file: the job that trains it (default: one is written for you)");
  verb->add_option("--validation", flags.validation, "What `lockstep validate` found (lockstep.validation/1)");
  verb->add_option("--profile", flags.profile, "Profile by name or file, as of lockstep plan")
      ->envname("LOCKSTEP_PROFILE");
  verb->add_flag("--json", options->json, "Every figure and command as JSON on stdout (lockstep.runbook/1)");
  set_examples(*verb,
               "  lockstep runbook specs/jobs/llama2-13b-32xH100.yaml -o runbook.pdf\n"
               "  lockstep runbook job.yaml tokens=300B --scheduler kubernetes -o runbook.html -o runbook.md\n"
               "  lockstep runbook plan.json --job job.yaml --validation validation.json -o runbook.pdf");
  verb->callback([options, &outcome] {
    outcome.json = options->json;
    outcome.exit_code = runbook_verb(*options);
  });
}

}  // namespace lockstep::cli
