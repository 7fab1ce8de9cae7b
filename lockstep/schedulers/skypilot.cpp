// `--on skypilot`: a task for SkyPilot, by default as a managed job, which is recovered when spot machines are taken
// away. What the user wrote reaches the machines as base64 in one secret variable; the text that a shell runs there is
// always the same, but for `setup`, which is the user's own script.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lockstep/base/base64.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/schedulers/all.h"
#include "lockstep/schedulers/yaml_writer.h"

namespace lockstep::schedulers {
namespace {

using nlohmann::ordered_json;

// The executable, a line break, the submission. `sky` takes it from its own environment.
constexpr const char* kStart = "LOCKSTEP_START";
constexpr const char* kRun = R"(start=$(printf %s "$LOCKSTEP_START" | base64 --decode) || exit 4
unset LOCKSTEP_START
export LOCKSTEP_SUBMISSION="${start#*
}"
exec "${start%%
*}" launch --submission env
)";
constexpr double kLaunchSeconds = 3600.0;  // machines are found and set up meanwhile
constexpr double kAskSeconds = 120.0;
constexpr double kLogRetrySeconds = 60.0;
constexpr std::size_t kMostStartBytes = 90'000;  // a variable holds 128 KiB, and base64 makes 4 bytes of 3
constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

// Of a task's resources (SkyPilot 0.14); a misspelt one is told before anything is sent.
constexpr const char* kResources[] = {"accelerators",
                                      "accelerator_args",
                                      "any_of",
                                      "autostop",
                                      "cloud",
                                      "cpus",
                                      "disk_size",
                                      "disk_tier",
                                      "ephemeral_storage",
                                      "image_id",
                                      "infra",
                                      "instance_type",
                                      "labels",
                                      "local_disk",
                                      "max_hourly_cost",
                                      "memory",
                                      "network_tier",
                                      "ordered",
                                      "ports",
                                      "priority",
                                      "priority_class",
                                      "region",
                                      "use_spot",
                                      "volumes",
                                      "zone"};

// What is JSON in the output of a program that may say other things before it.
ordered_json json_in(const std::string& output) {
  std::size_t line = 0;
  while (line < output.size() && output[line] != '[' && output[line] != '{') {
    const std::size_t end = output.find('\n', line);
    line = end == std::string::npos ? output.size() : end + 1;
  }
  return ordered_json::parse(output.substr(line), nullptr, false);
}

std::string text_of(const ordered_json& record, const char* key) {
  return record.contains(key) && record[key].is_string() ? record[key].get<std::string>() : "";
}

Phase phase_of(const std::string& status) {
  if (status == "SUCCEEDED") return Phase::kDone;
  if (status == "CANCELLED") return Phase::kCancelled;
  if (status.starts_with("FAILED")) return Phase::kFailed;
  const bool runs = status == "RUNNING" || status == "RECOVERING" || status == "CANCELLING" || status == "WINDING_DOWN";
  return runs ? Phase::kRunning : Phase::kQueued;
}

class SkyPilot : public Scheduler {
 public:
  explicit SkyPilot(const LaunchSettings& settings) {
    MapReader reader = settings.section("skypilot");
    reader.boolean("managed", managed_);
    reader.name("cluster", cluster_);
    reader.count("idle_minutes", idle_minutes_, 1, 1'000'000);
    reader.text("setup", setup_);
    reader.path("workdir", workdir_);
    resources_ = map_of(reader, "resources");
    file_mounts_ = map_of(reader, "file_mounts");
    if (auto recovery = reader.map("recovery")) {
      recovery->name("strategy", strategy_);
      recovery->count("max_restarts_on_errors", restarts_, 0, 1'000'000);
      recovery->finish();
    }
    reader.finish();
    check(reader, settings);
  }

  Script script(const Submission& submission) const override {
    Script script;
    script.files = {{"task.yaml", yaml_text(task(submission)), false}};
    script.commands = {launch_words(submission)};
    if (submission.settings.image.empty() && setup_.empty() && submission.settings.lockstep.empty()) {
      script.notes.emplace_back(
          "the machines need `lockstep` on their PATH: name an image (launch.image), install it "
          "(launch.skypilot.setup), "
          "or say where it is (launch.lockstep)");
    }
    if (file_mounts_.empty()) {
      script.notes.emplace_back(
          "no file_mounts: checkpoints are lost with the machines; put them into a bucket "
          "(launch.skypilot.file_mounts)");
    }
    if (submission.settings.time_seconds > 0) {
      script.notes.emplace_back("launch.time is not used: SkyPilot has no time limits");
    }
    return script;
  }

