#include "lockstep/schedulers/pods.h"

#include <fmt/format.h>

#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::schedulers {
namespace {

constexpr const char* kJobFolder = "/etc/lockstep";
constexpr std::size_t kMostJobBytes = 1'000'000;  // of a ConfigMap, with room for the rest
constexpr const char* kVolumeKinds[] = {"claim", "secret", "config_map", "host_path"};
constexpr const char* kPullPolicies[] = {"Always", "IfNotPresent", "Never"};
constexpr const char* kEffects[] = {"NoSchedule", "PreferNoSchedule", "NoExecute"};

std::map<std::string, std::string> read_texts(MapReader& reader, const std::string& key) {
  std::map<std::string, std::string> texts;
  const YamlNode* node = reader.find(key);
  if (node == nullptr) return texts;
  if (!node->is_map()) throw reader.error_at(key, "`" + reader.full_key(key) + "` is not a map", "write {name: value}");
  for (const YamlNode::Entry& entry : node->entries) {
    if (entry.key.empty() || !is_printable(entry.key) || !entry.value.is_scalar() ||
        !is_printable(entry.value.scalar)) {
      throw bad_input(fmt::format("`{}` of `{}` is not one line of text", printable(entry.key), reader.full_key(key)),
                      "write {name: value}", entry.key_place);
    }
    texts[entry.key] = entry.value.scalar;
  }
  return texts;
}

// The maps of a list, each with the path that errors show.
std::vector<MapReader> read_list(MapReader& reader, const std::string& key) {
  std::vector<MapReader> maps;
  const YamlNode* node = reader.find(key);
  if (node == nullptr) return maps;
  if (!node->is_sequence()) {
    throw reader.error_at(key, "`" + reader.full_key(key) + "` is not a list", "write [{...}, {...}]");
  }
  for (const YamlNode& item : node->items)
    maps.emplace_back(item, fmt::format("{}[{}]", reader.full_key(key), maps.size()));
  return maps;
}

PodVolume read_volume(MapReader reader) {
  PodVolume volume;
  for (const char* kind : kVolumeKinds) {
    std::string name;
    if (!reader.name(kind, name)) continue;
    if (!volume.kind.empty()) throw reader.error_at(kind, "a volume is one thing", "make two entries");
    volume.kind = kind;
    volume.name = name;
  }
  reader.name("path", volume.path);
  reader.name("sub_path", volume.sub_path);
  reader.boolean("read_only", volume.read_only);
  reader.require("path");
  reader.finish();
  if (volume.kind.empty() || volume.name.empty()) {
    throw reader.error_at("path", "this volume does not say what it is", "add claim, secret, config_map or host_path");
  }
  if (volume.path.front() != '/' || volume.path.find(':') != std::string::npos) {
    throw reader.error_at("path", "`" + volume.path + "` is not an absolute path without `:`", "write path: /data");
  }
  return volume;
}

PodToleration read_toleration(MapReader reader) {
  PodToleration toleration;
  static constexpr const char* kOperators[] = {"Equal", "Exists"};
  reader.name("key", toleration.key);
  reader.word("operator", toleration.op, kOperators);
  reader.name("value", toleration.value);
  reader.word("effect", toleration.effect, kEffects);
  reader.finish();
  if (toleration.op.empty()) toleration.op = toleration.value.empty() ? "Exists" : "Equal";
  return toleration;
}

// Whole binary units where they fit: 64Gi.
std::string quantity(double bytes) {
  const auto whole = static_cast<std::int64_t>(std::llround(bytes));
  static constexpr std::pair<const char*, std::int64_t> kUnits[] = {
      {"Ti", 1ll << 40}, {"Gi", 1ll << 30}, {"Mi", 1ll << 20}, {"Ki", 1ll << 10}};
  for (const auto& [unit, size] : kUnits) {
    if (whole >= size && whole % size == 0) return fmt::format("{}{}", whole / size, unit);
  }
  return std::to_string(whole);
}

Tree tree_of(const std::map<std::string, std::string>& texts) {
  Tree tree = Tree::object();
  for (const auto& [key, value] : texts) tree[key] = value;
  return tree;
}

Tree source_of(const PodVolume& volume) {
  if (volume.kind == "claim") {
    Tree claim = {{"claimName", volume.name}};
    if (volume.read_only) claim["readOnly"] = true;
    return {{"persistentVolumeClaim", claim}};
  }
  if (volume.kind == "secret") return {{"secret", {{"secretName", volume.name}}}};
  if (volume.kind == "config_map") return {{"configMap", {{"name", volume.name}}}};
  return {{"hostPath", {{"path", volume.name}}}};
}

}  // namespace

