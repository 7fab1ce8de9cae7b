#include "lockstep/report/recipe/check.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "made_up_study.h"

namespace lockstep::report {
namespace {

// Answers with a figure for each setting; remembers what was asked.
class FakeEvaluator : public tune::Evaluator {
 public:
  FakeEvaluator(const MadeUpStudy& study, double best, double standard)
      : study_(study), best_(best), standard_(standard) {}
  tune::Measurement evaluate(const tune::EvaluationRequest& request) override {
    const bool is_best = request.config == study_.conclusion.best->config;
    asked.push_back(is_best ? 'B' : 'd');
    numbers.push_back(request.trial);
    tune::Measurement result;
    result.seconds = 10;
    if (fail_best && is_best) {
      result.outcome = tune::Outcome::kOutOfMemory;
      result.message = "CUDA out of memory";
      return result;
    }
    const double wobble = 1 + 0.01 * static_cast<double>(asked.size() % 3);
    result.samples = {(is_best ? best_ : standard_) * wobble};
    return result;
  }
  double devices(const tune::Config&) const override { return 8; }

  std::string asked;
  std::vector<std::int64_t> numbers;
  bool fail_best = false;

 private:
  const MadeUpStudy& study_;
  double best_, standard_;
};

CheckResult check(const MadeUpStudy& study, double best, double standard) {
  FakeEvaluator evaluator(study, best, standard);
  return check_recipe(evaluator, study.conclusion, study.trials, {});
}

TEST(RecipeCheck, LaunchesPairsInAlternatingOrderWithFreshNumbers) {
  const MadeUpStudy study = usual_study();
  FakeEvaluator evaluator(study, 51000, 41500);
  const CheckResult result = check_recipe(evaluator, study.conclusion, study.trials, {});
  EXPECT_EQ(evaluator.asked, "dBBddB");
  EXPECT_GT(evaluator.numbers.front(), study.trials.back().number);
  EXPECT_EQ(result.best.size(), 3u);
  EXPECT_EQ(result.standard.size(), 3u);
  EXPECT_EQ(result.gain_percent.launches, 3);
  EXPECT_DOUBLE_EQ(result.gpu_seconds, 6 * 10 * 8);
}

TEST(RecipeCheck, TheSameGainHolds) {
  const CheckResult result = check(usual_study(), 51234, 41500);
  EXPECT_EQ(result.verdict, CheckVerdict::kHolds) << result.sentence;
  EXPECT_TRUE(result.ok());
  EXPECT_NEAR(result.gain_percent.value, 23.4, 3);
}

TEST(RecipeCheck, AGainThatIsGoneIsNoticed) {
  const CheckResult result = check(usual_study(), 42000, 41500);
  EXPECT_EQ(result.verdict, CheckVerdict::kFaded) << result.sentence;
  EXPECT_FALSE(result.ok());
  EXPECT_NE(result.sentence.find("Tune again"), std::string::npos);
}

TEST(RecipeCheck, ALargerGainIsSaidAndStillGood) {
  EXPECT_EQ(check(usual_study(), 65000, 41500).verdict, CheckVerdict::kBetter);
}

TEST(RecipeCheck, ASmallGainThatThreePairsCannotShowIsUnclear) {
  MadeUpStudy study = usual_study();
  study.conclusion.gain->percent = {1.2, 0.2, 2.2, 5};
  const CheckResult result = check(study, 41700, 41500);
  EXPECT_EQ(result.verdict, CheckVerdict::kUnclear) << result.sentence;
  EXPECT_FALSE(result.ok());
}

// Launches that lie 20% apart overlap with nearly everything: that does not confirm anything.
TEST(RecipeCheck, AnOverlapOfWideIntervalsIsNoiseAndSaysHowManyPairsWouldTell) {
  MadeUpStudy study = usual_study();
  study.trials.clear();  // no spread of the study's: the pairs alone
  const std::vector<double> standard{41500, 41500, 41500, 41500}, best{51500, 45500, 58000, 50500};
  const CheckResult wide = judge_check(study.conclusion, study.trials, best, standard);
  EXPECT_GT(wide.gain_percent.low, 0) << "a gain, but of what size?";
  EXPECT_LT(wide.gain_percent.low, 23.4 / 2);
  EXPECT_EQ(wide.verdict, CheckVerdict::kUnclear) << wide.sentence;
  EXPECT_FALSE(wide.ok());
  ASSERT_GT(wide.more_pairs, 0);
  EXPECT_NE(wide.sentence.find("Unclear, within noise"), std::string::npos) << wide.sentence;
  EXPECT_NE(wide.sentence.find("overlap from +21.0% to +25.8%"), std::string::npos) << wide.sentence;
  EXPECT_NE(wide.sentence.find("--pairs " + std::to_string(4 + wide.more_pairs)), std::string::npos) << wide.sentence;
  // With about so many pairs of the same spread the answer is there.
  const auto repeated = [&](std::size_t pairs) {
    std::vector<double> more;
    for (std::size_t i = 0; i < pairs; ++i) more.push_back(best[i % best.size()]);
    return judge_check(study.conclusion, study.trials, more, std::vector<double>(pairs, 41500));
  };
  EXPECT_EQ(repeated(4 * (static_cast<std::size_t>(wide.more_pairs) / 4 + 2)).verdict, CheckVerdict::kHolds);
}

TEST(RecipeCheck, NoPairsHelpWhereTheStudyItselfCannotTell) {
  MadeUpStudy study = usual_study();
  study.trials.clear();
  study.conclusion.gain->percent = {8, -2, 18, 3};
  const CheckResult check = judge_check(study.conclusion, study.trials, {42300, 42700, 42400}, {41500, 41500, 41500});
  EXPECT_EQ(check.verdict, CheckVerdict::kUnclear) << check.sentence;
  EXPECT_EQ(check.more_pairs, 0);
  EXPECT_NE(check.sentence.find("the study's own interval is too wide"), std::string::npos) << check.sentence;
}

TEST(RecipeCheck, ASettingThatNoLongerRunsEndsTheCheck) {
  const MadeUpStudy study = usual_study();
  FakeEvaluator evaluator(study, 51000, 41500);
  evaluator.fail_best = true;
  const CheckResult result = check_recipe(evaluator, study.conclusion, study.trials, {});
  EXPECT_EQ(result.verdict, CheckVerdict::kDoesNotRun);
  EXPECT_NE(result.sentence.find("CUDA out of memory"), std::string::npos);
  EXPECT_EQ(evaluator.asked, "dB");
}

TEST(RecipeCheck, ReadsBackFromJson) {
  const CheckResult result = check(usual_study(), 51234, 41500);
  const auto back = check_from_json(to_json(result));
  ASSERT_TRUE(back);
  EXPECT_EQ(to_json(*back), to_json(result));
  EXPECT_FALSE(check_from_json(nlohmann::json{{"verdict", "odd"}}));
  EXPECT_FALSE(check_from_json(nlohmann::json::parse("{", nullptr, false)));
}

TEST(RecipeCheck, ACheckThatHoldsRenewsTheRecipeAndOneThatFailsWarns) {
  const MadeUpStudy study = usual_study();
  Recipe recipe = make_recipe(study.view());
  const double before = recipe.expires_at;
  CheckResult holds = check(study, 51234, 41500);
  holds.checked_at = recipe.made_at + 80 * 86400;
  add_check(recipe, holds);
  EXPECT_NEAR(recipe.expires_at - before, 80 * 86400, 1);
  EXPECT_TRUE(recipe.warnings.empty());
  EXPECT_NE(to_markdown(recipe).find("Re-checked"), std::string::npos);

  Recipe other = make_recipe(study.view());
  add_check(other, check(study, 42000, 41500));
  ASSERT_FALSE(other.warnings.empty());
  EXPECT_NE(other.warnings[0].find("No longer holds"), std::string::npos);
  EXPECT_DOUBLE_EQ(other.expires_at, before);
}

}  // namespace
}  // namespace lockstep::report
