// What kubectl does for a submission: creates its objects, tells their state, shows the logs of their pods, deletes
// them. Everything is found by the label of the run.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/schedulers/pods.h"

namespace lockstep::schedulers {

// What the answer of `kubectl get KIND,pods -o json` says. Throws UserError for text that is not such an answer.
// Which pods there are, in the order of their nodes.
struct PodState {
  std::string name;
  std::string uid;
  int node = -1;     // which of the nodes; -1: not known
  int restarts = 0;  // of its container
  bool started = false;
  bool running = false;
  std::optional<int> exit_code;
  std::string waits_for;  // one line, for a pod that does not run
};
struct ClusterState {
  State state;
  std::vector<PodState> pods;
};
ClusterState read_cluster_state(const std::string& answer, const std::string& kind);

class Kubectl {
 public:
  // `kind` as in the manifest, `resource` as kubectl wants it: "jobsets.jobset.x-k8s.io". What was submitted carries
  // both, and where it went: one made with other settings finds it all the same.
  Kubectl(const PodSettings& settings, const std::string& kind, const std::string& resource);

  std::vector<std::string> create_words(const Submission& submission) const;
  Submitted submit(const Submission& submission, const std::string& name) const;
  State state(const Submitted& submitted);
  std::unique_ptr<LogSource> open_log(const Submitted& submitted);
  void cancel(const Submitted& submitted) const;

  static constexpr const char* kSecretFile = "secret.yaml";
  static constexpr const char* kManifestFile = "manifest.yaml";

 private:
  const nlohmann::json place_;  // of new submissions
  // The pods that state() saw last, for the logs.
  const std::shared_ptr<std::vector<PodState>> pods_ = std::make_shared<std::vector<PodState>>();
  State last_;
};

}  // namespace lockstep::schedulers
