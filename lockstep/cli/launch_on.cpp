#include "lockstep/cli/launch_on.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/cli/engine_library.h"
#include "lockstep/cli/launch_follow.h"
#include "lockstep/elastic/node_list.h"
#include "lockstep/elastic/store.h"
#include "lockstep/plan/verdict.h"
#include "lockstep/planner/planner.h"
#include "lockstep/spec/discovery.h"
#include "lockstep/spec/job.h"
#include "lockstep/spec/job_reader.h"
#include "lockstep/telemetry/recorder.h"
#include "lockstep/telemetry/run_store.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using schedulers::LaunchSettings;
using schedulers::Scheduler;
using schedulers::Submission;

// Where relative paths of a job lead that runs in an image; nothing is there.
constexpr const char* kNowhere = "/lockstep-relative-path";
constexpr const char* kDeepBelow = "/1/2/3/4/5/6/7/8";  // `..` does not lead out of it

void move_sources(YamlNode& node, const fs::path& directory) {
  if (node.source) node.source = std::make_shared<YamlSource>(YamlSource{node.source->name, directory});
  for (YamlNode& item : node.items) move_sources(item, directory);
  for (YamlNode::Entry& entry : node.entries) move_sources(entry.value, directory);
}

// Paths are made absolute here; in an image they must be absolute already, as they are those of the image.
std::string job_text(YamlNode tree, const std::string& name, bool in_image) {
  if (in_image) move_sources(tree, std::string(kNowhere) + kDeepBelow);
  std::string text = spec::to_yaml(spec::read_job(tree, name));
  const std::size_t found = text.find(kNowhere);
  if (found == std::string::npos) return text;
  const std::string path = text.substr(found, text.find_first_of("\"'\n,}", found) - found);
  throw bad_input(fmt::format("a path of the job is relative (it ends in `{}`), and the job runs in an image",
                              printable(fs::path(path).filename().string())),
                  "write paths as they are in the image, from / on");
}

void require_runnable(const spec::Job& job) {
  const plan::Plan plan = job.plan_file.empty() ? planner::make_plan(job, nullptr) : plan::load_plan(job.plan_file);
  spec::Job planned = job;
  plan::follow(planned, plan.best);
  plan::require_runnable(plan::run_of(planned, plan.best));
}

std::vector<std::string> forwarded_flags(const TrainOptions& train) {
  std::vector<std::string> flags = {"--json"};
  const std::pair<const char*, const std::string*> values[] = {{"--profile", &train.profile},
                                                               {"--backend", &train.backend},
                                                               {"--interface", &train.interface},
                                                               {"--chaos", &train.chaos}};
  for (const auto& [flag, value] : values) {
    if (!value->empty()) flags.push_back(fmt::format("{}={}", flag, *value));
  }
  const std::pair<const char*, const std::string*> files[] = {
      {"--plan", &train.plan_file}, {"--export", &train.export_folder}, {"--tensorboard", &train.tensorboard}};
  for (const auto& [flag, value] : files) {
    if (!value->empty()) flags.push_back(fmt::format("{}={}", flag, fs::absolute(*value).string()));
  }
  if (train.resuming) flags.push_back("--resume=" + (train.resume.empty() ? std::string("auto") : train.resume));
  if (train.accept_changes) flags.emplace_back("--accept-changes");
  if (train.no_record) flags.emplace_back("--no-record");
  if (train.general_step) flags.emplace_back("--general-step");
  if (train.report_steps) flags.emplace_back("--report-steps");
  return flags;
}

Submission make_submission(const std::string& name, const LaunchSettings& settings) {
  Submission submission;
  submission.run = telemetry::make_run_id(name);
  submission.name = name;
  submission.token = elastic::make_token();
  submission.folder = fs::absolute(telemetry::run_folder(telemetry::home_directory(), submission.run));
  submission.directory = fs::current_path();
  submission.lockstep = executable_path().string();
  submission.settings = settings;
  return submission;
}

