// What is the same for every scheduler: settings, hostfiles, names, and the text that tells a node what to do.
#include "lockstep/schedulers/submission.h"

#include <gtest/gtest.h>

#include <fstream>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/yaml.h"
#include "lockstep/schedulers/scheduler.h"

namespace lockstep::schedulers {
namespace {

constexpr const char* kHostile[] = {"$(touch owned)",
                                    "`id`",
                                    "a\nb: c",
                                    "'; rm -rf /; '",
                                    "\"quoted\"",
                                    "--flag",
                                    "&anchor *alias",
                                    "-",
                                    "...",
                                    "",
                                    "\xc3\xbc\xc3\xa9",
                                    "${{ x }}",
                                    "a b\tc",
                                    "[1, 2]{}"};

LaunchSettings settings_of(const std::string& yaml) {
  const YamlNode root = parse_yaml("launch:\n" + yaml, "job.yaml");
  return read_settings(root.find("launch"));
}

TEST(Settings, are_read_with_their_units) {
  const LaunchSettings settings = settings_of(
      "  {on: ssh, time: 4h, notice: 2m, spares: 2, memory_per_node: 64GiB, requeue: false, "
      "environment: {NCCL_DEBUG: INFO}}");
  EXPECT_EQ(settings.on, "ssh");
  EXPECT_DOUBLE_EQ(settings.time_seconds, 4 * 3600);
  EXPECT_DOUBLE_EQ(settings.notice_seconds, 120);
  EXPECT_EQ(settings.spares, 2);
  EXPECT_FALSE(settings.requeue);
  EXPECT_EQ(settings.environment.at("NCCL_DEBUG"), "INFO");
}

TEST(Settings, a_wrong_key_is_named_with_the_nearest_one) {
  try {
    settings_of("  {tmie: 4h}");
    FAIL();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("did you mean `time`"), std::string::npos) << error.what();
  }
}

TEST(Settings, variables_of_the_launcher_and_names_that_are_none_are_refused) {
  EXPECT_THROW(settings_of("  {environment: {LOCKSTEP_TOKEN: mine}}"), UserError);
  EXPECT_THROW(settings_of("  {environment: {'A=B;x': y}}"), UserError);
  EXPECT_THROW(settings_of("  {environment: {'1A': y}}"), UserError);
  EXPECT_THROW(settings_of("  {environment: {A: \"x\\ny\"}}"), UserError);
}

TEST(Settings, sections_of_other_schedulers_are_kept_for_them) {
  EXPECT_EQ(settings_of("  {ssh: {port: 22}}").sections.count("ssh"), 1u);
  EXPECT_THROW(make_scheduler("ssh", settings_of("  {ssh: {prot: 22}}")), UserError);
  EXPECT_THROW(settings_of("  {shh: {port: 22}}"), UserError);
}

std::vector<Host> hosts_in(const std::string& text) {
  const TemporaryFolder folder;
  std::ofstream(folder.path() / "hosts") << text;
  return read_hostfile(folder.path() / "hosts");
}

TEST(Hostfile, names_machines_and_slots) {
  const std::vector<Host> hosts =
      hosts_in("# a comment\nn1 slots=4\n\nn2   # one more\n10.0.0.3 slots=2 max_slots=8\n");
  ASSERT_EQ(hosts.size(), 3u);
  EXPECT_EQ(hosts[0], (Host{"n1", 4}));
  EXPECT_EQ(hosts[1], (Host{"n2", 0}));
  EXPECT_EQ(hosts[2], (Host{"10.0.0.3", 2}));
}

TEST(Hostfile, what_could_be_a_flag_or_a_command_is_refused_with_its_line) {
  for (const char* line :
       {"-oProxyCommand=id", "n1;id", "$(id)", "n1 slots=x", "n1 slot=2", "n1 slots=0", "`id`", "a/b"}) {
    try {
      hosts_in(std::string("n0\n") + line + "\n");
      ADD_FAILURE() << line;
    } catch (const UserError& error) {
      EXPECT_NE(std::string(error.what()).find("hosts:2"), std::string::npos) << error.what();
    }
  }
  EXPECT_THROW(hosts_in("# nobody\n"), UserError);
}

TEST(Names, any_text_becomes_one_that_schedulers_take) {
  for (const char* text : kHostile) {
    const std::string dns = dns_label(text), plain = plain_name(text);
    EXPECT_EQ(dns.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-"), std::string::npos) << text;
    ASSERT_FALSE(dns.empty());
    EXPECT_TRUE(std::isalpha(static_cast<unsigned char>(dns.front()))) << dns;
    EXPECT_NE(dns.back(), '-');
    ASSERT_FALSE(plain.empty());
    EXPECT_NE(plain.front(), '-');
  }
  EXPECT_EQ(dns_label("My Job_1"), "my-job-1");
  EXPECT_LE(dns_label(std::string(300, 'a')).size(), 63u);
}

Submission a_job() {
  Submission submission;
  submission.run = "20261116-120000-abcdef-x";
  submission.name = "x";
  submission.job = "name: x\n";
  submission.flags = {"--json"};
  submission.token = "secret";
  submission.lockstep = "/opt/lock step/lockstep";
  submission.folder = "/home/u/runs/x";
  return submission;
}

TEST(Submission, tells_a_node_everything_through_one_text) {
  for (const char* text : kHostile) {
    Submission submission = a_job();
    submission.job = std::string("name: ") + text;
    submission.settings.environment["A"] = text;
    submission.flags = {"--json", text};
    const NodeStart start = node_start_from_json(to_json(submission).dump(-1, ' ', true));
    EXPECT_EQ(start.job, submission.job);
    EXPECT_EQ(start.arguments, (std::vector<std::string>{"launch", kJobPlaceholder, "--json", text}));
    EXPECT_EQ(start.environment.at("A"), text);
    EXPECT_EQ(start.environment.at("LOCKSTEP_TOKEN"), "secret");
    EXPECT_EQ(start.environment.at("LOCKSTEP_SUBMITTED_RUN"), submission.run);
  }
}

TEST(Submission, a_text_that_is_none_is_refused) {
  for (const char* text : {"", "{}", "[]", "nonsense", "{\"schema\":\"lockstep.submission/2\"}",
                           "{\"schema\":\"lockstep.submission/1\",\"run\":\"../../etc\",\"job\":null,\"arguments\":[],"
                           "\"environment\":{}}"}) {
    EXPECT_THROW(node_start_from_json(text), UserError) << text;
  }
}

TEST(Submission, a_foreign_program_comes_after_two_dashes) {
  Submission submission = a_job();
  submission.job.reset();
  submission.flags = {"--nproc", "4"};
  submission.command = {"python3", "train.py", "--lr", "1"};
  EXPECT_EQ(submission.words(""), (std::vector<std::string>{"/opt/lock step/lockstep", "launch", "--nproc", "4", "--",
                                                            "python3", "train.py", "--lr", "1"}));
  submission.settings.image = "img";
  EXPECT_EQ(submission.words("").front(), "lockstep");
}

LaunchSettings two_hosts() {
  LaunchSettings settings;
  settings.hosts = {{"n1", 0}, {"n2", 0}};
  return settings;
}

TEST(Ssh, no_word_of_the_user_is_in_the_command_of_the_other_side) {
  for (const char* text : kHostile) {
    Submission submission = a_job();
    submission.name = text;
    submission.lockstep = text;
    submission.settings = two_hosts();
    submission.settings.environment["A"] = text;
    submission.nodes = 2;
    const Script script = make_scheduler("ssh", submission.settings)->script(submission);
    ASSERT_EQ(script.commands.size(), 2u);
    EXPECT_EQ(script.commands[0].back(),
              "exec sh -c 'IFS= read -r program && exec \"$program\" launch --submission -'");
    EXPECT_EQ(script.commands[1][script.commands[1].size() - 2], "n2");
    EXPECT_EQ(script.commands[1][script.commands[1].size() - 3], "--");
  }
}

TEST(Ssh, too_few_machines_are_refused) {
  Submission submission = a_job();
  submission.nodes = 3;
  EXPECT_THROW(make_scheduler("ssh", two_hosts())->script(submission), UserError);
}

TEST(Ssh, settings_it_cannot_keep_are_refused) {
  LaunchSettings settings = two_hosts();
  settings.image = "img";
  EXPECT_THROW(make_scheduler("ssh", settings), UserError);
  settings.image.clear();
  settings.time_seconds = 60;
  EXPECT_THROW(make_scheduler("ssh", settings), UserError);
}

TEST(Mpi, hands_words_and_the_names_of_variables_to_mpirun) {
  Submission submission = a_job();
  submission.nodes = 2;
  submission.ranks_per_node = 4;
  submission.settings = two_hosts();
  submission.settings.environment["A"] = "$(id)";
  const Script script = make_scheduler("mpi", submission.settings)->script(submission);
  EXPECT_EQ(script.files.at(0).text, "n1 slots=4\nn2 slots=4\n");
  const std::vector<std::string>& words = script.commands.at(0);
  EXPECT_EQ(std::count(words.begin(), words.end(), "$(id)"), 0);
  EXPECT_EQ(std::count(words.begin(), words.end(), "secret"), 0);
  const std::vector<std::string> last(words.end() - 4, words.end());
  EXPECT_EQ(last, (std::vector<std::string>{"/opt/lock step/lockstep", "train", "/home/u/runs/x/job.yaml", "--json"}));
}

TEST(Mpi, what_it_cannot_do_is_refused) {
  LaunchSettings settings = two_hosts();
  settings.spares = 1;
  EXPECT_THROW(make_scheduler("mpi", settings), UserError);
  Submission submission = a_job();
  submission.nodes = 3;
  EXPECT_THROW(make_scheduler("mpi", two_hosts())->script(submission), UserError);
  settings = two_hosts();
  settings.hosts[0].slots = 1;
  submission.nodes = 1;
  submission.ranks_per_node = 2;
  EXPECT_THROW(make_scheduler("mpi", settings)->script(submission), UserError);
}

TEST(Schedulers, an_unknown_one_is_named_with_the_nearest) {
  try {
    make_scheduler("shs", {});
    FAIL();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("ssh"), std::string::npos) << error.what();
  }
}

TEST(Logs, a_file_is_read_from_where_it_was_left_also_when_it_comes_later) {
  const TemporaryFolder folder;
  const auto log = follow_file(folder.path() / "log");
  EXPECT_EQ(log->read(), "");
  std::ofstream out(folder.path() / "log");
  out << "one\n" << std::flush;
  EXPECT_EQ(log->read(), "one\n");
  out << "two" << std::flush;
  EXPECT_EQ(log->read(), "two");
  EXPECT_EQ(log->read(), "");
}

}  // namespace
}  // namespace lockstep::schedulers
