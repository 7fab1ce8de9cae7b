// `lockstep observe --rows OBS.csv`: keeps measured runs, which every later prediction takes into account.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/cli/verbs.h"
#include "lockstep/planner/observations.h"

namespace lockstep::cli {
namespace {

int observe(const std::string& rows, bool json) {
  const planner::PublishedTable table = planner::load_published_rows(rows);
  for (const planner::PublishedRow& row : table.rows) {
    if (const auto problem = planner::find_unknown_word(row)) {
      throw bad_input(*problem, "correct it, or leave it blank (unknown: bf16)", {.file = rows});
    }
  }
  const planner::KeptRows kept = planner::keep_observations(table);
  if (json) {
    fmt::print("{}\n", nlohmann::json{{"schema", "lockstep.observe/1"},
                                      {"added", kept.added},
                                      {"known", kept.known},
                                      {"left_out", kept.left_out},
                                      {"file", planner::observations_path().string()}}
                           .dump());
    return 0;
  }
  fmt::print("{} runs kept in {}, {} were there\n", kept.added, planner::observations_path().string(), kept.known);
  for (const std::string& problem : kept.left_out) fmt::print("  not kept: {}\n", problem);
  fmt::print("next: lockstep profile show\n");
  return 0;
}

}  // namespace

void add_observe(CLI::App& app, Outcome& outcome) {
  struct Options {
    std::string rows;
    bool json = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* verb =
      app.add_subcommand("observe", "Keeps measured runs of your own; plans and predictions learn from them");
  verb->add_option(
          "--rows", options->rows,
          "CSV with the columns of `predict --rows` and what was measured: tokens_per_s_per_gpu or step_time_s, "
          "mem_gib_per_gpu")
      ->required();
  verb->add_flag("--json", options->json, "JSON on stdout (lockstep.observe/1)");
  set_examples(*verb,
               "  lockstep observe --rows my-runs.csv\n"
               "  lockstep profile show --gpu H100          # what they say about the profile");
  verb->callback([options, &outcome] {
    outcome.json = options->json;
    outcome.exit_code = observe(options->rows, options->json);
  });
}

void add_observation_switch(CLI::App& verb) {
  verb.add_flag_callback("--no-observations", planner::switch_observations_off,
                         "Predict as if no run had been observed ($LOCKSTEP_NO_OBSERVATIONS)");
}

}  // namespace lockstep::cli