void show_script(const schedulers::Script& script, const Submission& submission, const std::string& on, bool as_json) {
  json files = json::array();
  std::vector<schedulers::File> all = script.files;
  if (submission.job) all.insert(all.begin(), {"job.yaml", *submission.job, false});
  for (const schedulers::File& file : all) {
    const std::string path = (submission.folder / file.name).string();
    files.push_back({{"path", path}, {"text", file.secret ? "(secret)" : file.text}});
    if (!as_json) fmt::print("# {}\n{}\n", path, file.secret ? "(secret)\n" : file.text);
  }
  if (as_json) {
    fmt::print("{}\n", json{{"schema", "lockstep.submission_script/1"},
                            {"on", on},
                            {"run", submission.run},
                            {"files", files},
                            {"commands", script.commands},
                            {"notes", script.notes}}
                           .dump(1));
    return;
  }
  for (const auto& command : script.commands) {
    std::vector<std::string> words;
    words.reserve(command.size());
    for (const std::string& word : command) words.push_back(shell_quoted(word));
    fmt::print("$ {}\n", join(words, " "));
  }
  for (const std::string& note : script.notes) fmt::print("# {}\n", note);
}

void write_files(const schedulers::Script& script, const Submission& submission) {
  make_folders(submission.folder);
  if (submission.job) write_file_atomically(submission.job_file(), *submission.job);
  for (const schedulers::File& file : script.files) {
    const fs::path path = submission.folder / file.name;
    if (file.secret) write_file_atomically(path, "");  // the mode first, then what must not be read
    if (file.secret) ::chmod(path.c_str(), S_IRUSR | S_IWUSR);
    write_file_atomically(path, file.text);
  }
}

// The nodes fill in who they are when they write to the same store; until then, and elsewhere, this is what is known.
void record_begin(const Submission& submission, const std::string& on) {
  telemetry::RunInfo info;
  info.id = submission.run;
  info.name = submission.name;
  info.world = static_cast<int>(submission.nodes * submission.ranks_per_node);
  info.job_yaml = submission.job.value_or("");
  info.versions = {{"lockstep", LOCKSTEP_VERSION}};
  info = telemetry::describe_this_process(info);
  info.host = on;
  info.pid = info.pid_started = 0;
  const auto recorder = telemetry::open_recorder(telemetry::home_directory(), submission.run, -1);
  recorder->begin_run(info);
  recorder->flush(5.0);
}

void record_refusal(const Submission& submission, const std::string& why) {
  const auto recorder = telemetry::open_recorder(telemetry::home_directory(), submission.run, -1);
  recorder->end_run(telemetry::RunStatus::kFailed, "not submitted: " + why, json::object());
  recorder->flush(5.0);
}

struct Wishes {
  bool dry_run = false, json = false, record = true;
};

int submit(const Submission& submission, const std::string& on, const LaunchOnOptions& options, const Wishes& wishes) {
  const auto scheduler = schedulers::make_scheduler(on, submission.settings);
  if (options.detach && scheduler->ends_with_submitter()) {
    throw bad_input(fmt::format("--detach: a run on {} ends with this process", on), "leave it out; use nohup or tmux");
  }
  const schedulers::Script script = scheduler->script(submission);
  if (wishes.dry_run) {
    show_script(script, submission, on, wishes.json);
    return 0;
  }
  if (wishes.record) telemetry::check_home(telemetry::home_directory());
  write_files(script, submission);
  if (wishes.record) record_begin(submission, on);
  Followed followed{on, {}, submission.name, wishes.record};
  try {
    followed.submitted = scheduler->submit(submission);
  } catch (const UserError& error) {
    if (wishes.record) record_refusal(submission, error.what());
    throw;
  }
  save(followed);
  fmt::print(wishes.json ? stderr : stdout, "submitted to {} as {}, run {}\n", on, followed.submitted.id,
             submission.run);
  for (const std::string& note : script.notes) fmt::print(stderr, "lockstep: note: {}\n", note);
  if (!options.detach) return follow(*scheduler, followed, {wishes.json, options.cancel_on_interrupt});
  if (wishes.json) {
    fmt::print(
        "{}\n",
        json{{"schema", "lockstep.submitted/1"}, {"on", on}, {"id", followed.submitted.id}, {"run", submission.run}}
            .dump());
  } else {
    fmt::print("\nNext: lockstep launch --attach {}\n", submission.run);
  }
  return 0;
}

}  // namespace

