// `--on kubeflow`: a TrainJob of Kubeflow Trainer, or a PyTorchJob of the Training Operator before it. Their pods have
// names in DNS too, so that agents find each other as they do in a JobSet.
#include <fmt/format.h>

#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/schedulers/all.h"
#include "lockstep/schedulers/kubectl.h"

namespace lockstep::schedulers {
namespace {

constexpr const char* kIndexField = "metadata.annotations['batch.kubernetes.io/job-completion-index']";
constexpr const char* kTrainJobGroup = "trainer.kubeflow.org";

enum class Kind { kTrainJob, kPyTorchJob };

Tree seconds(double value) { return static_cast<std::int64_t>(std::llround(value)); }

class Kubeflow : public Scheduler {
 public:
  explicit Kubeflow(const LaunchSettings& settings) : Kubeflow(settings.section("kubeflow")) {}

  Script script(const Submission& submission) const override {
    const Pods pods(settings_, submission);
    std::vector<Tree> manifest;
    if (submission.job) manifest.push_back(pods.config());
    manifest.push_back(kind_ == Kind::kTrainJob ? train_job(pods, submission) : pytorch_job(pods, submission));
    Script script;
    script.files = {{Kubectl::kSecretFile, yaml_text(pods.secret()), true},
                    {Kubectl::kManifestFile, yaml_documents(manifest), false}};
    script.commands = {kubectl_.create_words(submission)};
    script.notes = pods.notes();
    if (kind_ == Kind::kTrainJob) {
      script.notes.push_back("when and how often pods are started again is up to the runtime " + runtime_);
    } else {
      script.notes.emplace_back("a container that fails is started again whatever its exit code");
    }
    return script;
  }

  Submitted submit(const Submission& submission) override {
    return kubectl_.submit(submission, Pods(settings_, submission).name());
  }
  State state(const Submitted& submitted) override { return kubectl_.state(submitted); }
  std::unique_ptr<LogSource> open_log(const Submitted& submitted) override { return kubectl_.open_log(submitted); }
  void cancel(const Submitted& submitted) override { kubectl_.cancel(submitted); }

 private:
  explicit Kubeflow(MapReader reader)
      : settings_(read_pod_settings(reader)),
        kind_(read_kind(reader)),
        kubectl_(settings_, kind_ == Kind::kTrainJob ? "TrainJob" : "PyTorchJob",
                 kind_ == Kind::kTrainJob ? "trainjobs.trainer.kubeflow.org" : "pytorchjobs.kubeflow.org") {
    const bool named = reader.name("runtime", runtime_);
    const bool own = reader.boolean("namespaced_runtime", own_runtime_);
    reader.finish();
    if (kind_ == Kind::kPyTorchJob) {
      if (named || own) throw reader.error_at("runtime", "a PyTorchJob has no runtime", "leave it out");
      return;
    }
    for (const char* key : {"priority", "image_pull_policy", "keep", "restarts"}) {
      if (reader.has(key)) refuse(fmt::format("launch.kubeflow.{}", key));
    }
  }

  static Kind read_kind(MapReader& reader) {
    Kind kind = Kind::kTrainJob;
    reader.choice("kind", kind, {{"trainjob", Kind::kTrainJob}, {"pytorchjob", Kind::kPyTorchJob}});
    return kind;
  }

  [[noreturn]] static void refuse(const std::string& what) {
    throw bad_input(what + ": a TrainJob has no place for it", "leave it out and set it in the training runtime");
  }

  Tree metadata(const Pods& pods) const {
    Tree metadata = pods.metadata();
    if (!settings_.queue.empty()) metadata["labels"]["kueue.x-k8s.io/queue-name"] = settings_.queue;
    return metadata;
  }

