#include "lockstep/planner/observations.h"

#include <cmath>
#include <cstdlib>
#include <filesystem>

#include <gtest/gtest.h>

#include "lockstep/planner/rows/observed_rows.h"
#include "lockstep/planner/rows/predict_rows.h"

namespace lockstep::planner {
namespace {

// Layouts of one user's stack on H100: small and large models, ZeRO, tensor and pipeline parallel, recompute.
const std::string kRows =
    "id,hardware,gpus,gpus_per_node,model,arch,layers,hidden,heads,ffn,vocab,seq_len,global_batch_seqs,micro_batch,tp,"
    "pp,"
    "sharding,act_ckpt,precision\n"
    "small,H100,8,8,a,llama,16,2048,16,5632,32000,2048,256,8,1,1,fsdp,none,bf16\n"
    "seven,H100,8,8,b,llama,32,4096,32,11008,32000,4096,64,2,1,1,fsdp,selective,bf16\n"
    "wide,H100,32,8,c,llama,40,5120,40,13824,32000,4096,256,1,2,1,zero1,selective,bf16\n"
    "deep,H100,64,8,d,llama,80,8192,64,28672,32000,4096,256,1,4,8,zero1,full,bf16\n"
    "eight,H100,8,8,e,llama,32,4096,32,14336,128256,8192,32,1,1,1,fsdp,full,fp8\n"
    "old,H100,16,8,f,dense-gpt,24,2048,16,8192,50304,1024,512,16,1,1,none,none,fp16\n";

std::vector<RowQuestion> questions() {
  std::vector<RowQuestion> all;
  for (const PublishedRow& row : read_published_rows(kRows, "rows.csv").rows) all.push_back(*question_of(row).question);
  return all;
}

cost::Profile prior_of(const RowQuestion& question) {
  cost::Profile profile = cost::profile_for("H100");
  profile.fitted->facts = question.facts;
  return profile;
}

double seconds_of(const RowQuestion& question, const cost::Profile& profile) {
  cost::Profile own = profile;
  own.fitted->facts = question.facts;
  return figures_of(question, own)(own).seconds;
}

cost::ObservedRun seen(const RowQuestion& question, double factor, const std::string& name) {
  cost::ObservedRun run = observed_row(name, question, prior_of(question), prior_of(question));
  run.seconds = factor * seconds_of(question, prior_of(question));
  return run;
}

TEST(Posterior, OneRunNeverMakesAnotherPredictionAbsurd) {
  const std::vector<RowQuestion> all = questions();
  for (const double factor : {1e-3, 0.03, 0.2, 0.5, 0.8, 1.0, 1.3, 1.7, 2.0, 3.0, 8.0, 30.0, 1e3}) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      const cost::Posterior posterior(prior_of(all[i]), {seen(all[i], factor, "one")});
      for (const RowQuestion& other : all) {
        const double change = seconds_of(other, posterior.profile()) / seconds_of(other, prior_of(other));
        // Never out of the 90% interval that it had before.
        const double sigma = figures_of(other, prior_of(other))(prior_of(other)).time_sigma;
        EXPECT_LT(std::abs(std::log(change)), 1.6449 * sigma) << "row " << i << " observed at " << factor;
        // At most a third further than the observation itself: another run may depend more on what explains it.
        EXPECT_LT(std::abs(std::log(change)), 1.35 * std::abs(std::log(factor)) + 0.02) << i << " at " << factor;
      }
    }
  }
}

TEST(Posterior, AStalledRunIsAFindingAndMovesNothing) {
  const std::vector<RowQuestion> all = questions();
  std::vector<cost::ObservedRun> runs;
  for (std::size_t i = 0; i < 4; ++i) runs.push_back(seen(all[i], i == 2 ? 9.0 : 1.1, "run" + std::to_string(i)));
  const cost::Posterior posterior(prior_of(all[0]), runs);
  ASSERT_EQ(posterior.verdicts().size(), 4u);
  EXPECT_TRUE(posterior.verdicts()[2].is_outlier());
  EXPECT_FALSE(posterior.verdicts()[0].is_outlier());
  EXPECT_NEAR(seconds_of(all[2], posterior.profile()) / seconds_of(all[2], prior_of(all[2])), 1.1, 0.08);
  const std::vector<std::string> findings = findings_of(posterior.verdicts());
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_NE(findings[0].find("run2"), std::string::npos);
  EXPECT_NE(findings[0].find("stalled"), std::string::npos);
}

TEST(Posterior, ThreeRunsOfAStackTellTheFourth) {
  const std::vector<RowQuestion> all = questions();
  for (std::size_t held_out = 0; held_out < all.size(); ++held_out) {
    std::vector<cost::ObservedRun> runs;
    for (std::size_t i = 0; i < all.size() && runs.size() < 3; ++i) {
      if (i != held_out) runs.push_back(seen(all[i], 1.4, "run" + std::to_string(i)));
    }
    const cost::Posterior posterior(prior_of(all[held_out]), runs);
    EXPECT_NEAR(seconds_of(all[held_out], posterior.profile()) / seconds_of(all[held_out], prior_of(all[held_out])),
                1.4, 0.17)
        << held_out;
  }
}

