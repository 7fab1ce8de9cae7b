// The real Optuna opens what export_optuna() wrote. Skipped where there is no Python with Optuna
// (LOCKSTEP_OPTUNA_PYTHON, else the environment of `make bench-tune`, else python3).
#include <gtest/gtest.h>

#include <cstdlib>

#include "lockstep/base/file.h"
#include "lockstep/base/process.h"
#include "lockstep/telemetry/recorder.h"
#include "lockstep/telemetry/run_store.h"
#include "lockstep/tune/study/export_optuna.h"
#include "tests/tune/stored_study_fixture.h"

namespace lockstep::tune {
namespace {

std::string python_with_optuna() {
  std::vector<std::string> candidates;
  if (const char* given = std::getenv("LOCKSTEP_OPTUNA_PYTHON")) candidates.push_back(given);
  candidates.push_back(std::string(LOCKSTEP_SOURCE_DIR) + "/.cache/venv-bench/bin/python3");
  candidates.push_back("python3");
  for (const std::string& python : candidates) {
    try {
      if (run_command({.argv = {python, "-c", "import optuna"}}, 60).status.ok()) return python;
    } catch (const std::exception&) {  // no such program
    }
  }
  return {};
}

TEST(OptunaStorage, optuna_loads_an_exported_study_and_can_go_on_with_it) {
  if (!telemetry::has_sqlite()) GTEST_SKIP() << "no SQLite in this build";
  const std::string python = python_with_optuna();
  if (python.empty()) GTEST_SKIP() << "no Python with Optuna: set LOCKSTEP_OPTUNA_PYTHON";
  const TemporaryFolder folder;
  const std::shared_ptr<telemetry::StudyStore> store =
      telemetry::make_json_lines_study_store(folder.path() / "studies");
  const Space space = Space::parse(kSmallSpace, "small.yaml");
  OpenStudy study = create_study(store, space, small_setup());
  std::vector<Trial> trials = small_trials(space);
  trials[5].stopped_early = true;
  journal_all(*study.journal, trials);
  study.journal->conclude({{"best", {{"estimate", 150}}}});
  const auto file = folder.path() / "optuna.db";
  export_optuna(load_study(*store, study.study.id()), file, "small");
  const CommandResult result = run_command(
      {.argv = {python, std::string(LOCKSTEP_SOURCE_DIR) + "/tests/tune/load_in_optuna.py", file.string(), "small"}},
      120);
  EXPECT_TRUE(result.status.ok()) << result.output << result.error;
}

TEST(OptunaStorage, optuna_loads_a_study_of_two_objectives) {
  if (!telemetry::has_sqlite()) GTEST_SKIP() << "no SQLite in this build";
  const std::string python = python_with_optuna();
  if (python.empty()) GTEST_SKIP() << "no Python with Optuna: set LOCKSTEP_OPTUNA_PYTHON";
  const TemporaryFolder folder;
  const std::shared_ptr<telemetry::StudyStore> store =
      telemetry::make_json_lines_study_store(folder.path() / "studies");
  const Space space = Space::parse(kSmallSpace, "small.yaml");
  StudySetup setup = small_setup();
  setup.strategy.objectives = parse_objectives("tokens_per_second,memory");
  OpenStudy study = create_study(store, space, setup);
  std::vector<Trial> trials = small_trials(space);
  for (Trial& trial : trials) trial.values["memory_bytes"] = trial.throughput < 100 ? 1e9 : 2e9;
  journal_all(*study.journal, trials);
  study.journal->conclude(nullptr);
  const auto file = folder.path() / "optuna.db";
  export_optuna(load_study(*store, study.study.id()), file, "front");
  const std::string check =
      "import optuna, sys\n"
      "study = optuna.load_study(study_name='front', storage='sqlite:///' + sys.argv[1])\n"
      "D = optuna.study.StudyDirection\n"
      "assert study.directions == [D.MAXIMIZE, D.MINIMIZE], study.directions\n"
      "assert study.trials[4].values == [150.0, 2e9], study.trials[4].values\n"
      "assert sorted(trial.number for trial in study.best_trials) == [3, 4], study.best_trials\n"
      "assert str(study.trials[2].state).endswith('FAIL')\n";
  const CommandResult result = run_command({.argv = {python, "-c", check, file.string()}}, 120);
  EXPECT_TRUE(result.status.ok()) << result.output << result.error;
}

}  // namespace
}  // namespace lockstep::tune
