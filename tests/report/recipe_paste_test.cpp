#include "lockstep/report/recipe/paste.h"

#include <gtest/gtest.h>

#include "lockstep/base/process.h"
#include "lockstep/base/text.h"
#include "lockstep/report/canvas/sheet.h"
#include "made_up_study.h"

namespace lockstep::report {
namespace {

// What a real shell makes of a line: its output.
std::string in_shell(const std::string& line, const char* shell = "bash") {
  SpawnOptions options;
  options.argv = {shell, "-c", line};
  const CommandResult result = run_command(options, 10);
  EXPECT_TRUE(result.status.ok()) << line << "\n" << result.error;
  return result.output;
}

const std::vector<std::string> kNasty{"plain",
                                      "two words",
                                      "it's",
                                      "\"double\"",
                                      "$HOME `id` $(id)",
                                      "back\\slash",
                                      "semi;colon & |",
                                      "",
                                      "-n",
                                      "*?[a]",
                                      "ünïcode",
                                      "tab\tnew\nline",
                                      "quote'\n'mix",
                                      "~/x",
                                      "#no comment",
                                      "!history",
                                      "a=b",
                                      "{1,2}",
                                      "trailing \\",
                                      "\x01\x7f"};

TEST(ShellQuoting, AShellReadsBackExactlyTheText) {
  for (const std::string& text : kNasty)
    EXPECT_EQ(in_shell("printf %s " + shell_quoted(text)), text) << shell_quoted(text);
}

TEST(ShellQuoting, APlainShellToo) {
  for (const std::string& text : kNasty) {
    if (text.find_first_of("\t\n\x01\x7f") != std::string::npos) continue;  // these need $'...'
    EXPECT_EQ(in_shell("printf %s " + shell_quoted(text), "sh"), text) << shell_quoted(text);
  }
}

TEST(ShellQuoting, HarmlessWordsStayBare) {
  EXPECT_EQ(shell_quoted("--mb=8"), "--mb=8");
  EXPECT_EQ(shell_quoted("a,b:/c.d_e-f@g%h+i"), "a,b:/c.d_e-f@g%h+i");
  EXPECT_EQ(shell_quoted(""), "''");
}

MadeUpStudy quoting_study() {
  MadeUpStudy study(R"(
knobs:
  NCCL_ALGO: {choices: [Ring, Tree], default: Ring}
  title: {choices: [a, "it's a title; $(rm) \"x\""], default: a}
  odd-name: {choices: [1, 2], default: 1, target: env}
  workers: {int: [0, 4], default: 0}
  prefetch: {int: [1, 4], default: 2, when: "workers > 0"}
)");
  study.evaluator = {{"kind", "command"},
                     {"command", "printf '%s|' --title={title} --prefetch {prefetch} 'fixed word' {workers}"}};
  return study;
}

TEST(ReadyToPaste, TheCommandRunsWithTheBestValues) {
  const MadeUpStudy study = quoting_study();
  const tune::Config best = study.with({{"NCCL_ALGO", "Tree"},
                                        {"title", "it's a title; $(rm) \"x\""},
                                        {"odd-name", 2},
                                        {"workers", 3},
                                        {"prefetch", 4}});
  const std::vector<Snippet> snippets = ready_to_paste(study.view(), best);
  ASSERT_GE(snippets.size(), 2u);
  EXPECT_EQ(in_shell(snippets[0].text), "--title=it's a title; $(rm) \"x\"|--prefetch|4|fixed word|3|");
  EXPECT_NE(snippets[0].text.find("NCCL_ALGO=Tree"), std::string::npos);
  EXPECT_EQ(snippets[0].text.find("LOCKSTEP_TRIAL"), std::string::npos) << snippets[0].text;
  EXPECT_EQ(snippets[1].text, "export NCCL_ALGO=Tree\n");
}

TEST(ReadyToPaste, VariablesReachTheProgramEvenUnderNamesNoShellTakes) {
  MadeUpStudy study = quoting_study();
  study.evaluator["command"] = "env";
  const std::string environment =
      in_shell(ready_to_paste(study.view(), study.with({{"odd-name", 2}, {"NCCL_ALGO", "Tree"}}))[0].text);
  EXPECT_NE(environment.find("odd-name=2\n"), std::string::npos);
  EXPECT_NE(environment.find("NCCL_ALGO=Tree\n"), std::string::npos);
}

TEST(ReadyToPaste, InactiveKnobsAreLeftOut) {
  const MadeUpStudy study = quoting_study();
  const std::string line = ready_to_paste(study.view(), study.space.default_config())[0].text;
  EXPECT_EQ(line.find("prefetch"), std::string::npos) << line;
}

TEST(ReadyToPaste, AutoMeansNotSet) {
  MadeUpStudy study(
      "knobs:\n  NCCL_ALGO: {choices: [auto, Ring], default: auto}\n  micro: {int: [1, 4], target: batch.micro}\n");
  for (const nlohmann::json& evaluator : {nlohmann::json{{"kind", "command"}, {"command", "env"}},
                                          nlohmann::json{{"kind", "engine"}, {"job", "gone.yaml"}}}) {
    study.evaluator = evaluator;
    const std::vector<Snippet> snippets = ready_to_paste(study.view(), study.space.default_config());
    EXPECT_EQ(snippets.at(0).text.find("NCCL_ALGO"), std::string::npos) << snippets[0].text;
    EXPECT_EQ(snippets.at(1).text, "unset NCCL_ALGO\n");
  }
}

TEST(ReadyToPaste, AJobGetsOverridesAndEnvironment) {
  MadeUpStudy study(R"(
knobs:
  NCCL_ALGO: {choices: [Ring, Tree], default: Ring}
  micro_batch: {choices: [1, 8], default: 1}
)");
  study.evaluator = {{"kind", "engine"}, {"job", "gone job.yaml"}, {"overrides", {"steps=20"}}};
  const std::vector<Snippet> snippets =
      ready_to_paste(study.view(), study.with({{"NCCL_ALGO", "Tree"}, {"micro_batch", 8}}));
  EXPECT_EQ(snippets.at(0).text, "NCCL_ALGO=Tree lockstep train 'gone job.yaml' steps=20 batch.micro=8\n");
}

TEST(ReadyToPaste, ARealJobIsOverriddenAsItsTrialsWere) {
  MadeUpStudy study(R"(
knobs:
  ranks: {choices: [1, 2, 4], default: 2}
  micro_batch: {choices: [1, 2, 4, 8], default: 2}
)");
  const std::string job = LOCKSTEP_SOURCE_DIR "/specs/jobs/tune-cpu.yaml";
  study.evaluator = {{"kind", "engine"}, {"job", job}};
  const std::string line = ready_to_paste(study.view(), study.with({{"ranks", 4}, {"micro_batch", 8}})).at(0).text;
  EXPECT_NE(line.find("cluster=1x4xcpu"), std::string::npos) << line;
  EXPECT_NE(line.find("batch.micro=8"), std::string::npos) << line;
}

TEST(ShellLines, BreakBetweenWordsOnlyAndMeanTheSame) {
  const std::string line =
      "printf '%s|' one 'two words that stay together' $'a\\'b c' \"d e\" six seven eight nine ten";
  const std::vector<std::string> lines = shell_lines(line, 24);
  ASSERT_GT(lines.size(), 3u);
  for (std::size_t i = 0; i + 1 < lines.size(); ++i) EXPECT_TRUE(lines[i].ends_with(" \\")) << lines[i];
  EXPECT_EQ(in_shell(join(lines, "\n")), in_shell(line));
}

}  // namespace
}  // namespace lockstep::report