PodSettings read_pod_settings(MapReader& reader) {
  PodSettings settings;
  reader.name("kubectl", settings.kubectl);
  reader.name("context", settings.context);
  reader.name("namespace", settings.name_space);
  reader.name("queue", settings.queue);
  reader.name("priority", settings.priority);
  reader.name("service_account", settings.service_account);
  reader.name("image_pull_secret", settings.image_pull_secret);
  reader.word("image_pull_policy", settings.image_pull_policy, kPullPolicies);
  reader.name("gpu", settings.gpu);
  settings.rdma = read_texts(reader, "rdma");
  settings.node_selector = read_texts(reader, "node_selector");
  settings.labels = read_texts(reader, "labels");
  settings.annotations = read_texts(reader, "annotations");
  for (MapReader& item : read_list(reader, "tolerations")) settings.tolerations.push_back(read_toleration(item));
  for (MapReader& item : read_list(reader, "volumes")) settings.volumes.push_back(read_volume(item));
  reader.bytes("shared_memory", settings.shared_memory);
  reader.name("home", settings.home);
  reader.count("port", settings.port, 1024, 65535);
  reader.count("user", settings.user, 0, 2147483647);
  reader.count("restarts", settings.restarts, 0, 100'000);
  reader.seconds("keep", settings.keep_seconds);
  if (settings.labels.contains(kRunLabel)) {
    throw reader.error_at("labels", fmt::format("the label {} is set by the launcher", kRunLabel), "leave it out");
  }
  if (!settings.home.empty() && settings.home.front() != '/') {
    throw reader.error_at("home", "`" + settings.home + "` is not an absolute path", "write home: /data/lockstep");
  }
  if (!settings.name_space.empty() && settings.name_space != dns_label(settings.name_space)) {
    throw reader.error_at("namespace", "`" + settings.name_space + "` is not the name of a namespace",
                          "use small letters, digits and -");
  }
  return settings;
}

std::string unexpanded(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '$') out += c;
    out += c;
  }
  return out;
}

Tree variable(const std::string& name, const std::string& value) {
  return {{"name", name}, {"value", unexpanded(value)}};
}

Tree variable_from_field(const std::string& name, const std::string& field) {
  return {{"name", name}, {"valueFrom", {{"fieldRef", {{"fieldPath", field}}}}}};
}

Pods::Pods(const PodSettings& settings, const Submission& submission) : settings_(settings), submission_(submission) {
  // The longest name that is made of it: NAME-worker-12 or NAME-node-0-12-abcde, of 63 letters at most.
  const std::size_t suffix = fmt::format("-node-0-{}-abcde", count()).size();
  name_ = dns_label(submission.run, 63 - suffix);
  if (submission.settings.image.empty()) {
    throw bad_input("pods need an image and launch.image is not set",
                    "name one that has lockstep: `launch: {image: registry/lockstep:1.0}`");
  }
  if (!submission.settings.hosts.empty()) {
    throw bad_input("the machines are chosen by Kubernetes",
                    "leave the hostfile out; launch.*.node_selector narrows the choice");
  }
  if (submission.job && submission.job->size() > kMostJobBytes) {
    throw bad_input(
        fmt::format("the job file has {} bytes and a ConfigMap takes {}", submission.job->size(), kMostJobBytes),
        "shorten it");
  }
}

Tree Pods::labels() const {
  return {{"app.kubernetes.io/name", "lockstep"},
          {"app.kubernetes.io/managed-by", "lockstep"},
          {kRunLabel, plain_name(submission_.run, 63)}};
}

