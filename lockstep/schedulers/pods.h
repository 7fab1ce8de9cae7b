// What JobSets, TrainJobs and PyTorchJobs have in common: the settings of their pods and the parts of a manifest that
// come from them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "lockstep/base/map_reader.h"
#include "lockstep/schedulers/scheduler.h"
#include "lockstep/schedulers/yaml_writer.h"

namespace lockstep::schedulers {

inline constexpr const char* kRunLabel = "lockstep/run";  // on everything that a submission creates

struct PodVolume {
  std::string kind;  // "claim", "secret", "config_map", "host_path"
  std::string name;  // of the object, or the path on the machine
  std::string path;  // where it is mounted
  std::string sub_path;
  bool read_only = false;
};

struct PodToleration {
  std::string key, op, value, effect;  // "": not said
};

struct PodSettings {
  std::string kubectl = "kubectl";
  std::string context;          // of kubectl; "": the current one
  std::string name_space;       // "": the context's
  std::string queue;            // of Kueue; "": none
  std::string priority;         // priority class of the pods
  std::string service_account;  // "": the namespace's, without its token
  std::string image_pull_secret, image_pull_policy;
  std::string gpu = "nvidia.com/gpu";       // the resource that a device is
  std::map<std::string, std::string> rdma;  // resource -> how many
  std::map<std::string, std::string> node_selector, labels, annotations;
  std::vector<PodToleration> tolerations;
  std::vector<PodVolume> volumes;
  double shared_memory = 8.0 * (1ull << 30);  // bytes of /dev/shm
  std::string home;                           // LOCKSTEP_HOME; "": on the first claim that can be written to
  std::int64_t port = 29400;                  // of the agents
  std::int64_t user = -1;                     // that the container runs as; -1: the image's
  std::int64_t restarts = 10;                 // of one node
  double keep_seconds = 86400;                // what has ended
};

// Reads these keys of a section; the caller reads its own and calls finish().
PodSettings read_pod_settings(MapReader& reader);

// Everything a manifest needs of one submission. Pure.
class Pods {
 public:
  // Throws UserError without an image, with hosts, for text that is too long.
  Pods(const PodSettings& settings, const Submission& submission);

  // The name of every object: a DNS label short enough for those that controllers make of it.
  const std::string& name() const { return name_; }
  std::int64_t count() const { return submission_.all_nodes(); }
  bool meets() const { return count() > 1; }  // there are others to find

  Tree metadata() const;                   // name, namespace, labels; with the queue's
  Tree pod_metadata() const;               // labels and annotations of pods
  Tree secret() const;                     // the token
  Tree config() const;                     // the job file; null for a foreign program
  std::vector<std::string> words() const;  // of the container, safe from expansion
  // Without LOCKSTEP_NODES and LOCKSTEP_NODE.
  Tree environment() const;
  Tree resources() const;
  Tree volumes() const;
  Tree mounts() const;
  Tree container_security() const;
  Tree pod_security() const;
  Tree tolerations() const;
  Tree pull_secrets() const;
  // A whole pod template around one container called `container`, which gets `variables` beside its own.
  Tree pod(const std::string& container, const Tree& variables) const;
  std::int64_t grace_seconds() const;
  std::vector<std::string> notes() const;

 private:
  std::string home() const;
  Tree labels() const;

  PodSettings settings_;
  Submission submission_;
  std::string name_;
};

// An entry of a container's environment; `$` is kept from being expanded.
Tree variable(const std::string& name, const std::string& value);
Tree variable_from_field(const std::string& name, const std::string& field);
// Kubernetes replaces $(NAME) in commands and variables; this text comes out as it is.
std::string unexpanded(const std::string& text);

}  // namespace lockstep::schedulers
