// `lockstep recipe STUDY`: what a study found, on one page; and whether it still holds.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/cli/recipe_checks.h"
#include "lockstep/cli/signals.h"
#include "lockstep/cli/stack_versions.h"
#include "lockstep/cli/tune_evaluators.h"
#include "lockstep/cli/tune_progress.h"
#include "lockstep/cli/verbs.h"
#include "lockstep/report/recipe/check.h"
#include "lockstep/report/recipe/recipe.h"
#include "lockstep/report/study/page.h"
#include "lockstep/telemetry/recorder.h"
#include "lockstep/tune/models/statistics.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;

struct RecipeOptions {
  std::string study = "last", output;
  std::vector<std::string> formats;
  bool full = false, check = false, json = false, dry_run = false;
  int pairs = 3;
};

// A study with what it concludes, as the pages want it. Not movable: the view refers to the rest.
struct LoadedStudy {
  explicit LoadedStudy(const std::string& id)
      : stored(tune::load_study(*telemetry::open_study_store(telemetry::home_directory(), false), id)),
        prior(make_prior(stored.space, stored.setup)),
        conclusion(conclude()),
        view(report::view_of(stored, conclusion)) {}
  LoadedStudy(const LoadedStudy&) = delete;
  LoadedStudy& operator=(const LoadedStudy&) = delete;

  tune::Conclusion conclude() const {
    tune::StrategyOptions options = stored.setup.strategy;
    options.prior = prior.get();
    return tune::conclude(tune::Strategy(stored.space, options), stored.trials);
  }

  tune::StoredStudy stored;
  std::unique_ptr<tune::Prior> prior;
  tune::Conclusion conclusion;
  report::StudyView view;
};

// Sets a flag when Ctrl-C or SIGTERM came.
class StopWatcher {
 public:
  StopWatcher() {
    count_stop_signals(SecondSignal::kExits);
    thread_ = std::jthread([this](const std::stop_token& done) {
      while (!done.stop_requested()) {
        if (stop_signals() > 0) flag_ = true;
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
      }
    });
  }
  const std::atomic<bool>* flag() const { return &flag_; }

 private:
  std::atomic<bool> flag_ = false;
  std::jthread thread_;
};

std::vector<std::string> changed_versions(const LoadedStudy& study) {
  tune::StudySetup now = study.stored.setup;
  now.versions = nlohmann::json::object();
  return version_changes(study.stored.setup.versions, with_versions(now).versions);
}

report::CheckResult run_check(const LoadedStudy& study, const RecipeOptions& options) {
  const std::unique_ptr<tune::Evaluator> evaluator = make_single_evaluator(study.stored);
  const StopWatcher watcher;
  report::CheckOptions check;
  check.pairs = options.pairs;
  check.launch_seconds = study.stored.setup.strategy.trial_seconds;
  check.stop = watcher.flag();
  check.progress = [&](int launch, int of, bool best, const tune::Measurement& result) {
    const bool ran = result.outcome == tune::Outcome::kMeasured;
    fmt::print(stderr, "  launch {} of {}  {:<8}  {}\n", launch + 1, of, best ? "recipe" : "default",
               ran ? rate_text(tune::summarize_launch(result.samples).mean, study.stored.setup.unit)
                   : fmt::format("{}: {}", tune::to_string(result.outcome), result.message));
  };
  for (const std::string& change : changed_versions(study)) fmt::print(stderr, "  not as in the study: {}\n", change);
  fmt::print(stderr, "{}: {} fresh launches each of the recipe and of the default, at most {}\n", study.view.name,
             options.pairs, format_seconds(2 * options.pairs * check.launch_seconds));
  const report::CheckResult result = report::check_recipe(*evaluator, study.conclusion, study.stored.trials, check);
  keep_check(study.view.id, result);
  return result;
}

// Formats by what was asked, else by the output's extension, else all.
std::vector<std::string> formats_of(const RecipeOptions& options) {
  const std::string extension = fs::path(options.output).extension().string();
  if (options.formats.empty()) {
    if (extension == ".html" || extension == ".pdf" || extension == ".md") return {extension.substr(1)};
    return {"html", "pdf", "md"};
  }
  const std::vector<std::string> known{"html", "pdf", "md"};
  for (const std::string& format : options.formats) {
    if (std::find(known.begin(), known.end(), format) == known.end())
      throw bad_input(fmt::format("--format {}: unknown", printable(format)), did_you_mean(format, known));
  }
  return options.formats;
}

bool is_file_name(const std::string& output) {
  const std::string extension = fs::path(output).extension().string();
  return (extension == ".html" || extension == ".pdf" || extension == ".md") && !fs::is_directory(output);
}

