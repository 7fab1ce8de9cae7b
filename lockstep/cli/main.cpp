// lockstep: parses the command line, runs one verb, turns errors into one line and an exit code.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/cli/launch_command.h"
#include "lockstep/cli/managed_job.h"
#include "lockstep/cli/signals.h"
#include "lockstep/cli/verbs.h"

namespace {

using lockstep::cli::Outcome;

int fail(const Outcome& outcome, int code, const std::string& message) {
  fmt::print(stderr, "lockstep: {}\n", message);
  if (outcome.json) {
    fmt::print("{}\n", nlohmann::json{{"schema", "lockstep.error/1"}, {"exit_code", code}, {"error", message}}.dump());
  }
  return code;
}

// CLI11 would only say that a subcommand is required.
void require_known_verb(const CLI::App& app, int argc, char** argv) {
  if (argc < 2 || argv[1][0] == '-') return;
  std::vector<std::string> names;
  for (const CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (verb->get_name() == argv[1]) return;
    if (!verb->get_group().empty()) names.push_back(verb->get_name());
  }
  throw lockstep::bad_input(fmt::format("there is no verb `{}`", lockstep::printable(argv[1])),
                            lockstep::did_you_mean(argv[1], names));
}

// What to do about a flag that the verb does not have.
std::string advice_on_flags(const CLI::App& app) {
  const CLI::App* verb = &app;
  std::string command = "lockstep";
  while (!verb->get_subcommands().empty()) {
    verb = verb->get_subcommands().front();
    command += " " + verb->get_name();
  }
  std::vector<std::string> flags;
  for (const CLI::Option* option : verb->get_options()) {
    for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
  }
  for (const std::string& word : app.remaining(true)) {
    if (!word.starts_with("--")) continue;
    if (const auto near = lockstep::nearest(word.substr(0, word.find('=')), flags)) {
      return fmt::format("did you mean `{}`?", *near);
    }
  }
  return fmt::format("see `{} --help`", command);
}

bool asks_for_json(int argc, char** argv) {
  return std::any_of(argv, argv + argc, [](const char* word) { return std::string_view(word) == "--json"; });
}

constexpr const char* kParseOnly = "--parse-only";

int run(CLI::App& app, Outcome& outcome, int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == kParseOnly) {
    app.parse_complete_callback([] { throw CLI::Success(); });  // it comes before the verb's own
    ++argv, --argc;
  }
  outcome.json = asks_for_json(argc, argv);  // a line that no verb understands has no verb to say so
  try {
    require_known_verb(app, argc, argv);
    const int count = lockstep::cli::take_command(app, argc, argv, outcome);
    std::vector<std::string> words(argv + 1, argv + count);
    if (outcome.command.empty()) words = lockstep::cli::with_managed_job(std::move(words));
    std::reverse(words.begin(), words.end());  // as CLI11 takes them
    app.parse(std::move(words));
    return outcome.exit_code;
  } catch (const CLI::ParseError& error) {
    const bool asked_for_help = error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success);
    if (asked_for_help) return app.exit(error);
    return fail(outcome, static_cast<int>(lockstep::ExitCode::kUsage),
                fmt::format("{}; {}", error.what(), advice_on_flags(app)));
  } catch (const lockstep::UserError& error) {
    return fail(outcome, static_cast<int>(error.code()), error.what());
  } catch (const lockstep::Fault& error) {
    return fail(outcome, static_cast<int>(lockstep::ExitCode::kRunFailed), error.what());
  } catch (const std::exception& error) {
    return fail(outcome, static_cast<int>(lockstep::ExitCode::kRunFailed),
                std::string("internal error: ") + error.what());
  }
}

// What was printed must have arrived, unless the reader left (`| head -1`).
int after_output(int code) {
  const bool written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (written || code != 0 || lockstep::cli::nobody_reads_stdout()) return code;
  fmt::print(stderr, "lockstep: cannot write to standard output; is the disk full?\n");
  return static_cast<int>(lockstep::ExitCode::kEnvironment);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Plans, runs, measures and records distributed training.", "lockstep");
  app.set_version_flag("--version", std::string("lockstep ") + LOCKSTEP_VERSION);
  const std::string parse_only = "Before a verb: read its command line and do nothing; exit code 2 where it is wrong";
  app.add_flag(kParseOnly, parse_only);
  app.require_subcommand(1);
  app.footer(
      "Start here:\n"
      "  lockstep demo                          trains a small GPT on 4 ranks of this machine\n"
      "  lockstep doctor                        is this machine fit to train?\n"
      "  lockstep plan --model llama2-13b --cluster 4x8xH100\n"
      "  lockstep train specs/jobs/mnist-cnn.yaml\n"
      "Exit codes: 0 done, 1 run failed, 2 usage or bad file, 3 does not fit or a check failed, 4 environment, 75 "
      "retry, 130 "
      "stopped.");
  Outcome outcome;
  lockstep::cli::add_demo(app, outcome);
  lockstep::cli::add_doctor(app, outcome);
  lockstep::cli::add_health(app, outcome);
  lockstep::cli::add_plan(app, outcome);
  lockstep::cli::add_suggest(app, outcome);
  lockstep::cli::add_simulate(app, outcome);
  lockstep::cli::add_validate(app, outcome);
  lockstep::cli::add_train(app, outcome);
  lockstep::cli::add_launch(app, outcome);
  lockstep::cli::add_tune(app, outcome);
  lockstep::cli::add_calibrate(app, outcome);
  lockstep::cli::add_predict(app, outcome);
  lockstep::cli::add_observe(app, outcome);
  lockstep::cli::add_profile(app, outcome);
  lockstep::cli::add_recipe(app, outcome);
  lockstep::cli::add_diagnose(app, outcome);
  lockstep::cli::add_report(app, outcome);
  lockstep::cli::add_runbook(app, outcome);
  lockstep::cli::add_export(app, outcome);
  lockstep::cli::add_import(app, outcome);
  lockstep::cli::add_watch(app, outcome);
  lockstep::cli::add_serve(app, outcome);
  lockstep::cli::add_tokenize(app, outcome);
  lockstep::cli::add_checkpoint(app, outcome);
  lockstep::cli::add_evaluate(app, outcome);
  lockstep::cli::add_generate(app, outcome);
  lockstep::cli::add_completion(app, outcome);
  lockstep::cli::add_rank(app, outcome);
  lockstep::cli::add_probe(app, outcome);
  lockstep::cli::add_trial_worker(app, outcome);
  return after_output(run(app, outcome, argc, argv));
}