void add_launch_on_options(CLI::App& verb, LaunchOnOptions& options) {
  std::vector<std::string> names = schedulers::scheduler_names();
  names.emplace_back("local");
  verb.add_option(
          "--on", options.on,
          "Submit it there: " + join(names, ", ") + " (default: the job file's launch.on; docs/reference/launch.md)")
      ->check(CLI::IsMember(names));
  verb.add_option("--hostfile", options.hostfile, "--on ssh, mpi: the machines, one per line: n1 slots=4");
  verb.add_flag("--detach", options.detach, "--on: submit and return");
  verb.add_flag("--cancel-on-interrupt", options.cancel_on_interrupt,
                "--on: Ctrl-C cancels the run (default: it goes on, and following it ends)");
  verb.add_option("--attach", options.attach, "Follow a run that was submitted before: its id, or last");
  verb.add_option("--cancel", options.cancel, "Cancel a run that was submitted before; it saves first");
}

std::string scheduler_asked(const LaunchOnOptions& options, const LaunchSettings& settings) {
  std::string on = options.on;
  const bool listed = options.nodes.find_first_not_of("0123456789") != std::string::npos;  // else how many, or nothing
  if (on.empty() && std::getenv("LOCKSTEP_SUBMITTED_RUN") == nullptr && !listed && !elastic::find_nodes("", -1)) {
    on = settings.on;
  }
  if (on != "local" && !on.empty()) return on;
  if (!options.hostfile.empty()) {
    throw bad_input("--hostfile names machines, and nothing says how to start there", "add --on ssh or --on mpi");
  }
  if (options.detach || options.cancel_on_interrupt) {
    throw bad_input("--detach and --cancel-on-interrupt are about a run on a scheduler", "add --on, or leave them out");
  }
  return "";
}

LaunchSettings launch_settings(const LaunchOnOptions& options, const YamlNode* section) {
  LaunchSettings settings = schedulers::read_settings(section);
  if (!options.hostfile.empty()) settings.hosts = schedulers::read_hostfile(options.hostfile);
  const bool counts = options.nodes.find_first_not_of("0123456789") == std::string::npos;
  if (options.on.empty() || counts) return settings;
  if (options.on != "ssh" && options.on != "mpi") {
    throw bad_input(fmt::format("--nodes: {} chooses the nodes itself", options.on), "leave it out");
  }
  settings.hosts.clear();
  for (const std::string& name : elastic::hosts_of(options.nodes)) {
    if (!schedulers::is_host_name(name)) throw bad_input("`" + printable(name) + "` is not the name of a machine", "");
    settings.hosts.push_back({name, 0});
  }
  return settings;
}