Tree Pods::metadata() const {
  Tree metadata = {{"name", name_}};
  if (!settings_.name_space.empty()) metadata["namespace"] = settings_.name_space;
  metadata["labels"] = labels();
  return metadata;
}

Tree Pods::pod_metadata() const {
  Tree metadata = {{"labels", labels()}};
  metadata["labels"].update(tree_of(settings_.labels));
  if (!settings_.annotations.empty()) metadata["annotations"] = tree_of(settings_.annotations);
  return metadata;
}

Tree Pods::secret() const {
  return {{"apiVersion", "v1"},
          {"kind", "Secret"},
          {"metadata", metadata()},
          {"type", "Opaque"},
          {"stringData", {{"token", submission_.token}}}};
}

Tree Pods::config() const {
  if (!submission_.job) return {};
  return {{"apiVersion", "v1"},
          {"kind", "ConfigMap"},
          {"metadata", metadata()},
          {"data", {{"job.yaml", *submission_.job}}}};
}

std::vector<std::string> Pods::words() const {
  std::vector<std::string> words = submission_.words(std::string(kJobFolder) + "/job.yaml");
  for (std::string& word : words) word = unexpanded(word);
  return words;
}

// The first claim that can be written to: what is on it outlives a pod and is seen by all of them.
std::string Pods::home() const {
  if (!settings_.home.empty()) return settings_.home;
  for (const PodVolume& volume : settings_.volumes) {
    if (volume.kind == "claim" && !volume.read_only) {
      return volume.path + (volume.path.back() == '/' ? "" : "/") + "lockstep";
    }
  }
  return "";
}

Tree Pods::environment() const {
  Tree variables = Tree::array();
  variables.push_back(
      {{"name", "LOCKSTEP_TOKEN"}, {"valueFrom", {{"secretKeyRef", {{"name", name_}, {"key", "token"}}}}}});
  auto values = submission_.environment();
  if (!home().empty()) values.emplace("LOCKSTEP_HOME", home());
  for (const auto& [name, value] : values) variables.push_back(variable(name, value));
  return variables;
}

Tree Pods::resources() const {
  const LaunchSettings& launch = submission_.settings;
  Tree requests = Tree::object(), limits = Tree::object();
  if (launch.cpus_per_node > 0) requests["cpu"] = std::to_string(launch.cpus_per_node);  // a limit would slow it down
  if (launch.memory_per_node > 0) requests["memory"] = limits["memory"] = quantity(launch.memory_per_node);
  // Devices cannot be shared: the request is the limit.
  if (submission_.has_gpus()) limits[settings_.gpu] = std::to_string(submission_.ranks_per_node);
  for (const auto& [name, amount] : settings_.rdma) limits[name] = amount;
  Tree resources = Tree::object();
  if (!requests.empty()) resources["requests"] = requests;
  if (!limits.empty()) resources["limits"] = limits;
  return resources;
}

Tree Pods::volumes() const {
  Tree volumes = Tree::array();
  volumes.push_back(
      {{"name", "shm"}, {"emptyDir", {{"medium", "Memory"}, {"sizeLimit", quantity(settings_.shared_memory)}}}});
  if (submission_.job) volumes.push_back({{"name", "job"}, {"configMap", {{"name", name_}}}});
  for (std::size_t i = 0; i < settings_.volumes.size(); ++i) {
    Tree volume = {{"name", fmt::format("volume-{}", i)}};
    volume.update(source_of(settings_.volumes[i]));
    volumes.push_back(volume);
  }
  return volumes;
}

Tree Pods::mounts() const {
  Tree mounts = Tree::array();
  mounts.push_back({{"name", "shm"}, {"mountPath", "/dev/shm"}});
  if (submission_.job) mounts.push_back({{"name", "job"}, {"mountPath", kJobFolder}, {"readOnly", true}});
  for (std::size_t i = 0; i < settings_.volumes.size(); ++i) {
    const PodVolume& volume = settings_.volumes[i];
    Tree mount = {{"name", fmt::format("volume-{}", i)}, {"mountPath", volume.path}};
    if (!volume.sub_path.empty()) mount["subPath"] = volume.sub_path;
    if (volume.read_only) mount["readOnly"] = true;
    mounts.push_back(mount);
  }
  return mounts;
}

