// The verbs of the command line, one file each. A verb adds its subcommand to the app; when that is chosen, its
// callback leaves the exit code in `outcome`. Errors are thrown (base/error.h) and printed by main().
#pragma once

#include <CLI/CLI.hpp>

namespace lockstep::cli {

struct Outcome {
  int exit_code = 0;
  bool json = false;  // the chosen verb was asked for JSON: errors go out as JSON too
  // Of `launch`: the program that follows its flags, taken off the command line before that is parsed.
  std::vector<std::string> command;
  bool command_separated = false;  // by `--`
};

void add_plan(CLI::App& app, Outcome& outcome);
void add_suggest(CLI::App& app, Outcome& outcome);
void add_train(CLI::App& app, Outcome& outcome);
void add_launch(CLI::App& app, Outcome& outcome);
void add_rank(CLI::App& app, Outcome& outcome);   // hidden: what the local agent starts
void add_probe(CLI::App& app, Outcome& outcome);  // hidden: what looks at somebody's model
void add_calibrate(CLI::App& app, Outcome& outcome);
void add_checkpoint(CLI::App& app, Outcome& outcome);
void add_demo(CLI::App& app, Outcome& outcome);
void add_evaluate(CLI::App& app, Outcome& outcome);
void add_generate(CLI::App& app, Outcome& outcome);
void add_export(CLI::App& app, Outcome& outcome);
void add_import(CLI::App& app, Outcome& outcome);
void add_diagnose(CLI::App& app, Outcome& outcome);
void add_health(CLI::App& app, Outcome& outcome);
void add_doctor(CLI::App& app, Outcome& outcome);
void add_observe(CLI::App& app, Outcome& outcome);
void add_predict(CLI::App& app, Outcome& outcome);
void add_profile(CLI::App& app, Outcome& outcome);
void add_recipe(CLI::App& app, Outcome& outcome);
void add_report(CLI::App& app, Outcome& outcome);
void add_runbook(CLI::App& app, Outcome& outcome);
void add_serve(CLI::App& app, Outcome& outcome);
void add_simulate(CLI::App& app, Outcome& outcome);
void add_tokenize(CLI::App& app, Outcome& outcome);
void add_trial_worker(CLI::App& app, Outcome& outcome);  // hidden: what `tune --on` starts
void add_tune(CLI::App& app, Outcome& outcome);
void add_validate(CLI::App& app, Outcome& outcome);
void add_watch(CLI::App& app, Outcome& outcome);
void add_completion(CLI::App& app, Outcome& outcome);

// --no-observations, of verbs that predict.
void add_observation_switch(CLI::App& verb);

// Text shown under a verb's --help.
inline void set_examples(CLI::App& verb, const std::string& examples) { verb.footer("Examples:\n" + examples); }

}  // namespace lockstep::cli