std::vector<std::string> write_files(const RecipeOptions& options, const report::Recipe& recipe,
                                     const LoadedStudy& study) {
  const std::vector<std::string> formats = formats_of(options);
  const bool single = is_file_name(options.output);
  if (single && formats.size() + (options.full ? 1 : 0) > 1 && !(options.full && formats.front() == "html")) {
    throw bad_input(fmt::format("--output {}: one file for several formats", printable(options.output)),
                    "give a folder");
  }
  const fs::path folder = single ? fs::path(options.output).parent_path() : fs::path(options.output);
  if (!folder.empty()) make_folders(folder);
  std::vector<std::string> written;
  const auto write = [&](const fs::path& path, const std::string& bytes) {
    write_file_atomically(path, bytes);
    written.push_back(path.string());
  };
  if (single && options.full) {
    write(options.output, report::study_page(recipe, study.view));
    return written;
  }
  for (const std::string& format : formats) {
    const fs::path path = single ? fs::path(options.output) : folder / fmt::format("recipe.{}", format);
    write(path, format == "md"     ? report::to_markdown(recipe)
                : format == "html" ? report::to_html(recipe, study.view)
                                   : report::to_pdf(recipe, study.view));
  }
  if (options.full) write(folder / "study_page.html", report::study_page(recipe, study.view));
  return written;
}

int say_what_check_would_do(const LoadedStudy& study, const RecipeOptions& options) {
  if (!study.conclusion.best) report::make_recipe(study.view);  // throws, with the reason
  fmt::print("{} launches, default and recipe in turn, at most {} each:\n", 2 * options.pairs,
             format_seconds(study.stored.setup.strategy.trial_seconds));
  fmt::print("  default  {}\n", study.stored.space.to_text(study.conclusion.baseline));
  fmt::print("  recipe   {}\n", study.stored.space.to_text(study.conclusion.best->config));
  return 0;
}

int recipe_verb(const RecipeOptions& options) {
  if (options.pairs < 2) throw bad_input("--pairs: at least 2, since one pair has no interval", "write --pairs 3");
  const LoadedStudy study(options.study);
  if (options.dry_run) return say_what_check_would_do(study, options);
  report::Recipe recipe = report::make_recipe(study.view);
  std::optional<report::CheckResult> check;
  if (options.check) {
    check = run_check(study, options);
  } else {
    check = last_check(study.view.id);
  }
  if (check) report::add_check(recipe, *check);
  const bool to_files = !options.output.empty() || !options.formats.empty() || options.full;
  RecipeOptions where = options;
  if (to_files && where.output.empty()) where.output = fmt::format("recipe-{}", study.view.id);
  const std::vector<std::string> written = to_files ? write_files(where, recipe, study) : std::vector<std::string>{};
  if (options.json) {
    nlohmann::json document = report::to_json(recipe, study.view);
    document["files"] = written;
    fmt::print("{}\n", document.dump());
  } else if (options.check) {
    fmt::print("{}\n", check->sentence);
  } else if (!to_files) {
    fmt::print("{}", report::to_markdown(recipe));
    fmt::print(stderr, "lockstep: as a page: lockstep recipe {} --output recipe.pdf (or .html, or a folder)\n",
               study.view.id);
  }
  if (!options.json)
    for (const std::string& path : written) fmt::print("wrote {}\n", path);
  return !options.check || check->ok() ? 0 : static_cast<int>(ExitCode::kAnswerIsNo);
}

}  // namespace

void add_recipe(CLI::App& app, Outcome& outcome) {
  auto options = std::make_shared<RecipeOptions>();
  CLI::App* verb =
      app.add_subcommand("recipe", "One page from a study: what to set, what it gains, when it does not apply");
  verb->add_option("study", options->study, "Study id, its beginning, or `last`");
  verb->add_option("--output,-o", options->output,
                   "Folder, or a file that ends in .html, .pdf or .md; none: Markdown on stdout");
  verb->add_option("--format", options->formats, "html, pdf, md (default: all, or by the file's name)")->delimiter(',');
  verb->add_flag("--full", options->full, "Also study_page.html: the recipe with every plot");
  verb->add_flag(
      "--check", options->check,
      "Launch recipe and default afresh, in pairs: the gain holds (or is larger: exit code 0), no longer holds, is "
      "within noise (says how many more pairs would tell), or does not run (exit code 3)");
  verb->add_option("--pairs", options->pairs, "Pairs of launches for --check (default 3)");
  verb->add_flag("--dry-run", options->dry_run, "Only say what --check would launch");
  verb->add_flag("--json", options->json, "JSON on stdout (lockstep.recipe/1)");
  set_examples(*verb,
               "  lockstep recipe last\n"
               "  lockstep recipe 20261115 --output recipe.pdf\n"
               "  lockstep recipe last --output page --full      recipe.html, recipe.pdf, recipe.md, study_page.html\n"
               "  lockstep recipe last --check                   exit code 3 unless the gain holds");
  verb->callback([options, &outcome] {
    outcome.json = options->json;
    outcome.exit_code = recipe_verb(*options);
  });
}

}  // namespace lockstep::cli
