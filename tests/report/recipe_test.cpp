#include "lockstep/report/recipe/recipe.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/report/canvas/svg_canvas.h"
#include "lockstep/report/recipe/paste.h"
#include "lockstep/report/study/page.h"
#include "made_up_study.h"

namespace lockstep::report {
namespace {

const std::vector<std::string> kSections{
    "Set this",     "Ready to paste",          "What matters most",      "What does not matter",
    "It holds for", "Re-check in ten minutes", "When it does not apply", "How it was found"};

bool has(const std::string& text, const std::string& what) { return text.find(what) != std::string::npos; }

std::string joined(const std::vector<std::string>& items) { return join(items, "\n"); }

TEST(Recipe, FiguresAreTheConclusions) {
  const MadeUpStudy study = usual_study();
  const Recipe recipe = make_recipe(study.view());
  EXPECT_EQ(recipe.gain, "+23.4%");
  EXPECT_EQ(recipe.gain_detail, "95% interval +21.0% to +25.8%, 5 pairs of interleaved launches");
  EXPECT_EQ(recipe.throughput, "51.23k tokens/s");
  EXPECT_EQ(recipe.throughput_detail, "95% interval 50.4k to 52.08k, 5 fresh launches; 6.404k tokens/s per GPU");
  EXPECT_EQ(recipe.baseline, "41.5k tokens/s by default (40.8k to 42.21k, 5 launches)");
  EXPECT_EQ(
      recipe.matters.at(0),
      "micro_batch = 8: reverting it to 1 costs 14.2% (11.9% to 16.5%, 3 launches); accumulation changes with it");
  EXPECT_EQ(recipe.matters.at(1), "NCCL_ALGO = Tree: reverting it to Ring costs 6.1% (4.7% to 7.5%, 3 launches)");
  EXPECT_TRUE(recipe.warnings.empty()) << joined(recipe.warnings);
}

TEST(Recipe, TiesAreCalledTies) {
  const MadeUpStudy study = usual_study();
  const Recipe recipe = make_recipe(study.view());
  ASSERT_GE(recipe.matters.size(), 3u);
  EXPECT_TRUE(recipe.matters[2].starts_with("Tie for the next place: bucket_mib")) << recipe.matters[2];
  EXPECT_TRUE(has(recipe.matters[2], "num_workers = 6"));
}

TEST(Recipe, TwoNamesOfOneStepAreNotSoldAsTwoEffects) {
  MadeUpStudy study = usual_study();
  study.conclusion.top = {"micro_batch", "accumulation", "NCCL_ALGO"};
  study.conclusion.tied.clear();
  const Recipe recipe = make_recipe(study.view());
  EXPECT_TRUE(recipe.matters.at(1).starts_with("NCCL_ALGO = Tree")) << recipe.matters.at(1);
}

TEST(Recipe, EverySectionIsInEveryFormat) {
  const MadeUpStudy study = usual_study();
  const Recipe recipe = make_recipe(study.view());
  const std::string markdown = to_markdown(recipe), html = to_html(recipe, study.view()),
                    pdf = to_pdf(recipe, study.view());
  for (const std::string& section : kSections) {
    EXPECT_TRUE(has(markdown, "## " + section)) << section;
    EXPECT_TRUE(has(html, "<h2>" + section + "</h2>")) << section;
    EXPECT_TRUE(has(pdf, "(" + section + ")")) << section;
  }
  for (const std::string& page : {markdown, html, pdf}) {
    EXPECT_TRUE(has(page, "+23.4%") || has(page, "\\+23.4%"));
    EXPECT_TRUE(has(page, "51.23k tokens/s"));
    EXPECT_TRUE(has(page, "2027-02-"));  // the expiry
  }
}

TEST(Recipe, ChangedSettingsComeDearestFirstAndTheRestStaysAtDefaults) {
  const MadeUpStudy study = usual_study();
  const Recipe recipe = make_recipe(study.view());
  std::vector<std::string> changed;
  for (const RecipeSetting& row : recipe.settings)
    if (row.changed) changed.push_back(fmt::format("{}:{}>{}", row.knob, row.standard, row.best));
  EXPECT_EQ(joined(changed),
            "micro_batch:1>8\nNCCL_ALGO:Ring>Tree\nbucket_mib:25>256\nnum_workers:2>6\naccumulation:16>2");
  EXPECT_FALSE(recipe.settings.back().changed);
  EXPECT_EQ(recipe.settings.back().knob, "prefetch_factor");
  EXPECT_EQ(recipe.settings.front().if_set_back, "14.2% (11.9 to 16.5)");
  EXPECT_EQ(recipe.settings.at(4).if_set_back, "");  // accumulation: nobody measured it, so nothing is said
  EXPECT_EQ(joined(recipe.does_not_matter), "prefetch_factor");
}

TEST(Recipe, SaysWhenItDoesNotApply) {
  const MadeUpStudy study = usual_study();
  const std::string limits = joined(make_recipe(study.view()).limits);
  EXPECT_TRUE(has(limits, "another number of devices than 8")) << limits;
  EXPECT_TRUE(has(limits, "micro_batch = 16 instead of 8")) << limits;
  EXPECT_TRUE(has(limits, "micro_batch * accumulation == 16")) << limits;
  EXPECT_TRUE(has(limits, "bucket_mib = 256 (upper end)")) << limits;
  EXPECT_TRUE(has(limits, "debugging aids")) << limits;
}

TEST(Recipe, ASettingThatComputesSomethingElseIsNamed) {
  MadeUpStudy study(
      "knobs:\n  precision: {choices: [bf16, fp8], default: bf16}\n  buckets: {int: [1, 9], default: 2}\n");
  study.evaluator = {{"kind", "worker"}};
  study.conclusion.best = tune::BestFound{study.with({{"precision", "fp8"}}), {10, 9, 11, 3}, false};
  EXPECT_TRUE(has(joined(make_recipe(study.view()).limits), "precision = fp8 changes what is computed"));
  study.conclusion.best->config = study.with({{"buckets", 3}});
  EXPECT_FALSE(has(joined(make_recipe(study.view()).limits), "changes what is computed"));
}

TEST(Recipe, KnobsTheBestDoesNotUseAreNoChanges) {
  MadeUpStudy study = usual_study();
  study.conclusion.best->config = study.with({{"num_workers", 0}, {"prefetch_factor", nullptr}});
  for (const RecipeSetting& row : make_recipe(study.view()).settings)
    if (row.knob == "prefetch_factor") {
      EXPECT_TRUE(!row.changed && row.best == "not used");
    }
}

TEST(Recipe, SimulatedStudiesAreMarkedAsPredictions) {
  MadeUpStudy study = usual_study();
  study.evaluator = {{"kind", "simulate"}};
  const Recipe recipe = make_recipe(study.view());
  EXPECT_TRUE(has(joined(recipe.warnings), "PREDICTION"));
  EXPECT_TRUE(has(to_markdown(recipe), "PREDICTION"));
  EXPECT_TRUE(has(to_html(recipe, study.view()), ">PREDICTION</span>"));
  EXPECT_TRUE(has(to_pdf(recipe, study.view()), "(PREDICTION)"));
  EXPECT_FALSE(has(to_pdf(recipe, study.view()), "(MEASURED)"));
}

TEST(Recipe, AGainThatMayBeNothingIsNotSold) {
  MadeUpStudy study = usual_study();
  study.conclusion.gain->percent = {0.4, -1.1, 1.9, 5};
  const Recipe recipe = make_recipe(study.view());
  EXPECT_EQ(recipe.gain, "keep the default");
  EXPECT_TRUE(has(joined(recipe.warnings), "Nothing beats the default beyond doubt"));
  EXPECT_TRUE(recipe.paste.empty());
  for (const RecipeSetting& row : recipe.settings) EXPECT_FALSE(row.changed) << row.knob;
  EXPECT_EQ(joined(recipe.matters), "No knob's effect is larger than the noise.");
  EXPECT_FALSE(has(to_markdown(recipe), "Ready to paste"));
  study.conclusion.best->config = study.conclusion.baseline;
  EXPECT_EQ(make_recipe(study.view()).gain, "keep the default");
}

TEST(Recipe, WithoutADefaultTheMedianIsWhatItComparesWith) {
  MadeUpStudy study = usual_study();
  study.conclusion.default_given = false;
  study.conclusion.gain.reset();
  study.conclusion.baseline_throughput.reset();
  study.conclusion.median = tune::Estimate{40983.0, 35000, 45000, 20};
  const Recipe recipe = make_recipe(study.view());
  EXPECT_EQ(recipe.gain, "+25.0%");
  EXPECT_EQ(recipe.gain_detail, "no default given");
  EXPECT_TRUE(has(to_markdown(recipe), "gain over the median tried"));
  EXPECT_EQ(recipe.settings.front().standard, "not given");
  EXPECT_TRUE(to_json(recipe, study.view()).at("default").is_null());
}

TEST(Recipe, ProvisionalAndUnfinishedStudiesSaySo) {
  MadeUpStudy study = usual_study();
  study.conclusion.best->provisional = true;
  StudyView view = study.view();
  view.ended_at = 0;
  const std::string warnings = joined(make_recipe(view).warnings);
  EXPECT_TRUE(has(warnings, "PROVISIONAL"));
  EXPECT_TRUE(has(warnings, "not finished"));
}

TEST(Recipe, WithoutSetBacksTheModelIsAskedAndSaysSo) {
  MadeUpStudy study = usual_study();
  for (tune::KnobImportance& entry : study.conclusion.importance) entry.set_back_percent.reset();
  study.conclusion.top.clear();
  study.conclusion.tied.clear();
  const Recipe recipe = make_recipe(study.view());
  EXPECT_TRUE(has(recipe.matters.at(0), "was not measured"));
  EXPECT_EQ(recipe.matters.at(1), "micro_batch = 8: 55.0% of the variance over the space (38.5% to 66.0%)");
  EXPECT_TRUE(has(to_markdown(recipe), "|---|---|---|\n| NCCL")) << to_markdown(recipe);
}

TEST(Recipe, WithoutASettingThatRunsThereIsNone) {
  MadeUpStudy study = usual_study();
  study.conclusion.best.reset();
  try {
    make_recipe(study.view());
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::kAnswerIsNo);
    EXPECT_TRUE(has(error.what(), "lockstep tune --show"));
  }
}

TEST(Recipe, HostileNamesStayText) {
  MadeUpStudy study(R"(
knobs:
  "<script>alert(1)</script>": {choices: [a, "</pre><img src=x onerror=alert(2)>"], default: a}
  "a|b*c": {choices: ["x y", "it's \"quoted\" $HOME `id`"], default: "x y"}
)");
  study.evaluator = {{"kind", "worker"}};
  const tune::Config best = study.with(
      {{"<script>alert(1)</script>", "</pre><img src=x onerror=alert(2)>"}, {"a|b*c", "it's \"quoted\" $HOME `id`"}});
  study.conclusion.best = tune::BestFound{best, {10, 9, 11, 3}, false};
  study.conclusion.importance = {importance("<script>alert(1)</script>", 5, 1, 3, 50)};
  study.conclusion.top = {"<script>alert(1)</script>"};
  study.add(best, tune::Purpose::kConfirm, 10).message = "<b>";
  study.add(study.conclusion.baseline, tune::Purpose::kBaseline, 9);
  study.add(best, tune::Purpose::kConfirm, 10);
  StudyView view = study.view();
  view.name = "<i>name</i>\x1b[31m";
  const Recipe recipe = make_recipe(view);
  for (const std::string& page : {to_html(recipe, view), study_page(recipe, view)}) {
    EXPECT_FALSE(has(page, "<script"));
    EXPECT_FALSE(has(page, "<img"));
    EXPECT_FALSE(has(page, "<i>"));
    EXPECT_FALSE(has(page, "\x1b"));
    EXPECT_TRUE(has(page, "&lt;script&gt;"));
    EXPECT_TRUE(has(page, "default-src 'none'"));  // nor could it do anything
  }
  const std::string markdown = to_markdown(recipe);
  EXPECT_TRUE(has(markdown, "a\\|b\\*c"));
  EXPECT_FALSE(has(markdown, "\n<script"));
}

TEST(Recipe, JsonHasTheConclusionAndTheSetting) {
  const MadeUpStudy study = usual_study();
  const nlohmann::json document = to_json(make_recipe(study.view()), study.view());
  EXPECT_EQ(document.at("schema"), "lockstep.recipe/1");
  EXPECT_EQ(document.at("config").at("micro_batch"), 8);
  EXPECT_EQ(document.at("gain_percent").at("low"), 21.0);
  EXPECT_EQ(document.at("throughput").at("launches"), 5);
  EXPECT_EQ(document.at("tied"), (nlohmann::json{"bucket_mib", "num_workers"}));
  EXPECT_TRUE(document.at("check").is_null());
}

TEST(StudyPage, HasEveryPlotAndNothingFromElsewhere) {
  const MadeUpStudy study = usual_study();
  const std::string page = study_page(make_recipe(study.view()), study.view());
  for (const char* plot : {"convergence", "importance", "effects", "parallel", "cost", "failures"})
    EXPECT_TRUE(has(page, fmt::format("<figure id=\"{}\">", plot))) << plot;
  EXPECT_FALSE(has(page, "<script"));
  EXPECT_FALSE(has(page, "href="));
  EXPECT_FALSE(has(page, "src="));
  EXPECT_FALSE(has(page, "nan"));
  EXPECT_FALSE(has(page, "url("));
}

}  // namespace
}  // namespace lockstep::report