  Submitted submit(const Submission& submission) override {
    run_tool(launch_words(submission), {{kStart, start_of(submission)}}, kLaunchSeconds);
    return {name_of(submission), submission.run, submission.folder,
            nlohmann::json{{"managed", managed_}, {"cluster", cluster_of(submission)}}};
  }

  State state(const Submitted& submitted) override {
    const ordered_json record = find(submitted);
    if (record.is_null()) return last_;
    std::string status = text_of(record, "status");
    status = status.substr(status.rfind('.') + 1);
    last_.phase = phase_of(status);
    last_.detail = to_lower(status);
    if (const std::string where = text_of(record, "infra"); !where.empty()) last_.detail += " on " + printable(where);
    if (const std::string why = text_of(record, "failure_reason"); !why.empty() && last_.phase == Phase::kFailed) {
      last_.detail = printable(trim(why), 300);
    }
    if (record.contains("recovery_count") && record["recovery_count"].is_number_integer()) {
      last_.starts = record["recovery_count"].get<int>();
    }
    return last_;
  }

  std::unique_ptr<LogSource> open_log(const Submitted& submitted) override {
    std::vector<std::string> words = {"sky", "jobs", "logs", "--name", submitted.id, "--follow", "--tail", "0"};
    if (!is_managed(submitted)) words = {"sky", "logs", "--follow", "--tail", "0", cluster_of(submitted)};
    if (const std::string id = number_of(submitted); !is_managed(submitted) && !id.empty()) words.push_back(id);
    return follow_command(words, kLogRetrySeconds);
  }

  void cancel(const Submitted& submitted) override {
    std::vector<std::string> words = {"sky", "jobs", "cancel", "--yes", "--name", submitted.id};
    if (!is_managed(submitted)) {
      words = {"sky", "cancel", "--yes", cluster_of(submitted)};
      if (const std::string id = number_of(submitted); !id.empty()) words.push_back(id);
    }
    run_tool(words, {}, kAskSeconds);
  }

 private:
  static ordered_json map_of(MapReader& reader, const std::string& key) {
    const YamlNode* node = reader.find(key);
    if (node == nullptr) return ordered_json::object();
    if (!node->is_map()) throw reader.error_at(key, "is not a map", "write it as SkyPilot's task files do");
    return json_of(*node);
  }

  void check(const MapReader& reader, const LaunchSettings& settings) const {
    std::vector<std::string> known(std::begin(kResources), std::end(kResources));
    for (const auto& [key, value] : resources_.items()) {
      if (key == "job_recovery") {
        throw reader.error_at("resources", "holds job_recovery", "write launch.skypilot.recovery instead");
      }
      if (std::find(known.begin(), known.end(), key) == known.end()) {
        throw reader.error_at("resources", "holds `" + printable(key) + "`, which SkyPilot does not know",
                              did_you_mean(key, known));
      }
    }
    if (resources_.contains("image_id") && !settings.image.empty()) {
      throw reader.error_at("resources", "holds image_id, and launch.image is set too", "keep one of them");
    }
    if (managed_ && (!cluster_.empty() || idle_minutes_ > 0)) {
      throw bad_input("launch.skypilot.cluster and idle_minutes are for `managed: false`",
                      "leave them out, or write managed: false");
    }
    if (!managed_ && (!strategy_.empty() || restarts_ > 0)) {
      throw bad_input("launch.skypilot.recovery is for managed jobs", "leave it out, or leave `managed: false` out");
    }
    if (cluster_ != plain_name(cluster_, 60) && !cluster_.empty()) {
      throw reader.error_at("cluster", "is not the name of a cluster", "use letters, digits and -, first a letter");
    }
  }

  static std::string name_of(const Submission& submission) {
    return dns_label(submission.name, 24) + "-" + dns_label(submission.run, 38);
  }
  std::string cluster_of(const Submission& submission) const {
    return cluster_.empty() ? dns_label(submission.name, 24) : cluster_;
  }
  static std::string cluster_of(const Submitted& submitted) { return submitted.place.at("cluster").get<std::string>(); }
  static bool is_managed(const Submitted& submitted) { return submitted.place.at("managed").get<bool>(); }

  std::vector<std::string> launch_words(const Submission& submission) const {
    std::vector<std::string> words = {"sky", "jobs", "launch", "--yes", "--detach-run"};
    if (!managed_) words = {"sky", "launch", "--yes", "--detach-run", "--cluster", cluster_of(submission)};
    if (idle_minutes_ > 0) {
      words.insert(words.end(), {"--idle-minutes-to-autostop", std::to_string(idle_minutes_), "--down"});
    }
    words.insert(words.end(), {"--secret", kStart, (submission.folder / "task.yaml").string()});
    return words;
  }

