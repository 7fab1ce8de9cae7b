// Job files with random damage: every one is either a Job or a UserError with one line; nothing else may come out.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/spec/job.h"
#include "lockstep/spec/presets.h"
#include "mutation.h"

namespace lockstep::spec {
namespace {

using lockstep::testing::mutate;
using lockstep::testing::Random;

enum class Outcome { kJob, kUserError };

Outcome outcome_of(const std::string& text) {
  try {
    const Job job = parse_job(text, "mutant.yaml");
    EXPECT_EQ(parse_job(to_yaml(job), "mutant.yaml"), job);  // whatever is accepted can be stored
    EXPECT_GT(parameter_count(job.model), 0);
    return Outcome::kJob;
  } catch (const UserError& error) {
    const std::string what = error.what();
    EXPECT_EQ(what.find('\n'), std::string::npos) << what;
    EXPECT_LT(what.size(), 2000u);
    return Outcome::kUserError;
  }
}

std::vector<std::string> corpus() {
  std::vector<std::string> texts;
  for (const EmbeddedSpec& spec : embedded_jobs()) {
    texts.emplace_back(spec.text);
    texts.push_back(to_yaml(parse_job(texts.back(), "seed.yaml")));  // every key, block style
  }
  return texts;
}

TEST(JobMutation, every_damaged_file_is_a_job_or_a_user_error) {
  const std::vector<std::string> texts = corpus();
  Random random(20260101);
  int jobs = 0, errors = 0;
  for (int i = 0; i < 2000; ++i) {
    const std::string mutant = mutate(texts[static_cast<std::size_t>(i) % texts.size()], random);
    SCOPED_TRACE(mutant);
    try {
      (outcome_of(mutant) == Outcome::kJob ? jobs : errors) += 1;
    } catch (const std::exception& error) {
      FAIL() << "mutant " << i << " escaped with: " << error.what();
    }
  }
  // Both happen often, so the mutations neither miss nor drown the readers.
  EXPECT_GT(jobs, 100);
  EXPECT_GT(errors, 500);
}

TEST(JobMutation, every_damaged_override_is_a_job_or_a_user_error) {
  const TemporaryFolder folder;
  const std::string file = (folder.path() / "j.yaml").string();
  write_file_atomically(file, find_embedded(embedded_jobs(), "gpt-bytes-demo")->text);
  const std::vector<std::string> seeds = {"batch.micro=4",       "model.layers=2", "optimizer.betas=[0.9, 0.95]",
                                          "tokens=4M",           "layout.dp=4",    "cluster=1x4xcpu",
                                          "checkpoint.every=10m"};
  Random random(7);
  for (int i = 0; i < 500; ++i) {
    const std::string mutant = mutate(seeds[static_cast<std::size_t>(i) % seeds.size()], random);
    SCOPED_TRACE(mutant);
    try {
      load_job(file, {mutant});
    } catch (const UserError&) {
    } catch (const std::exception& error) {
      FAIL() << "override " << i << " escaped with: " << error.what();
    }
  }
}

}  // namespace
}  // namespace lockstep::spec
