// `lockstep diagnose RUN|FILE...`: what costs time, and what to do about it.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/cli/verbs.h"
#include "lockstep/diagnose/difference.h"
#include "lockstep/diagnose/foreign/diff.h"
#include "lockstep/diagnose/foreign/files.h"
#include "lockstep/diagnose/run.h"
#include "lockstep/telemetry/progress.h"
#include "lockstep/telemetry/recorder.h"
#include "lockstep/telemetry/run_store.h"

namespace lockstep::cli {
namespace {

struct DiagnoseOptions {
  std::vector<std::string> what = {"last"};
  std::string steps;
  bool json = false, diff = false;
};

// "100..200", "100.." or "..200".
diagnose::StepRange parse_steps(const std::string& text) {
  diagnose::StepRange range;
  if (text.empty()) return range;
  const auto wrong = [&] {
    return bad_input(fmt::format("--steps `{}` is not a range of steps", printable(text)),
                     "for example: --steps 100..200");
  };
  const std::size_t dots = text.find("..");
  if (dots == std::string::npos) throw wrong();
  const auto number = [&](const std::string& part) -> std::optional<std::int64_t> {
    if (part.empty()) return std::nullopt;
    if (part.find_first_not_of("0123456789") != std::string::npos || part.size() > 15) throw wrong();
    return std::stoll(part);
  };
  range.first = number(text.substr(0, dots));
  range.last = number(text.substr(dots + 2));
  if (range.first && range.last && *range.first > *range.last) throw wrong();
  return range;
}

int print(const diagnose::Diagnosis& found, bool json) {
  if (json) {
    fmt::print("{}\n", diagnose::to_json(found).dump());
  } else {
    fmt::print("{}", diagnose::to_text(found, telemetry::detect_style(stdout)));
  }
  return 0;
}

int print_difference(const telemetry::RunStore& store, const DiagnoseOptions& options,
                     const diagnose::StepRange& range) {
  if (options.what.size() != 2) {
    throw bad_input(fmt::format("--diff compares two runs, not {}", options.what.size()),
                    "for example: lockstep diagnose 20261115-0315 last --diff");
  }
  const diagnose::Difference found = diagnose::compare_runs(store, options.what[0], options.what[1], range);
  if (options.json) {
    fmt::print("{}\n", diagnose::to_json(found).dump());
  } else {
    fmt::print("{}", diagnose::to_text(found, telemetry::detect_style(stdout)));
  }
  return 0;
}

// A run's id is never the name of a file; what is there, or has a folder in its name, is meant as one.
bool is_file(const std::string& word) {
  std::error_code ignored;
  return word.find('/') != std::string::npos || std::filesystem::exists(word, ignored);
}

std::vector<std::filesystem::path> given_files(const DiagnoseOptions& options) {
  if (!options.steps.empty()) throw bad_input("--steps is for recorded runs", "leave it out with files");
  std::vector<std::filesystem::path> paths;
  for (const std::string& word : options.what) {
    if (!is_file(word))
      throw bad_input(fmt::format("there is no file `{}`", printable(word)), "files and runs do not mix");
    paths.emplace_back(word);
  }
  return paths;
}

int print_file_difference(const std::vector<std::filesystem::path>& paths, bool json) {
  if (paths.size() != 2) {
    throw bad_input(fmt::format("--diff compares two profiles, not {}", paths.size()),
                    "for example: lockstep diagnose before.json.gz after.json.gz --diff");
  }
  const diagnose::DiagnosisDiff found = diagnose::diff_files(paths[0], paths[1]);
  fmt::print("{}", json ? diagnose::to_json(found).dump() + "\n" : diagnose::to_text(found));
  return 0;
}

int run_diagnose(const DiagnoseOptions& options) {
  if (std::any_of(options.what.begin(), options.what.end(), is_file)) {
    const std::vector<std::filesystem::path> paths = given_files(options);
    return options.diff ? print_file_difference(paths, options.json)
                        : print(diagnose::diagnose_files(paths), options.json);
  }
  const diagnose::StepRange range = parse_steps(options.steps);
  const auto store = telemetry::open_run_store(telemetry::home_directory());
  if (options.diff) return print_difference(*store, options, range);
  if (options.what.size() > 1) {
    throw bad_input("several runs are compared with --diff",
                    "or diagnose one of them: lockstep diagnose " + shell_quoted(printable(options.what[0])));
  }
  return print(diagnose::diagnose_run(*store, options.what.front(), range), options.json);
}

}  // namespace

void add_diagnose(CLI::App& app, Outcome& outcome) {
  auto options = std::make_shared<DiagnoseOptions>();
  CLI::App* verb = app.add_subcommand("diagnose", "Says what slows a run down, what it costs and what to do about it");
  verb->add_option(
      "what", options->what,
      "Run id, its beginning, or `last`; two of them with --diff. Or files and folders: PyTorch profiler traces, "
      "Nsight Systems exports, flight-recorder dumps, logs (docs/reference/diagnose.md)");
  verb->add_flag("--diff", options->diff, "What changed from the first run, or profile, to the second");
  verb->add_option("--steps", options->steps, "Only these steps: A..B, A.. or ..B");
  verb->add_flag("--json", options->json,
                 "JSON on stdout (lockstep.diagnosis/1, lockstep.difference/1, lockstep.diagnosis_diff/1)");
  set_examples(
      *verb,
      "  lockstep diagnose last\n  lockstep diagnose last --steps 500..600\n  lockstep diagnose 20261115-0315 last "
      "--diff\n  lockstep diagnose traces/                        # of PyTorch's profiler, one file per rank\n"
      "  lockstep diagnose before.json.gz after.json.gz --diff");
  verb->callback([options, &outcome] {
    outcome.json = options->json;
    outcome.exit_code = run_diagnose(*options);
  });
}

}  // namespace lockstep::cli