  ordered_json recovery(const LaunchSettings& settings) const {
    ordered_json recovery = ordered_json::object();
    if (!strategy_.empty()) recovery["strategy"] = strategy_;
    if (restarts_ > 0) recovery["max_restarts_on_errors"] = restarts_;
    if (settings.requeue) recovery["recover_on_exit_codes"] = {static_cast<int>(ExitCode::kRetry)};
    return recovery;
  }

  ordered_json resources(const Submission& submission) const {
    ordered_json resources = resources_;
    const LaunchSettings& settings = submission.settings;
    const bool has_type = resources.contains("instance_type");
    if (submission.has_gpus() && !has_type && !resources.contains("accelerators")) {
      if (submission.device == "gpu") {
        throw bad_input("nobody says which GPUs the program needs",
                        "give launch.skypilot.resources.accelerators=H100:8");
      }
      resources["accelerators"] = ordered_json{{submission.device, submission.ranks_per_node}};
    }
    if (!has_type && !resources.contains("cpus")) {
      const std::int64_t cpus = settings.cpus_per_node;
      if (cpus > 0 || !submission.has_gpus()) {
        resources["cpus"] = fmt::format("{}+", cpus > 0 ? cpus : submission.ranks_per_node);
      }
    }
    if (settings.memory_per_node > 0 && !resources.contains("memory")) {
      resources["memory"] = fmt::format("{:.0f}+", std::ceil(settings.memory_per_node / kGiB));
    }
    if (!settings.image.empty()) {
      resources["image_id"] = settings.image.starts_with("docker:") ? settings.image : "docker:" + settings.image;
    }
    if (const ordered_json wanted = recovery(settings); managed_ && !wanted.empty()) resources["job_recovery"] = wanted;
    return resources;
  }

  // The executable of the submitter is not on a cloud's machines.
  static std::string start_of(const Submission& submission) {
    nlohmann::json start = to_json(submission);
    const LaunchSettings& settings = submission.settings;
    if (!settings.directory.empty()) start["directory"] = settings.directory;
    const std::string text = (settings.lockstep.empty() ? "lockstep" : settings.lockstep) + "\n" + start.dump();
    if (text.size() <= kMostStartBytes) return base64_of(text);
    throw bad_input(
        fmt::format("the job and its command are {} bytes, and a variable holds {}", text.size(), kMostStartBytes),
        "move what is long into files (launch.skypilot.file_mounts)");
  }

  ordered_json task(const Submission& submission) const {
    ordered_json task = {
        {"name", name_of(submission)}, {"num_nodes", submission.all_nodes()}, {"resources", resources(submission)}};
    if (!workdir_.empty()) task["workdir"] = workdir_;
    if (!file_mounts_.empty()) task["file_mounts"] = file_mounts_;
    if (!setup_.empty()) task["setup"] = setup_.ends_with('\n') ? setup_ : setup_ + "\n";
    task["run"] = kRun;
    return task;
  }

  // Its record in the queue; null when SkyPilot does not answer or does not have it (yet).
  ordered_json find(const Submitted& submitted) const {
    std::vector<std::string> words = {"sky", "jobs", "queue", "--output", "json", "--limit", "1000"};
    if (!is_managed(submitted)) words = {"sky", "queue", "--output", "json", cluster_of(submitted)};
    SpawnOptions options;
    options.argv = words;
    const CommandResult result = run_command(std::move(options), kAskSeconds);
    ordered_json records = json_in(result.output);
    if (records.is_object()) records = records.value(cluster_of(submitted), ordered_json::array());
    if (!records.is_array()) return nullptr;
    for (const ordered_json& record : records) {
      if (record.is_object() && text_of(record, "job_name") == submitted.id) return record;
    }
    return nullptr;
  }

  std::string number_of(const Submitted& submitted) const {
    const ordered_json record = find(submitted);
    if (!record.is_object() || !record.contains("job_id") || !record["job_id"].is_number_integer()) return "";
    return std::to_string(record["job_id"].get<std::int64_t>());
  }

  bool managed_ = true;
  std::string cluster_, setup_, workdir_, strategy_;
  std::int64_t idle_minutes_ = 0, restarts_ = 0;
  ordered_json resources_ = ordered_json::object(), file_mounts_ = ordered_json::object();
  State last_;
};

}  // namespace

std::unique_ptr<Scheduler> make_skypilot(const LaunchSettings& settings) {
  return std::make_unique<SkyPilot>(settings);
}

}  // namespace lockstep::schedulers
