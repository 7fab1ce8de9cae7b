// What is known of a plugin's file before it is opened, and how a job that names one is written and read again.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/nn/model.h"
#include "lockstep/spec/job.h"
#include "lockstep/spec/job_identity.h"

namespace lockstep::spec {
namespace {

const std::string kWaves = LOCKSTEP_BUILD_DIR "/tests/libwaves.so";

std::string job_text(const std::string& file = kWaves, const std::string& arch = "mixer") {
  return "model:\n  plugin: " + file + "\n  arch: " + arch +
         "\n  loss: focal\n  loss_options: {gamma: 1}\n  layers: 2\ncluster: 1x1xcpu\ndata:\n  plugin: " + file +
         "\n  kind: waves\n  path: some/file\n  flag: true\n  least: -1\n  name: \"true\"\noptimizer: {plugin: " +
         file + ", schedule: inverse_power, schedule_options: {power: 1}}\nbatch: {micro: 8}\nsteps: 6\n";
}

template <class Call>
std::string complaint(Call call) {
  try {
    call();
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

void expect_in(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

// A copy of the template's plugin with one of its strings changed, as another build would have it.
std::string changed_copy(const TemporaryFolder& folder, const std::string& from, const std::string& to) {
  std::string bytes = read_file(kWaves);
  EXPECT_EQ(from.size(), to.size());
  for (std::size_t at = bytes.find(from); at != std::string::npos; at = bytes.find(from, at + 1)) {
    bytes.replace(at, from.size(), to);
  }
  const std::string file = (folder.path() / "libchanged.so").string();
  write_file_atomically(file, bytes);
  return file;
}

TEST(PluginFiles, what_it_registers_is_known_without_opening_it) {
  const PluginFile file = look_at_plugin(kWaves);
  EXPECT_EQ(file.interface, 1);
  EXPECT_EQ(file.torch.substr(0, 1).find_first_not_of("0123456789"), std::string::npos);
  EXPECT_EQ(file.names.at(PluginKind::kModel), std::vector<std::string>{"mixer"});
  EXPECT_EQ(file.names.at(PluginKind::kDataset), std::vector<std::string>{"waves"});
  EXPECT_EQ(file.names.at(PluginKind::kLoss), std::vector<std::string>{"focal"});
  EXPECT_EQ(file.names.at(PluginKind::kMetric), std::vector<std::string>{"top2"});
  EXPECT_EQ(file.names.at(PluginKind::kSchedule), std::vector<std::string>{"inverse_power"});
}

TEST(PluginFiles, a_job_reads_back_to_the_same) {
  const Job job = parse_job(job_text(), "jobs/mine.yaml");
  EXPECT_EQ(job.model.arch, Arch::kPlugin);
  EXPECT_EQ(job.model.script.own_loss.name, "focal");
  EXPECT_EQ(job.data.kind, DataKind::kPlugin);
  EXPECT_EQ(job.data.path, (std::filesystem::current_path() / "some/file").string());
  EXPECT_EQ(job.optimizer.schedule, ScheduleKind::kPlugin);
  Job again = parse_job(to_yaml(job), "again");
  again.name = job.name;
  EXPECT_EQ(again, job);
  EXPECT_EQ(to_yaml(again), to_yaml(job));
  EXPECT_EQ(again.data.path, job.data.path);
  EXPECT_EQ(again.model.script.plugin.digest, job.model.script.plugin.digest);
}

TEST(PluginFiles, options_are_identity_and_a_digest_is_shared) {
  const Job before = parse_job(job_text(), "job"), now = [] {
    Job job = parse_job(job_text(), "job");
    job.model.script.plugin.digest = "built again";
    return job;
  }();
  EXPECT_EQ(before, now);
  const auto changes = changes_between(before, now);
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_EQ(changes[0].key, "model.plugin_digest");
  EXPECT_FALSE(is_identity(changes[0].key));
  EXPECT_TRUE(is_shared_by_ranks(changes[0].key));
  EXPECT_TRUE(is_identity("model.layers"));
  EXPECT_FALSE(is_shared_by_ranks("data.plugin"));
}

TEST(PluginFiles, a_name_that_it_does_not_register_is_refused_with_the_nearest) {
  expect_in(complaint([] { parse_job(job_text(kWaves, "mixr"), "job.yaml"); }),
            "job.yaml:3:9: " + kWaves + " has no model `mixr`; did you mean `mixer`?");
}

TEST(PluginFiles, another_interface_another_libtorch_and_other_files_are_refused) {
  const TemporaryFolder folder;
  const std::string other = changed_copy(folder, "built:1:", "built:9:");
  expect_in(complaint([&] { parse_job(job_text(other), "job.yaml"); }), "was built for plugin interface 9");
  expect_in(complaint([&] { parse_job(job_text(other), "job.yaml"); }), "job.yaml:2:11: ");
  const std::string torch = look_at_plugin(kWaves).torch;
  std::string wrong = torch;
  wrong.back() = wrong.back() == '7' ? '8' : '7';
  const std::string elsewhere = changed_copy(folder, ":" + torch, ":" + wrong);
  const Job job = parse_job(job_text(elsewhere), "job.yaml");
  const std::string said = complaint([&] { nn::build_model(job.model); });
  expect_in(said, "was built against libtorch " + wrong + ", and the engine uses libtorch " + torch);
  expect_in(said, "build the plugin again");
  write_file_atomically(folder.path() / "text.so", "not a plugin");
  expect_in(complaint([&] { parse_job(job_text((folder.path() / "text.so").string()), "job.yaml"); }),
            "is no Lockstep plugin");
  expect_in(complaint([&] { parse_job(job_text("/no/such.so"), "job.yaml"); }), "there is no plugin /no/such.so");
}

TEST(PluginFiles, a_file_that_changed_since_the_job_was_read_is_refused) {
  const TemporaryFolder folder;
  const std::string copy = changed_copy(folder, "built:1:", "built:1:");
  const Job job = parse_job(job_text(copy), "job.yaml");
  std::ofstream(copy, std::ios::app) << "x";
  expect_in(complaint([&] { nn::build_model(job.model); }), "has changed");
}

TEST(PluginFiles, an_option_that_the_model_does_not_know_is_refused_where_it_stands) {
  std::string text = job_text();
  text.replace(text.find("  layers: 2"), 11, "  layrs: 2");
  const Job job = parse_job(text, "job.yaml");
  expect_in(complaint([&] { nn::build_model(job.model); }),
            "job.yaml:6:3: unknown key `layrs` in model; did you mean `layers`?");
}

TEST(PluginFiles, sections_without_their_names_are_refused) {
  const std::string tail = "\ncluster: 1x1xcpu\ndata: {kind: mnist, path: x}\nsteps: 1\n";
  expect_in(complaint([&] { parse_job("model: {plugin: " + kWaves + "}" + tail, "j"); }), "no `arch`");
  expect_in(complaint([&] { parse_job("model: {arch: plugin}" + tail, "j"); }), "{plugin: FILE.so, arch: NAME}");
  const std::string head = "model: {plugin: " + kWaves + ", arch: mixer}\ncluster: 1x1xcpu\nsteps: 1\n";
  expect_in(complaint([&] { parse_job(head + "data: {plugin: " + kWaves + "}", "j"); }), "no `kind`");
  expect_in(complaint([&] { parse_job(head + "data: {kind: plugin, path: x}", "j"); }), "its own kind");
  const std::string data = "data: {plugin: " + kWaves + ", kind: waves}\n";
  expect_in(complaint([&] { parse_job(head + data + "optimizer: {schedule: cosin}", "j"); }), "did you mean `cosine`");
  expect_in(complaint([&] { parse_job(head + data + "optimizer: {schedule_options: {a: 1}}", "j"); }), "of a plugin");
  expect_in(complaint([&] { parse_job(head + data + "optimizer: {plugin: " + kWaves + "}", "j"); }),
            "no schedule of it");
}

}  // namespace
}  // namespace lockstep::spec
