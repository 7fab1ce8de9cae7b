#include "lockstep/report/study/text.h"

#include <gtest/gtest.h>

#include "lockstep/base/text.h"
#include "lockstep/telemetry/progress.h"
#include "tests/tune/stored_study_fixture.h"

namespace lockstep::report {
namespace {

using tune::Config;
using tune::Space;
using tune::Trial;

tune::StoredStudy a_study() {
  tune::StoredStudy study{{}, Space::parse(tune::kSmallSpace, "small.yaml"), tune::small_setup(), {}};
  study.row.info = {.id = "20261115-031500-a1b2c3-small",
                    .name = "small job",
                    .created_at = 1'800'000'000,
                    .host = "box",
                    .space_yaml = study.space.to_yaml()};
  study.row.status = telemetry::RunStatus::kDone;
  study.row.ended_at = 1'800'000'700;
  study.trials = tune::small_trials(study.space);
  study.interrupted = 1;
  study.interrupted_gpu_seconds = 10;
  return study;
}

tune::Conclusion a_conclusion(const tune::StoredStudy& study) {
  tune::Conclusion found;
  Config best = tune::with(study.space, "algo", std::string("Tree"));
  best.values[*study.space.find("micro")] = std::int64_t{4};
  found.best = tune::BestFound{best, {150, 145, 155, 5}, false};
  found.baseline = study.space.default_config();
  found.baseline_throughput = tune::Estimate{100, 97, 103, 5};
  found.gain = tune::Gain{{50, 44.5, 55.5, 5}, true};
  found.importance = {{.knob = "micro",
                       .set_back_percent = tune::Estimate{22, 18, 26, 3},
                       .variance_main_percent = {61, 50, 70, 0},
                       .variance_total_percent = {70, 60, 80, 0}},
                      {.knob = "algo",
                       .set_back_percent = tune::Estimate{13, 9, 17, 3},
                       .moved_along = {"bucket"},
                       .variance_main_percent = {20, 12, 28, 0},
                       .variance_total_percent = {25, 15, 35, 0}},
                      {.knob = "workers", .set_back_percent = tune::Estimate{}},
                      {.knob = "pinned", .set_back_percent = tune::Estimate{100, 100, 100, 1}, .set_back_fails = true}};
  found.top = {"micro", "algo"};
  found.tied = {"bucket", "workers"};
  found.interactions = {{"micro", "algo", {8, 4, 12, 0}}};
  found.trials = 7;
  found.failed = 1;
  found.gpu_seconds = 350;
  found.launch_spread_percent = 1.5;
  return found;
}

std::string plain(const tune::StoredStudy& study, const tune::Conclusion& found, bool all = false, int width = 100) {
  return study_text(study, found, {.style = {.width = width, .colour = false, .unicode = false}, .all = all});
}

void expect_has(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "missing: " << part << "\n" << text;
}

void expect_lacks(const std::string& text, const std::string& part) {
  EXPECT_EQ(text.find(part), std::string::npos) << "unwanted: " << part << "\n" << text;
}

TEST(StudyText, says_what_was_found_and_how_sure_that_is) {
  const tune::StoredStudy study = a_study();
  const std::string text = plain(study, a_conclusion(study));
  expect_has(text, "study 20261115-031500-a1b2c3-small");
  expect_has(text, "7 of 12, 1 failed, 1 cut off");
  expect_has(text, "lockstep 0.5.0, nccl 2.30.7");
  expect_has(text, "algo   Ring     Tree");
  expect_has(text, "150 samples/s  95% 145 samples/s to 155 samples/s, 5 launches");
  expect_has(text, "+50.0%  95% +44.5% to +55.5%, 5 paired launches");
  expect_has(text, "22.0%  (18.0 to 26.0, n=3)");
  expect_has(text, "13.0%  (9.0 to 17.0, n=3)");
  expect_has(text, "must change too: bucket");
  expect_has(text, "is at its default");
  expect_has(text, "does not run without it");
  expect_has(text, "micro, algo; then bucket or workers (a tie)");
  expect_has(text, "micro with algo 8%");
  expect_has(text, "150 samples/s in trial 4");
  expect_has(text, "1.5% between launches");
  expect_has(text, "lockstep recipe 20261115-031500-a1b2c3-small");
}

TEST(StudyText, the_bars_of_the_budget_add_up) {
  const tune::StoredStudy study = a_study();
  const StudySpending spent = spending_of(study);
  EXPECT_EQ(spent.search.trials, 5);
  EXPECT_EQ(spent.set_backs.trials, 1);
  EXPECT_EQ(spent.confirm.trials, 0);
  EXPECT_EQ(spent.failures.trials, 1);
  EXPECT_DOUBLE_EQ(spent.total(), 360);
  const std::string text = plain(study, a_conclusion(study));
  expect_has(text, "0.10 GPU-h of 1.00 GPU-h spent");
  expect_has(text, "failures");
  expect_has(text, "CUDA out of memory");
  expect_lacks(text, "\n2 GiB");
}

TEST(StudyText, a_gain_that_may_be_nothing_is_called_that) {
  const tune::StoredStudy study = a_study();
  tune::Conclusion found = a_conclusion(study);
  found.gain = tune::Gain{{1.2, -0.8, 3.2, 4}, false};
  expect_has(plain(study, found), "+1.2%  95% -0.8% to +3.2%, 4 launches: may be zero");
  found.best->provisional = true;
  expect_has(plain(study, found), "not confirmed by fresh launches");
  found.best->config = study.space.default_config();
  expect_has(plain(study, found), "the default itself");
}

TEST(StudyText, without_a_default_the_median_is_what_it_compares_with) {
  const tune::StoredStudy study = a_study();
  tune::Conclusion found = a_conclusion(study);
  found.default_given = false;
  found.gain.reset();
  found.baseline_throughput.reset();
  found.median = tune::Estimate{120, 110, 130, 7};
  const std::string text = plain(study, found);
  expect_has(text, "no default given; +25.0% over the median of what was tried");
  expect_lacks(text, "launches: may be zero");
}

TEST(StudyText, a_study_in_which_nothing_ran_says_so_and_shows_why) {
  tune::StoredStudy study = a_study();
  study.trials = {tune::failed_trial(0, study.space.default_config(), tune::Outcome::kCrash, "no such file\033[31m")};
  study.row.status = telemetry::RunStatus::kInterrupted;
  tune::Conclusion found;
  found.trials = found.failed = 1;
  const std::string text = plain(study, found);
  expect_has(text, "nothing ran");
  expect_has(text, "crash");
  expect_has(text, "no such file");
  expect_lacks(text, "\033");
  expect_has(text, "lockstep tune --resume 20261115");
}

TEST(StudyText, stays_within_the_width_and_shows_every_trial_when_asked) {
  const tune::StoredStudy study = a_study();
  const tune::Conclusion found = a_conclusion(study);
  for (const bool colour : {false, true}) {
    const std::string text = study_text(study, found, {.style = {.width = 80, .colour = colour}});
    for (const std::string& line : split(text, '\n')) EXPECT_LE(telemetry::display_width(line), 80) << line;
  }
  expect_lacks(plain(study, found), "micro=8");
  const std::string all = plain(study, found, true);
  expect_has(all, "micro=8");
  expect_has(all, "micro=4 (back: algo)");
  expect_has(all, "workers=0");
}

TEST(StudyText, the_document_has_everything_a_dashboard_needs) {
  const tune::StoredStudy study = a_study();
  const nlohmann::json document = study_json(study, a_conclusion(study));
  EXPECT_EQ(document["schema"], "lockstep.study/1");
  EXPECT_EQ(document["trials"], 7);
  EXPECT_EQ(document["failed"], 1);
  EXPECT_EQ(document["best"]["config"]["algo"], "Tree");
  EXPECT_EQ(document["study"]["status"], "done");
  EXPECT_EQ(document["study"]["options"]["strategy"]["trials"], 12);
  EXPECT_DOUBLE_EQ(document["spent"]["total"].get<double>(), 360);
  ASSERT_EQ(document["history"].size(), 7u);
  EXPECT_EQ(document["history"][2]["outcome"], "oom");
  const Space again = Space::parse(document["space"].get<std::string>(), "document");
  EXPECT_EQ(again.from_json(document["history"][4]["config"], "document"), study.trials[4].config);
}

TEST(StudyText, lists_studies_for_people_and_programs) {
  telemetry::StudyRow row = a_study().row;
  row.trials = 7;
  row.failed = 1;
  row.gpu_seconds = 7200;
  const std::string text = study_list_text({row}, {.unicode = false});
  expect_has(text, "20261115-031500-a1b2c3-small  done");
  expect_has(text, "2.00 GPU-h");
  expect_has(study_list_text({}, {}), "no studies yet");
  EXPECT_EQ(study_list_json({row})["studies"][0]["trials"], 7);
  EXPECT_EQ(study_list_json({})["schema"], "lockstep.studies/1");
}

}  // namespace
}  // namespace lockstep::report