  Tree train_job(const Pods& pods, const Submission& submission) const {
    const LaunchSettings& launch = submission.settings;
    if (!launch.directory.empty()) refuse("launch.directory");
    if (!launch.requeue) refuse("launch.requeue: false");
    Tree trainer = {{"image", launch.image},
                    {"command", pods.words()},
                    {"numNodes", pods.count()},
                    {"numProcPerNode", submission.ranks_per_node},
                    {"env", pods.environment()}};
    if (pods.meets()) {
      trainer["env"].push_back(variable(
          "LOCKSTEP_NODES", fmt::format("{0}-node-0-[0-{1}].{0}:{2}", pods.name(), pods.count() - 1, settings_.port)));
      trainer["env"].push_back(variable_from_field("LOCKSTEP_NODE", kIndexField));
    }
    if (const Tree resources = pods.resources(); !resources.empty()) trainer["resourcesPerNode"] = resources;
    Tree spec = {{"runtimeRef",
                  {{"apiGroup", kTrainJobGroup},
                   {"kind", own_runtime_ ? "TrainingRuntime" : "ClusterTrainingRuntime"},
                   {"name", runtime_}}}};
    if (!settings_.queue.empty()) spec["suspend"] = true;
    if (launch.time_seconds > 0) spec["activeDeadlineSeconds"] = seconds(launch.time_seconds);
    spec["trainer"] = trainer;
    spec["runtimePatches"] = Tree::array({patch(pods)});
    return {{"apiVersion", fmt::format("{}/v1alpha1", kTrainJobGroup)},
            {"kind", "TrainJob"},
            {"metadata", metadata(pods)},
            {"spec", spec}};
  }

  // What of a pod the trainer's own fields do not say.
  Tree patch(const Pods& pods) const {
    const Tree whole = pods.pod("node", Tree::array()), &from = whole["spec"];
    Tree spec = Tree::object();
    for (const char* key : {"terminationGracePeriodSeconds", "serviceAccountName", "nodeSelector", "tolerations",
                            "imagePullSecrets", "securityContext"}) {
      if (from.contains(key)) spec[key] = from[key];
    }
    spec["containers"] = Tree::array(
        {{{"name", "node"}, {"volumeMounts", pods.mounts()}, {"securityContext", pods.container_security()}}});
    spec["volumes"] = pods.volumes();
    const Tree pod = {{"metadata", pods.pod_metadata()}, {"spec", spec}};
    const Tree job = {{"name", "node"}, {"template", {{"spec", {{"template", pod}}}}}};
    return {{"manager", "lockstep/launch"},
            {"trainingRuntimeSpec", {{"template", {{"spec", {{"replicatedJobs", Tree::array({job})}}}}}}}};
  }

  Tree pytorch_job(const Pods& pods, const Submission& submission) const {
    const LaunchSettings& launch = submission.settings;
    Tree policy = {{"cleanPodPolicy", "None"},
                   {"ttlSecondsAfterFinished", seconds(settings_.keep_seconds)},
                   {"backoffLimit", launch.requeue ? settings_.restarts : 0}};
    if (launch.time_seconds > 0) policy["activeDeadlineSeconds"] = seconds(launch.time_seconds);
    if (!settings_.queue.empty()) policy["suspend"] = true;
    const Tree pod = pytorch_pod(pods);
    const char* const restart = launch.requeue ? "OnFailure" : "Never";
    Tree replicas = {{"Master", {{"replicas", 1}, {"restartPolicy", restart}, {"template", pod}}}};
    if (pods.meets()) {
      replicas["Worker"] = {{"replicas", pods.count() - 1}, {"restartPolicy", restart}, {"template", pod}};
    }
    return {{"apiVersion", "kubeflow.org/v1"},
            {"kind", "PyTorchJob"},
            {"metadata", metadata(pods)},
            {"spec",
             {{"nprocPerNode", std::to_string(submission.ranks_per_node)},
              {"runPolicy", policy},
              {"pytorchReplicaSpecs", replicas}}}};
  }

  // Agents know their number by the host name: a pod's is its own name, and those are the names of its service.
  Tree pytorch_pod(const Pods& pods) const {
    Tree variables = Tree::array();
    if (pods.meets()) {
      std::string nodes = fmt::format("{}-master-0:{}", pods.name(), settings_.port);
      nodes += fmt::format(",{}-worker-[0-{}]:{}", pods.name(), pods.count() - 2, settings_.port);
      variables.push_back(variable("LOCKSTEP_NODES", nodes));
    }
    return pods.pod("pytorch", variables);
  }

  const PodSettings settings_;
  const Kind kind_;
  Kubectl kubectl_;
  std::string runtime_ = "torch-distributed";
  bool own_runtime_ = false;
};

}  // namespace

std::unique_ptr<Scheduler> make_kubeflow(const LaunchSettings& settings) {
  return std::make_unique<Kubeflow>(settings);
}

}  // namespace lockstep::schedulers
