// Slurm: a batch script of constant text; everything the user wrote travels as arguments and environment.
#include "lockstep/schedulers/slurm.h"

#include <fmt/format.h>

#include <fstream>
#include <map>
#include <utility>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/schedulers/all.h"

namespace lockstep::schedulers {
namespace {

namespace fs = std::filesystem;

constexpr double kLookSeconds = 2.0;  // between two questions to Slurm
constexpr double kToolSeconds = 30.0;
constexpr const char* kCancelled = "cancelled";  // in the folder: asked for, so that nothing is started again
constexpr const char* kExitCode = "exit-code";

// Runs on the first node. Arguments: the folder, 1 to requeue, srun's own. When a node is lost, srun's exit code says
// so even if the run was completed; what the agents left behind counts.
constexpr const char* kBatchScript = R"(#!/bin/bash
folder=$1 requeue=$2
shift 2
code=130
if [ ! -e "$folder/cancelled" ]; then
  srun --ntasks-per-node=1 --no-kill --kill-on-bad-exit=0 --open-mode=append "$@" 2>&1 |
    grep --line-buffered -v 'Zero Bytes were transmitted'
  code=${PIPESTATUS[0]}
  for told in 75 130 0; do
    grep -qsx "$told" "$folder/end-$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}-"* && code=$told
  done
fi
if [ "$code" = 75 ] && [ "$requeue" = 1 ] && [ ! -e "$folder/cancelled" ]; then
  echo "lockstep: the run is saved and Slurm starts it again"
  scontrol requeue "$SLURM_JOB_ID" && sleep 120
fi
echo "$code" >"$folder/exit-code.part" && mv "$folder/exit-code.part" "$folder/exit-code"
exit "$code"
)";

// Runs on every node. Arguments: the folder, the agent's words. The step outlives the node of the batch script; the run
// is then over and nobody would give the nodes back.
constexpr const char* kTaskScript = R"(#!/bin/bash
folder=$1
shift
trap : INT TERM USR1
"$@"
code=$?
end=$folder/end-$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}-$SLURM_NODEID
echo "$code" >"$end.part" && mv "$end.part" "$end"
srun=/dev/tcp/$SLURM_SRUN_COMM_HOST/$SLURM_SRUN_COMM_PORT
if [ "$code" = 0 ] && [ "$SLURM_NODEID" != 0 ] && [ -n "$SLURM_SRUN_COMM_PORT" ] &&
  ! timeout 10 bash -c ': <"$0"' "$srun" 2>/dev/null; then
  echo "lockstep: the node of the batch script is gone and the run is done: the others are given back"
  scancel "$SLURM_JOB_ID"
fi
exit "$code"
)";

// Whole lines of all files that the job writes: one of the batch script, one of each node.
class SlurmLog : public LogSource {
 public:
  SlurmLog(fs::path folder, std::string id) : folder_(std::move(folder)), prefix_("slurm-" + std::move(id) + ".") {}

  std::string read() override {
    look_for_files();
    std::string text;
    for (auto& [path, file] : files_) {
      file.rest += file.source->read();
      const std::size_t end = file.rest.rfind('\n');
      if (end == std::string::npos) continue;
      text += file.rest.substr(0, end + 1);
      file.rest.erase(0, end + 1);
    }
    return text;
  }

 private:
  struct Followed {
    std::unique_ptr<LogSource> source;
    std::string rest;
  };

  void look_for_files() {
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(folder_, ignored)) {
      const std::string name = entry.path().filename().string();
      if (!name.starts_with(prefix_) || !name.ends_with(".out") || files_.contains(entry.path())) continue;
      files_[entry.path()].source = follow_file(entry.path());
    }
  }

  const fs::path folder_;
  const std::string prefix_;
  std::map<fs::path, Followed> files_;
};

std::optional<int> number_in(const fs::path& file) {
  std::ifstream stream(file);
  int number = 0;
  return stream >> number ? std::optional(number) : std::nullopt;
}

// What the job left behind itself: the script's word, else that of an agent that completed the run.
std::optional<int> exit_code_in(const Submitted& submitted) {
  if (const auto code = number_in(submitted.folder / kExitCode)) return code;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(submitted.folder, ignored)) {
    if (!entry.path().filename().string().starts_with(fmt::format("end-{}-", submitted.id))) continue;
    if (number_in(entry.path()) == 0) return 0;
  }
  return std::nullopt;
}

