// `--on kubernetes`: a JobSet of one Job whose pods are the nodes. Each has a name in DNS that stays when the pod is
// made anew, so that its agent finds the others again; they go on meanwhile.
#include <fmt/format.h>

#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/schedulers/all.h"
#include "lockstep/schedulers/kubectl.h"

namespace lockstep::schedulers {
namespace {

constexpr const char* kContainerName = "node";
constexpr const char* kIndexField = "metadata.annotations['batch.kubernetes.io/job-completion-index']";

enum class Restart { kPod, kContainer };

class Kubernetes : public Scheduler {
 public:
  explicit Kubernetes(const LaunchSettings& settings) : Kubernetes(settings.section("kubernetes")) {}

  Script script(const Submission& submission) const override {
    const Pods pods(settings_, submission);
    std::vector<Tree> manifest;
    if (submission.job) manifest.push_back(pods.config());
    manifest.push_back(job_set(pods, submission));
    Script script;
    script.files = {{Kubectl::kSecretFile, yaml_text(pods.secret()), true},
                    {Kubectl::kManifestFile, yaml_documents(manifest), false}};
    script.commands = {kubectl_.create_words(submission)};
    script.notes = pods.notes();
    if (restart_ == Restart::kContainer) {
      script.notes.emplace_back("restart: container needs Kubernetes 1.35 or newer");
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
  explicit Kubernetes(MapReader reader)
      : settings_(read_pod_settings(reader)), kubectl_(settings_, "JobSet", "jobsets.jobset.x-k8s.io") {
    reader.choice("restart", restart_, {{"pod", Restart::kPod}, {"container", Restart::kContainer}});
    reader.finish();
  }

  Tree job_set(const Pods& pods, const Submission& submission) const {
    Tree metadata = pods.metadata();
    if (!settings_.queue.empty()) metadata["labels"]["kueue.x-k8s.io/queue-name"] = settings_.queue;
    Tree spec = Tree::object();
    if (!settings_.queue.empty()) spec["suspend"] = true;
    spec["network"] = {{"enableDNSHostnames", true}, {"subdomain", pods.name()}, {"publishNotReadyAddresses", true}};
    spec["failurePolicy"] = failure_policy(submission);
    spec["ttlSecondsAfterFinished"] = static_cast<std::int64_t>(std::llround(settings_.keep_seconds));
    spec["replicatedJobs"] =
        Tree::array({{{"name", "node"}, {"replicas", 1}, {"template", {{"spec", job(pods, submission)}}}}});
    return {{"apiVersion", "jobset.x-k8s.io/v1alpha2"}, {"kind", "JobSet"}, {"metadata", metadata}, {"spec", spec}};
  }

  // The Job replaces its pods itself; when it has failed, so has the run, except for want of time.
  static Tree failure_policy(const Submission& submission) {
    Tree policy = {{"maxRestarts", 0}};
    if (submission.settings.requeue && submission.settings.time_seconds > 0) {
      policy["rules"] = Tree::array({{{"name", "timeLimit"},
                                      {"action", "RestartJobSetAndIgnoreMaxRestarts"},
                                      {"onJobFailureReasons", Tree::array({"DeadlineExceeded"})}}});
    }
    return policy;
  }

  Tree job(const Pods& pods, const Submission& submission) const {
    const bool again = submission.settings.requeue;
    Tree job = {{"completionMode", "Indexed"}, {"completions", pods.count()}, {"parallelism", pods.count()}};
    // A node that is given up does not end the others.
    job["backoffLimitPerIndex"] = again ? settings_.restarts : 0;
    job["maxFailedIndexes"] = pods.count();
    if (submission.settings.time_seconds > 0) {
      job["activeDeadlineSeconds"] = static_cast<std::int64_t>(std::ceil(submission.settings.time_seconds));
    }
    job["podFailurePolicy"] = pod_failure_policy(again);
    job["podReplacementPolicy"] = "Failed";  // never two agents of one node
    // An agent that ends well speaks for the run: a node that was lost at the end is not waited for.
    job["successPolicy"] = {{"rules", Tree::array({{{"succeededCount", 1}}})}};
    job["template"] = pod_template(pods);
    return job;
  }

  static Tree pod_failure_policy(bool again) {
    const auto on_exit = [](const char* action, std::vector<int> codes) -> Tree {
      return {{"action", action},
              {"onExitCodes", {{"containerName", kContainerName}, {"operator", "In"}, {"values", codes}}}};
    };
    Tree rules = Tree::array();
    // Ignored: done again without counting.
    if (again) {
      rules.push_back({{"action", "Ignore"},
                       {"onPodConditions", Tree::array({{{"type", "DisruptionTarget"}, {"status", "True"}}})}});
      rules.push_back(on_exit("Ignore", {75, 130}));
    }
    rules.push_back(on_exit("FailJob", {1, 2, 3}));  // what every node would say
    rules.push_back(on_exit("FailIndex", {4}));      // what this one lacks
    return {{"rules", rules}};
  }

  Tree pod_template(const Pods& pods) const {
    Tree variables = Tree::array();
    if (pods.meets()) {
      variables.push_back(variable(
          "LOCKSTEP_NODES", fmt::format("{0}-node-0-[0-{1}].{0}:{2}", pods.name(), pods.count() - 1, settings_.port)));
      variables.push_back(variable_from_field("LOCKSTEP_NODE", kIndexField));
    }
    Tree pod = pods.pod(kContainerName, variables);
    pod["spec"]["restartPolicy"] = "Never";
    if (restart_ == Restart::kContainer) {
      // The container is started again in the same pod: no scheduling, no image to pull, the same address.
      Tree& container = pod["spec"]["containers"][0];
      container["restartPolicy"] = "Never";
      container["restartPolicyRules"] = Tree::array(
          {{{"action", "Restart"}, {"exitCodes", {{"operator", "NotIn"}, {"values", Tree::array({0, 1, 2, 3, 4})}}}}});
    }
    return pod;
  }

  const PodSettings settings_;
  Kubectl kubectl_;
  Restart restart_ = Restart::kPod;
};

}  // namespace

std::unique_ptr<Scheduler> make_kubernetes(const LaunchSettings& settings) {
  return std::make_unique<Kubernetes>(settings);
}

}  // namespace lockstep::schedulers