Tree Pods::container_security() const {
  Tree security = {{"allowPrivilegeEscalation", false}};
  Tree capabilities = Tree::object();
  if (settings_.user > 0) capabilities["drop"] = Tree::array({"ALL"});
  if (!settings_.rdma.empty()) capabilities["add"] = Tree::array({"IPC_LOCK"});  // to pin memory for the network card
  if (!capabilities.empty()) security["capabilities"] = capabilities;
  return security;
}

Tree Pods::pod_security() const {
  Tree security = {{"seccompProfile", {{"type", "RuntimeDefault"}}}};
  if (settings_.user < 0) return security;
  security["runAsUser"] = settings_.user;
  security["runAsGroup"] = settings_.user;
  security["fsGroup"] = settings_.user;
  if (settings_.user > 0) security["runAsNonRoot"] = true;
  return security;
}

Tree Pods::tolerations() const {
  Tree tolerations = Tree::array();
  for (const PodToleration& toleration : settings_.tolerations) {
    Tree entry = Tree::object();
    if (!toleration.key.empty()) entry["key"] = toleration.key;
    entry["operator"] = toleration.op;
    if (!toleration.value.empty()) entry["value"] = toleration.value;
    if (!toleration.effect.empty()) entry["effect"] = toleration.effect;
    tolerations.push_back(entry);
  }
  return tolerations;
}

Tree Pods::pull_secrets() const {
  Tree secrets = Tree::array();
  if (!settings_.image_pull_secret.empty()) secrets.push_back({{"name", settings_.image_pull_secret}});
  return secrets;
}

Tree Pods::pod(const std::string& container_name, const Tree& variables) const {
  Tree container = {{"name", container_name}, {"image", submission_.settings.image}};
  if (!settings_.image_pull_policy.empty()) container["imagePullPolicy"] = settings_.image_pull_policy;
  container["command"] = words();
  if (!submission_.settings.directory.empty()) container["workingDir"] = submission_.settings.directory;
  container["env"] = environment();
  for (const Tree& entry : variables) container["env"].push_back(entry);
  if (const Tree wanted = resources(); !wanted.empty()) container["resources"] = wanted;
  container["volumeMounts"] = mounts();
  container["securityContext"] = container_security();

  Tree spec = Tree::object();
  spec["terminationGracePeriodSeconds"] = grace_seconds();
  // Variables of other services of the namespace may have any name, ours among them.
  spec["enableServiceLinks"] = false;
  if (settings_.service_account.empty()) {
    spec["automountServiceAccountToken"] = false;
  } else {
    spec["serviceAccountName"] = settings_.service_account;
  }
  if (!settings_.priority.empty()) spec["priorityClassName"] = settings_.priority;
  if (!settings_.node_selector.empty()) spec["nodeSelector"] = tree_of(settings_.node_selector);
  if (const Tree tolerated = tolerations(); !tolerated.empty()) spec["tolerations"] = tolerated;
  if (const Tree secrets = pull_secrets(); !secrets.empty()) spec["imagePullSecrets"] = secrets;
  spec["securityContext"] = pod_security();
  spec["containers"] = Tree::array({container});
  spec["volumes"] = volumes();
  return {{"metadata", pod_metadata()}, {"spec", spec}};
}

std::int64_t Pods::grace_seconds() const {
  return static_cast<std::int64_t>(std::ceil(submission_.settings.notice_seconds));
}

std::vector<std::string> Pods::notes() const {
  std::vector<std::string> notes;
  if (home().empty()) {
    notes.emplace_back("no volume is shared: checkpoints are lost with their pods; name a claim in `volumes`");
  } else {
    notes.push_back("runs and checkpoints are kept in " + home() + ": it must be the same folder on every node");
  }
  notes.emplace_back("paths of the job are those in the container");
  if (!settings_.queue.empty()) {
    notes.push_back("suspended until Kueue admits it to queue " + settings_.queue);
  }
  return notes;
}

}  // namespace lockstep::schedulers