Phase phase_of_exit(int code) {
  if (code == 0) return Phase::kDone;
  return code == static_cast<int>(ExitCode::kInterrupted) ? Phase::kCancelled : Phase::kFailed;
}

bool is_waiting(const std::string& state) {
  for (const char* word : {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT",
                           "RESV_DEL_HOLD", "SUSPENDED"}) {
    if (state == word) return true;
  }
  return false;
}

bool is_running(const std::string& state) {
  for (const char* word : {"RUNNING", "COMPLETING", "STAGE_OUT", "SIGNALING", "STOPPED", "RESIZING"}) {
    if (state == word) return true;
  }
  return false;
}

// `exit_code` is Slurm's "75:0": exit code and signal.
State ended_state(const std::string& state, const std::string& exit_code, const std::optional<int>& left_behind) {
  State ended;
  ended.detail = state;
  ended.exit_code = left_behind;
  if (!left_behind && (state == "COMPLETED" || state == "FAILED")) ended.exit_code = std::atoi(exit_code.c_str());
  ended.phase = state == "CANCELLED" ? Phase::kCancelled : Phase::kFailed;
  if (ended.exit_code) ended.phase = phase_of_exit(*ended.exit_code);
  if (ended.phase != Phase::kFailed) ended.detail.clear();  // Slurm calls a run that was stopped FAILED
  return ended;
}

class Slurm : public Scheduler {
 public:
  explicit Slurm(const LaunchSettings& settings) : slurm_(read_slurm_settings(settings)) {}

  Script script(const Submission& submission) const override {
    Script script;
    script.files = {{"slurm-batch.sh", kBatchScript, false}};
    if (submission.settings.image.empty()) script.files.push_back({"slurm-task.sh", kTaskScript, false});
    script.commands = {command(submission)};
    if (submission.settings.cpus_per_node == 0 && !slurm_.exclusive) {
      script.notes.push_back(fmt::format("launch.cpus_per_node is not set: {} CPU{} per node, one for each rank",
                                         submission.ranks_per_node, submission.ranks_per_node == 1 ? "" : "s"));
    }
    if (submission.settings.time_seconds == 0) {
      script.notes.emplace_back("launch.time is not set: the partition's own limit holds");
    }
    return script;
  }

  Submitted submit(const Submission& submission) override {
    require_containers(submission.settings);
    std::map<std::string, std::string> environment = submission.environment();
    environment["LOCKSTEP_TOKEN"] = submission.token;
    return {job_id_of(run_tool(command(submission), environment)), submission.run, submission.folder, {}};
  }

  State state(const Submitted& submitted) override {
    if (submitted.id == looked_for_ && monotonic_seconds() - looked_at_ < kLookSeconds) return last_;
    looked_for_ = submitted.id;
    looked_at_ = monotonic_seconds();
    SpawnOptions options;
    options.argv = {"scontrol", "show", "job", "--oneliner", submitted.id};
    const CommandResult result = run_command(std::move(options), kToolSeconds);
    if (result.status.ok() && !result.timed_out) {
      last_ = read_state(result.output, submitted);
    } else if (result.error.find("Invalid job id") != std::string::npos) {
      last_ = forgotten(submitted);
    }
    return last_;
  }

  std::unique_ptr<LogSource> open_log(const Submitted& submitted) override {
    return std::make_unique<SlurmLog>(submitted.folder, submitted.id);
  }

  // Slurm's own order kills after KillWait (30 s), which a save may need longer than. So the agents are asked first;
  // what has not begun, and whoever asks a second time, gets the order itself.
  void cancel(const Submitted& submitted) override {
    looked_for_.clear();
    const bool again = fs::exists(submitted.folder / kCancelled);
    const State now = state(submitted);
    if (now.is_over()) return;
    write_file_atomically(submitted.folder / kCancelled, "");
    const bool ask = now.phase == Phase::kRunning && !again;
    run_tool(ask ? std::vector<std::string>{"scancel", "--signal=TERM", submitted.id}
                 : std::vector<std::string>{"scancel", submitted.id},
             {}, kToolSeconds);
    looked_for_.clear();
  }