TEST(Posterior, RunsNarrowWhatIsExpectedAndNeverWidenIt) {
  const std::vector<RowQuestion> all = questions();
  std::vector<cost::ObservedRun> runs;
  const auto figures = figures_of(all[3], prior_of(all[3]));
  double before = figures(prior_of(all[3])).time_sigma;
  for (std::size_t i = 0; i < 3; ++i) {
    runs.push_back(seen(all[i], 1.2, "run" + std::to_string(i)));
    const cost::Posterior posterior(prior_of(all[3]), runs);
    const double now = posterior.spread_of(figures).time;
    EXPECT_LE(now, before * 1.05);  // more runs also say more about how uncertain the profile was
    EXPECT_LT(posterior.profile().fitted->residuals.time, prior_of(all[3]).fitted->residuals.time);
    before = now;
  }
}

TEST(Posterior, TheOrderOfRunsChangesNothing) {
  const std::vector<RowQuestion> all = questions();
  std::vector<cost::ObservedRun> runs{seen(all[0], 1.3, "a"), seen(all[1], 0.9, "b"), seen(all[4], 1.1, "c")};
  const cost::Posterior forward(prior_of(all[0]), runs);
  std::swap(runs[0], runs[2]);
  const cost::Posterior backward(prior_of(all[0]), runs);
  for (const RowQuestion& question : all) {
    EXPECT_NEAR(seconds_of(question, forward.profile()) / seconds_of(question, backward.profile()), 1, 1e-6);
  }
}

TEST(Posterior, ConstantsStayInsideTheirBounds) {
  const std::vector<RowQuestion> all = questions();
  const cost::Posterior posterior(prior_of(all[1]), {seen(all[1], 0.55, "fast"), seen(all[0], 0.55, "fast too")});
  for (const cost::ConstantInfo& info : cost::constant_table()) {
    const double value = posterior.profile().fitted->constants.*info.member;
    const double prior = prior_of(all[1]).fitted->constants.*info.member;
    EXPECT_GE(value, std::min(prior, info.low)) << info.name;
    EXPECT_LE(value, std::max(prior, info.high)) << info.name;
  }
}

TEST(Posterior, WithoutRunsItIsThePrior) {
  const RowQuestion question = questions()[0];
  EXPECT_EQ(cost::Posterior(prior_of(question), {}).profile().fitted, prior_of(question).fitted);
}

class Kept : public testing::Test {
 protected:
  void SetUp() override {
    home_ = std::filesystem::temp_directory_path() / ("observations-" + std::to_string(getpid()));
    std::filesystem::remove_all(home_);
    setenv("LOCKSTEP_HOME", home_.c_str(), 1);
  }
  void TearDown() override {
    unsetenv("LOCKSTEP_HOME");
    unsetenv("LOCKSTEP_NO_OBSERVATIONS");
    std::filesystem::remove_all(home_);
  }
  static PublishedTable table(const std::string& rows) {
    return read_published_rows(
        "id,hardware,gpus,model,seq_len,global_batch_seqs,micro_batch,sharding,act_ckpt,precision,tokens_per_s_per_"
        "gpu\n" +
            rows,
        "rows.csv");
  }
  std::filesystem::path home_;
};

TEST_F(Kept, RowsAreKeptOnceAndChangeWhatIsPredicted) {
  const PublishedTable mine = table(
      "a,H100,8,llama2-7b,4096,64,2,fsdp,selective,bf16,6000\n"
      "b,H100,8,llama2-7b,4096,64,2,fsdp,selective,bf16,\n");
  const KeptRows first = keep_observations(mine);
  EXPECT_EQ(first.added, 1u);
  EXPECT_EQ(first.left_out.size(), 1u);
  EXPECT_EQ(keep_observations(mine).known, 1u);
  const cost::Profile before = cost::profile_for("H100");
  const Conditioned now = conditioned(before);
  EXPECT_EQ(now.runs.size(), 1u);
  EXPECT_NE(now.profile.identity().find("1 observed run: a"), std::string::npos);
  EXPECT_LT(now.profile.fitted->residuals.time, before.fitted->residuals.time);
  switch_observations_off();
  EXPECT_EQ(conditioned(before).profile.fitted, before.fitted);
  unsetenv("LOCKSTEP_NO_OBSERVATIONS");
  EXPECT_EQ(forget_observations("a"), 1u);
  EXPECT_EQ(conditioned(before).profile.fitted, before.fitted);
}

}  // namespace
}  // namespace lockstep::planner