int launch_job_on(const TrainOptions& train, const LaunchOnOptions& options) {
  // Relative paths become absolute: the nodes read another file, from another folder.
  const std::string file = fs::absolute(train.job_file).string();
  const YamlNode tree = spec::load_job_tree(file, train.overrides);
  const LaunchSettings settings = launch_settings(options, tree.find("launch"));
  const std::string on = scheduler_asked(options, settings);
  const std::string stem = fs::path(file).stem().string();
  const spec::Job job = spec::read_job(tree, stem);
  if (job.cluster.groups.size() != 1) {
    throw bad_input("the job's cluster has unlike nodes, which agents cannot tell apart yet", "launch on alike nodes");
  }
  if (settings.gpus_per_node > 0) {
    throw bad_input("launch.gpus_per_node is for foreign programs", "the job's cluster says how many GPUs a node has");
  }
  if (job.cluster.name.rfind(spec::kDiscoveredName, 0) == 0) {
    throw bad_input("cluster: auto is what this machine sees, and the job runs elsewhere",
                    "write the cluster of the nodes: cluster=4x8xH100");
  }
  require_runnable(job);
  Submission submission = make_submission(job.name, settings);
  submission.job = job_text(tree, stem, !settings.image.empty());
  submission.flags = forwarded_flags(train);
  const spec::NodeGroup& group = job.cluster.groups.front();
  submission.nodes = group.nodes;
  submission.ranks_per_node = group.devices_per_node;
  if (!group.device.is_cpu()) submission.device = group.device.kind;
  return submit(submission, on, options, {train.dry_run, train.json, !train.no_record});
}

int launch_program_on(const ForeignProgram& program, const LaunchOnOptions& options, const LaunchSettings& settings) {
  const std::string on = scheduler_asked(options, settings);
  if (settings.gpus_per_node == 0 && on != "ssh" && on != "mpi") {
    fmt::print(stderr, "lockstep: note: launch.gpus_per_node is not set: no GPU is asked for\n");
  }
  Submission submission = make_submission(program.name, settings);
  submission.flags = program.flags;
  submission.command = program.command;
  submission.nodes = program.nodes;
  submission.ranks_per_node = program.ranks_per_node;
  submission.device = program.device;
  return submit(submission, scheduler_asked(options, settings), options,
                {program.dry_run, program.json, program.record});
}

int run_verb_on(const std::string& verb, const std::vector<std::string>& flags, std::int64_t nodes,
                const LaunchOnOptions& options, LaunchSettings settings) {
  const std::string on = scheduler_asked(options, settings);
  if (nodes == 0) nodes = static_cast<std::int64_t>(settings.hosts.size());
  settings.spares = 0;
  Submission submission = make_submission(verb, settings);
  submission.verb = verb;
  submission.flags = flags;
  submission.nodes = nodes;
  const auto scheduler = schedulers::make_scheduler(on, settings);
  write_files(scheduler->script(submission), submission);
  const Followed followed{on, scheduler->submit(submission), verb, false};
  const int code = follow(*scheduler, followed, {.cancel_on_interrupt = true, .only_log = true});
  const bool answered = code == 0 || code == static_cast<int>(ExitCode::kEnvironment);
  if (answered || code == static_cast<int>(ExitCode::kInterrupted)) return code;
  throw environment_error(fmt::format("no answer from the first node on {}", on),
                          "see above what it says; is the machine up, and lockstep installed there?");
}

int attach_to(const LaunchOnOptions& options, bool json) {
  const Followed followed = load_followed(options.attach);
  const auto scheduler = schedulers::make_scheduler(followed.on, {});
  if (scheduler->ends_with_submitter()) {
    throw bad_input(fmt::format("a run on {} lives with the process that started it", followed.on),
                    "look at it with `lockstep report " + followed.submitted.run + "`");
  }
  return follow(*scheduler, followed, {json, options.cancel_on_interrupt});
}

int cancel_submitted(const LaunchOnOptions& options, bool json) {
  const Followed followed = load_followed(options.cancel);
  const auto scheduler = schedulers::make_scheduler(followed.on, {});
  if (scheduler->ends_with_submitter()) {
    throw bad_input(fmt::format("a run on {} lives with the process that started it", followed.on), "Ctrl-C there");
  }
  scheduler->cancel(followed.submitted);
  if (json)
    fmt::print("{}\n", nlohmann::json{{"schema", "lockstep.cancelled/1"}, {"run", followed.submitted.run}}.dump());
  if (!json) fmt::print("cancelled {} ({} {})\n", followed.submitted.run, followed.on, followed.submitted.id);
  return 0;
}

}  // namespace lockstep::cli