 private:
  std::vector<std::string> command(const Submission& submission) const {
    const LaunchSettings& settings = submission.settings;
    const std::string log = slurm_path(submission.folder) + "/slurm-%j";
    const bool in_image = !settings.image.empty();
    const bool moves = !settings.directory.empty() && !in_image;
    std::vector<std::string> words = {
        "sbatch",
        "--parsable",
        fmt::format("--job-name={}", plain_name(submission.name)),
        "--no-kill",
        settings.requeue ? "--requeue" : "--no-requeue",
        "--open-mode=append",
        "--export=ALL",
        fmt::format("--signal=USR1@{:.0f}", settings.notice_seconds),
        fmt::format("--output={}.out", log),
        fmt::format("--chdir={}", moves ? settings.directory : submission.directory.string())};
    const auto add = [&](const std::vector<std::string>& more) { words.insert(words.end(), more.begin(), more.end()); };
    const std::vector<std::string> resources =
        resource_options(settings, slurm_, submission.all_nodes(), submission.ranks_per_node, submission.has_gpus());
    add(resources);
    add({(submission.folder / "slurm-batch.sh").string(), submission.folder.string(), settings.requeue ? "1" : "0"});
    // srun's: each node writes its own file, so that what is printed does not depend on the node of the batch script.
    add({fmt::format("--output={}.%n.out", log)});
    for (const std::string& word : resources) {
      if (word.starts_with("--cpus-per-task=")) add({word});  // srun does not take it over from sbatch
    }
    if (in_image) add(container_options(settings, slurm_, submission.folder));
    add({"--"});
    if (!in_image) add({"bash", (submission.folder / "slurm-task.sh").string(), submission.folder.string()});
    add(submission.words(submission.job_file().string()));
    return words;
  }

  State read_state(const std::string& line, const Submitted& submitted) const {
    const std::string word = job_field(line, "JobState");
    const std::string reason = job_field(line, "Reason"), nodes = job_field(line, "NodeList");
    State state;
    if (is_waiting(word)) {
      state.phase = Phase::kQueued;
      state.detail = reason.empty() || reason == "None" ? to_lower(word) : reason;
    } else if (is_running(word)) {
      state.phase = Phase::kRunning;
      state.detail = word == "COMPLETING" ? "ending" : fmt::format("on {}", nodes);
    } else {
      state = ended_state(word, job_field(line, "ExitCode"), exit_code_in(submitted));
    }
    state.detail = printable(state.detail);
    state.starts = std::atoi(job_field(line, "Restarts").c_str());
    if (word == "PENDING" && state.starts > 0 && reason == "BeginTime") start_now(submitted);
    return state;
  }

  // Slurm holds what it requeues for two minutes, in case the node is at fault; our agents have told why they ended.
  static void start_now(const Submitted& submitted) {
    SpawnOptions options;
    options.argv = {"scontrol", "update", "JobId=" + submitted.id, "StartTime=now"};
    run_command(std::move(options), kToolSeconds);
  }

  // Slurm keeps ended jobs for MinJobAge, its accounting longer.
  State forgotten(const Submitted& submitted) const {
    const auto left_behind = exit_code_in(submitted);
    if (left_behind) return ended_state("ended", "", left_behind);
    if (last_.is_over()) return last_;
    SpawnOptions options;
    options.argv = {"sacct", "-j", submitted.id, "-X", "-n", "-P", "-o", "State,ExitCode"};
    const CommandResult result = run_command(std::move(options), kToolSeconds);
    const std::vector<std::string> fields = split(trim(result.output), '|');
    if (result.status.ok() && !result.timed_out && fields.size() == 2) {
      return ended_state(split(fields[0], ' ').front(), fields[1], std::nullopt);
    }
    State state;
    state.phase = Phase::kFailed;
    state.detail = "Slurm does not know the job any more";
    return state;
  }

  const SlurmSettings slurm_;
  State last_;
  std::string looked_for_;  // the id that last_ is of
  double looked_at_ = 0.0;
};

}  // namespace

std::unique_ptr<Scheduler> make_slurm(const LaunchSettings& settings) { return std::make_unique<Slurm>(settings); }

}  // namespace lockstep::schedulers
