#include <fmt/format.h>
#include <gtest/gtest.h>

#include "lockstep/base/text.h"
#include "lockstep/schedulers/kubectl.h"
#include "lockstep/schedulers/scheduler.h"
#include "lockstep/schedulers/yaml_writer.h"
#include "tests/base/expect_user_error.h"

namespace lockstep::schedulers {
namespace {

template <class Action>
void expect_user_error(Action action, ExitCode code, const std::string& part) {
  EXPECT_HAS(testing::user_error(action, code), part);
}

// What YAML, shells and Kubernetes might take for something else than text.
const std::vector<std::string> kHostile = {
    "it's \"quoted\"",
    "$(touch /tmp/owned)",
    "$$(HOME) $HOME ${HOME} $",
    "&anchor *alias !!tag",
    "- item",
    "key: value",
    "value # comment",
    "--kubeconfig=/etc/passwd",
    "yes",
    "No",
    "null",
    "~",
    "0x1F",
    "1e5",
    "12",
    ".inf",
    "2026-11-16",
    "---",
    "...",
    "%YAML 1.1",
    "{a: 1}",
    "[a]",
    "| literal",
    "trailing ",
    " leading",
    "back\\slash",
    "Grüße 模型 🚀",
    "",
};
const std::vector<std::string> kHostileLines = {
    "two\nlines",
    "a\n---\nkind: Secret\n",
    "tab\there",
    "\n",
    "first\n\n\n",
    "  indented\nfirst\n",
    "carriage\rreturn\n",
    "separator\xe2\x80\xa8here",
    "next\xc2\x85line",
    "mark\xef\xbb\xbfhere",
    std::string("bell\x07"),
};

YamlNode read_back(const Tree& tree) { return parse_yaml(yaml_text(tree), "written"); }

LaunchSettings settings_of(const std::string& yaml) {
  const YamlNode node = parse_yaml(yaml, "launch");
  return read_settings(&node);
}

Submission demo(const LaunchSettings& settings) {
  Submission submission;
  submission.run = "20261116-120000-abcdef-demo";
  submission.name = "demo";
  submission.job = "model: gpt2-124m\nsteps: 10\n";
  submission.flags = {"--json"};
  submission.nodes = 4;
  submission.ranks_per_node = 8;
  submission.device = "H100";
  submission.token = "s3cret-t0ken";
  submission.folder = "/runs/demo";
  submission.lockstep = "/usr/bin/lockstep";
  submission.settings = settings;
  return submission;
}

struct Manifests {
  std::string secret, text;
  std::vector<YamlNode> documents;
  const YamlNode& last() const { return documents.back(); }
};

Manifests manifests(const std::string& on, const Submission& submission) {
  const Script script = make_scheduler(on, submission.settings)->script(submission);
  Manifests found;
  for (const File& file : script.files) (file.secret ? found.secret : found.text) += file.text;
  std::string document;
  for (const std::string& line : split(found.text, '\n')) {
    if (line == "---") found.documents.push_back(parse_yaml(std::exchange(document, ""), "manifest"));
    if (line != "---") document += line + "\n";
  }
  found.documents.push_back(parse_yaml(document, "manifest"));
  return found;
}

const YamlNode& at(const YamlNode& node, const std::string& path) {
  const YamlNode* here = &node;
  for (const std::string& part : split(path, '.')) {
    const bool number = !part.empty() && part.find_first_not_of("0123456789") == std::string::npos;
    if (number && here->is_sequence() && std::stoul(part) < here->items.size()) {
      here = &here->items[std::stoul(part)];
    } else if (const YamlNode* child = here->find(part)) {
      here = child;
    } else {
      throw std::runtime_error("no " + path);
    }
  }
  return *here;
}

const char* const kPodOf = "spec.replicatedJobs.0.template.spec.template.spec";

const YamlNode& container_of(const YamlNode& job_set) { return at(job_set, fmt::format("{}.containers.0", kPodOf)); }

// What the kubelet makes of text that is not a reference to a variable.
std::string expanded(const std::string& text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    out += text[i];
    if (text[i] == '$' && i + 1 < text.size() && text[i + 1] == '$')
      ++i;
    else if (text[i] == '$' && i + 1 < text.size() && text[i + 1] == '(')
      ADD_FAILURE() << text << " is expanded";
  }
  return out;
}

std::map<std::string, std::string> environment_of(const YamlNode& container) {
  std::map<std::string, std::string> variables;
  for (const YamlNode& entry : at(container, "env").items) {
    const YamlNode* value = entry.find("value");
    variables[at(entry, "name").scalar] = value != nullptr ? expanded(value->scalar) : "(from elsewhere)";
  }
  return variables;
}

std::vector<std::string> command_of(const YamlNode& container) {
  std::vector<std::string> words;
  for (const YamlNode& word : at(container, "command").items) words.push_back(expanded(word.scalar));
  return words;
}

TEST(YamlText, hostile_text_reads_back_as_the_same_text) {
  std::vector<std::string> all = kHostile;
  all.insert(all.end(), kHostileLines.begin(), kHostileLines.end());
  for (const std::string& text : all) {
    const YamlNode node = read_back({{"value", text}, {"list", Tree::array({text, {{"deep", text}}})}});
    EXPECT_EQ(at(node, "value").scalar, text);
    EXPECT_EQ(at(node, "list.0").scalar, text);
    EXPECT_EQ(at(node, "list.1.deep").scalar, text);
    EXPECT_EQ(node.entries.size(), 2u) << text;
  }
}

TEST(YamlText, words_that_yaml_1_1_takes_for_numbers_or_truths_are_quoted) {
  for (const char* word : {"yes", "On", "n", "true", "null", "12", "1e5", "0x10", "1_000", ".5", "-1", "+1"}) {
    EXPECT_EQ(yaml_text(Tree{{"key", word}}), fmt::format("key: \"{}\"\n", word));
    EXPECT_EQ(yaml_text(Tree{{word, 1}}), fmt::format("\"{}\": 1\n", word));
  }
}

TEST(YamlText, a_file_stands_as_it_is) {
  EXPECT_EQ(yaml_text(Tree{{"data", {{"job.yaml", "a: 1\n\n  b: &x 2\n"}}}}),
            "data:\n  job.yaml: |\n    a: 1\n\n      b: &x 2\n");
}

TEST(YamlText, bytes_that_are_not_text_are_refused) {
  expect_user_error([] { yaml_text(Tree{{"key", "\xff\xfe"}}); }, ExitCode::kUsage, "is not UTF-8");
}

TEST(Kubernetes, every_node_knows_its_number_and_the_names_of_all) {
  const YamlNode job_set = manifests("kubernetes", demo(settings_of("image: repo/lockstep:1"))).last();
  const std::string name = at(job_set, "metadata.name").scalar;
  EXPECT_EQ(environment_of(container_of(job_set))["LOCKSTEP_NODES"], fmt::format("{0}-node-0-[0-3].{0}:29400", name));
  EXPECT_EQ(at(job_set, "spec.network.subdomain").scalar, name);
  EXPECT_EQ(at(job_set, "spec.replicatedJobs.0.template.spec.completions").scalar, "4");
  EXPECT_EQ(at(job_set, "spec.replicatedJobs.0.template.spec.parallelism").scalar, "4");
  EXPECT_EQ(at(container_of(job_set), "resources.limits").find("nvidia.com/gpu")->scalar, "8");
}

TEST(Kubernetes, exit_codes_decide_what_is_started_again) {
  const YamlNode job_set = manifests("kubernetes", demo(settings_of("image: i"))).last();
  const YamlNode& job = at(job_set, "spec.replicatedJobs.0.template.spec");
  std::map<std::string, std::string> actions;
  for (const YamlNode& rule : at(job, "podFailurePolicy.rules").items) {
    if (rule.find("onExitCodes") == nullptr) continue;
    for (const YamlNode& code : at(rule, "onExitCodes.values").items) actions[code.scalar] = at(rule, "action").scalar;
  }
  const std::map<std::string, std::string> expected = {{"1", "FailJob"},   {"2", "FailJob"}, {"3", "FailJob"},
                                                       {"4", "FailIndex"}, {"75", "Ignore"}, {"130", "Ignore"}};
  EXPECT_EQ(actions, expected);
  const YamlNode& done = at(job, "successPolicy.rules.0");
  EXPECT_EQ(at(done, "succeededCount").scalar, "1");
  EXPECT_EQ(done.entries.size(), 1u);  // of any nodes; "0-0" would not be a range
  EXPECT_EQ(at(job, "backoffLimitPerIndex").scalar, "10");
  EXPECT_EQ(at(job_set, "spec.failurePolicy.maxRestarts").scalar, "0");
}

TEST(Kubernetes, the_token_is_in_the_secret_alone) {
  for (const char* on : {"kubernetes", "kubeflow"}) {
    const Submission submission = demo(settings_of("image: repo/lockstep:1"));
    const Manifests found = manifests(on, submission);
    EXPECT_NE(found.secret.find(submission.token), std::string::npos);
    EXPECT_EQ(found.text.find(submission.token), std::string::npos);
    const Script script = make_scheduler(on, submission.settings)->script(submission);
    for (const auto& command : script.commands) EXPECT_EQ(join(command, " ").find(submission.token), std::string::npos);
  }
}

TEST(Kubernetes, an_image_is_needed) {
  const Submission submission = demo(settings_of("{}"));
  expect_user_error([&] { make_scheduler("kubernetes", submission.settings)->script(submission); }, ExitCode::kUsage,
                    "launch.image");
}

TEST(Kubernetes, unknown_keys_and_bad_volumes_are_refused) {
  const auto refused = [](const std::string& section, const std::string& what) {
    const LaunchSettings settings = settings_of("image: i\nkubernetes: " + section);
    expect_user_error([&] { make_scheduler("kubernetes", settings); }, ExitCode::kUsage, what);
  };
  refused("{namspace: x}", "did you mean `namespace`");
  refused("{volumes: [{path: /data}]}", "does not say what it is");
  refused("{volumes: [{claim: c, path: data}]}", "is not an absolute path");
  refused("{volumes: [{claim: c, secret: s, path: /d}]}", "a volume is one thing");
  refused("{labels: {lockstep/run: mine}}", "is set by the launcher");
  refused("{namespace: \"--all\"}", "is not the name of a namespace");
  refused("{rdma: {rdma/ib: \"1\\n2\"}}", "is not one line of text");
}

TEST(Kubernetes, a_long_name_and_many_nodes_still_make_dns_labels) {
  Submission submission = demo(settings_of("image: i"));
  submission.run = "20261116-120000-abcdef-" + std::string(200, 'X') + "_é";
  for (const std::int64_t nodes : {2, 10, 1000, 20000}) {
    submission.nodes = nodes;
    const std::string name = at(manifests("kubernetes", submission).last(), "metadata.name").scalar;
    EXPECT_LE(fmt::format("{}-node-0-{}-abcde", name, nodes - 1).size(), 63u);
    EXPECT_EQ(name, dns_label(name));
    EXPECT_EQ(name.rfind("r20261116-120000-abcdef", 0), 0u) << name;
  }
}

TEST(Kubernetes, hostile_values_stay_values) {
  Submission submission = demo(settings_of("image: i"));
  submission.flags = kHostile;
  for (std::size_t i = 0; i < kHostile.size(); ++i)
    submission.settings.environment[fmt::format("V{}", i)] = kHostile[i];
  submission.settings.image = "repo/$(IMAGE):\"1\"";
  submission.settings.directory = "/work/$(DIR)\n- x";
  for (const std::string& job : kHostileLines) {
    submission.job = job;
    const Manifests found = manifests("kubernetes", submission);
    ASSERT_EQ(found.documents.size(), 2u) << job;
    EXPECT_EQ(found.documents[0].find("data")->entries.size(), 1u);
    EXPECT_EQ(found.documents[0].find("data")->entries[0].value.scalar, job);
    const YamlNode& container = container_of(found.last());
    std::vector<std::string> words = {"lockstep", "launch", "/etc/lockstep/job.yaml"};
    words.insert(words.end(), kHostile.begin(), kHostile.end());
    EXPECT_EQ(command_of(container), words);
    EXPECT_EQ(at(container, "image").scalar, submission.settings.image);
    EXPECT_EQ(at(container, "workingDir").scalar, submission.settings.directory);
    auto variables = environment_of(container);
    for (std::size_t i = 0; i < kHostile.size(); ++i) EXPECT_EQ(variables[fmt::format("V{}", i)], kHostile[i]);
  }
}

TEST(Kubernetes, hostile_settings_stay_values) {
  Submission submission = demo(settings_of(R"yaml(
image: i
kubernetes:
  context: "--insecure"
  queue: "q: {x: &a 1}"
  priority: "$(PRIORITY)"
  node_selector: {"zone\"x": "*alias"}
  volumes: [{claim: "c, d", path: "/data/$(X) # y", sub_path: "a\"b"}]
)yaml"));
  const Manifests found = manifests("kubernetes", submission);
  const YamlNode& pod = at(found.last(), kPodOf);
  EXPECT_EQ(at(pod, "priorityClassName").scalar, "$(PRIORITY)");
  EXPECT_EQ(at(pod, "nodeSelector").entries.at(0).key, "zone\"x");
  EXPECT_EQ(at(pod, "nodeSelector").entries.at(0).value.scalar, "*alias");
  EXPECT_EQ(at(pod, "volumes.2.persistentVolumeClaim.claimName").scalar, "c, d");
  EXPECT_EQ(at(pod, "containers.0.volumeMounts.2.mountPath").scalar, "/data/$(X) # y");
  const Script script = make_scheduler("kubernetes", submission.settings)->script(submission);
  EXPECT_EQ(script.commands.front().at(1), "--context=--insecure");
}

TEST(Kubernetes, a_shared_claim_holds_the_runs) {
  const auto home = [](const std::string& section) {
    const Submission submission = demo(settings_of("image: i\nkubernetes: " + section));
    return environment_of(container_of(manifests("kubernetes", submission).last()))["LOCKSTEP_HOME"];
  };
  EXPECT_EQ(home("{}"), "");
  EXPECT_EQ(home("{volumes: [{claim: a, path: /ro, read_only: true}, {claim: b, path: /data}]}"), "/data/lockstep");
  EXPECT_EQ(home("{home: /mine, volumes: [{claim: b, path: /data}]}"), "/mine");
}

TEST(Kubernetes, a_queue_suspends_until_it_is_admitted) {
  for (const char* on : {"kubernetes", "kubeflow"}) {
    const Submission submission = demo(settings_of(fmt::format("image: i\n{}: {{queue: team-a}}", on)));
    const YamlNode job = manifests(on, submission).last();
    EXPECT_EQ(at(job, "metadata.labels").find("kueue.x-k8s.io/queue-name")->scalar, "team-a");
    EXPECT_EQ(at(job, "spec.suspend").scalar, "true");
  }
}

TEST(Kubernetes, without_requeue_no_pod_is_made_anew_and_the_others_go_on) {
  const YamlNode job_set = manifests("kubernetes", demo(settings_of("image: i\nrequeue: false"))).last();
  const YamlNode& job = at(job_set, "spec.replicatedJobs.0.template.spec");
  EXPECT_EQ(at(job, "backoffLimitPerIndex").scalar, "0");
  EXPECT_EQ(at(job, "maxFailedIndexes").scalar, "4");
  for (const YamlNode& rule : at(job, "podFailurePolicy.rules").items) EXPECT_NE(at(rule, "action").scalar, "Ignore");
}

TEST(Kubernetes, a_time_limit_starts_the_set_again) {
  const YamlNode job_set = manifests("kubernetes", demo(settings_of("image: i\ntime: 2h\nnotice: 3m"))).last();
  EXPECT_EQ(at(job_set, "spec.replicatedJobs.0.template.spec.activeDeadlineSeconds").scalar, "7200");
  EXPECT_EQ(at(job_set, fmt::format("{}.terminationGracePeriodSeconds", kPodOf)).scalar, "180");
  EXPECT_EQ(at(job_set, "spec.failurePolicy.rules.0.onJobFailureReasons.0").scalar, "DeadlineExceeded");
}

// Host names of its pods are NAME-master-0 and NAME-worker-N, by which agents know themselves.
TEST(Kubeflow, a_pytorchjob_names_its_nodes_by_their_host_names) {
  const Submission submission = demo(settings_of("image: i\nkubeflow: {kind: pytorchjob}"));
  const YamlNode job = manifests("kubeflow", submission).last();
  const std::string name = at(job, "metadata.name").scalar;
  EXPECT_EQ(at(job, "spec.pytorchReplicaSpecs.Master.replicas").scalar, "1");
  EXPECT_EQ(at(job, "spec.pytorchReplicaSpecs.Worker.replicas").scalar, "3");
  for (const char* replica : {"Master", "Worker"}) {
    const YamlNode& container = at(job, fmt::format("spec.pytorchReplicaSpecs.{}.template.spec.containers.0", replica));
    EXPECT_EQ(environment_of(container)["LOCKSTEP_NODES"],
              fmt::format("{0}-master-0:29400,{0}-worker-[0-2]:29400", name));
    EXPECT_EQ(command_of(container),
              std::vector<std::string>({"lockstep", "launch", "/etc/lockstep/job.yaml", "--json"}));
  }
}

TEST(Kubeflow, a_trainjob_refuses_what_it_has_no_place_for) {
  const auto refused = [](const std::string& launch) {
    const LaunchSettings settings = settings_of("image: i\n" + launch);
    expect_user_error([&] { make_scheduler("kubeflow", settings)->script(demo(settings)); }, ExitCode::kUsage,
                      "a TrainJob has no place for it");
  };
  refused("kubeflow: {priority: high}");
  refused("kubeflow: {keep: 1h}");
  refused("kubeflow: {restarts: 3}");
  refused("directory: /work");
  refused("requeue: false");
}

TEST(Kubeflow, another_verb_runs_on_the_same_nodes) {
  for (const char* on : {"kubernetes", "kubeflow"}) {
    Submission submission =
        demo(settings_of(fmt::format("image: i\n{}", on[4] == 'f' ? "kubeflow: {kind: pytorchjob}" : "")));
    submission.job.reset();
    submission.verb = "doctor";
    submission.flags = {"--nodes"};
    const Manifests found = manifests(on, submission);
    EXPECT_NE(found.text.find("- lockstep\n"), std::string::npos) << found.text;
    EXPECT_NE(found.text.find("- doctor\n"), std::string::npos) << found.text;
  }
}

TEST(Kubeflow, a_foreign_program_needs_no_config_map) {
  for (const char* on : {"kubernetes", "kubeflow"}) {
    Submission submission = demo(settings_of("image: i"));
    submission.job.reset();
    submission.command = {"python3", "train.py", "--lr=$(LR)"};
    EXPECT_EQ(manifests(on, submission).documents.size(), 1u);
    EXPECT_EQ(manifests(on, submission).text.find("configMap"), std::string::npos);
  }
}

// ---- what a cluster answers ----

nlohmann::json pod(int node, const nlohmann::json& state, int restarts = 0) {
  return {{"kind", "Pod"},
          {"metadata",
           {{"name", fmt::format("demo-node-0-{}-x", node)},
            {"uid", fmt::format("u{}", node)},
            {"annotations", {{"batch.kubernetes.io/job-completion-index", std::to_string(node)}}}}},
          {"status",
           {{"containerStatuses",
             nlohmann::json::array({{{"name", "node"}, {"restartCount", restarts}, {"state", state}}})}}}};
}

nlohmann::json condition(const std::string& type, const std::string& reason, const std::string& message) {
  return {{"type", type}, {"status", "True"}, {"reason", reason}, {"message", message}};
}

ClusterState answer(const nlohmann::json& status, const nlohmann::json& pods) {
  nlohmann::json items = pods;
  items.push_back({{"kind", "JobSet"}, {"metadata", {{"name", "demo"}}}, {"status", status}});
  return read_cluster_state(nlohmann::json{{"kind", "List"}, {"items", items}}.dump(), "JobSet");
}

const nlohmann::json kRunning = {{"running", nlohmann::json::object()}};

TEST(ClusterStates, a_run_whose_agents_run_is_running) {
  const ClusterState found = answer({{"restarts", 1}}, nlohmann::json::array({pod(1, kRunning, 2), pod(0, kRunning)}));
  EXPECT_EQ(found.state.phase, Phase::kRunning);
  EXPECT_EQ(found.state.detail, "2 of 2 pods run");
  EXPECT_EQ(found.state.starts, 3);
  EXPECT_EQ(found.pods.front().node, 0);
}

TEST(ClusterStates, what_a_pod_waits_for_is_told) {
  const nlohmann::json waits = {{"waiting", {{"reason", "ImagePullBackOff"}, {"message", "no such image"}}}};
  const State state = answer({}, nlohmann::json::array({pod(0, waits)})).state;
  EXPECT_EQ(state.phase, Phase::kQueued);
  EXPECT_EQ(state.detail, "demo-node-0-0-x: ImagePullBackOff: no such image");
}

TEST(ClusterStates, a_suspended_set_is_queued) {
  const nlohmann::json status = {{"conditions", {condition("Suspended", "SuspendedJobs", "jobset is suspended")}}};
  const State state = answer(status, nlohmann::json::array()).state;
  EXPECT_EQ(state.phase, Phase::kQueued);
  EXPECT_EQ(state.detail, "SuspendedJobs: jobset is suspended");
}

TEST(ClusterStates, the_exit_code_of_a_failed_run_is_the_one_that_tells_most) {
  const auto ended = [](int code) -> nlohmann::json { return {{"terminated", {{"exitCode", code}}}}; };
  const nlohmann::json status = {{"conditions", {condition("Failed", "FailedJobs", "jobset failed")}}};
  const State state =
      answer(status, nlohmann::json::array({pod(0, ended(137)), pod(1, ended(75)), pod(2, ended(3)), pod(3, ended(0))}))
          .state;
  EXPECT_EQ(state.phase, Phase::kFailed);
  EXPECT_EQ(state.exit_code, 3);
}

TEST(ClusterStates, done_cancelled_and_nonsense) {
  const nlohmann::json status = {{"conditions", {condition("Completed", "AllJobsCompleted", "ok")}}};
  EXPECT_EQ(answer(status, nlohmann::json::array()).state.phase, Phase::kDone);
  EXPECT_EQ(read_cluster_state(R"({"items": []})", "JobSet").state.phase, Phase::kCancelled);
  expect_user_error([] { read_cluster_state("Error from server", "JobSet"); }, ExitCode::kEnvironment, "not a list");
}

TEST(ClusterStates, a_deleted_set_runs_until_its_pods_have_saved) {
  const nlohmann::json list = {{"items", nlohmann::json::array({pod(0, kRunning), pod(1, kRunning)})}};
  const State state = read_cluster_state(list.dump(), "JobSet").state;
  EXPECT_EQ(state.phase, Phase::kRunning);
  EXPECT_EQ(state.detail, "deleted; pods that still save: 2");
}

TEST(ClusterStates, an_answer_of_another_shape_is_no_reason_to_fall) {
  const char* const strange = R"({"items": [7, null, {"kind": 3}, {"kind": "Pod", "metadata": [], "status": {
      "containerStatuses": [{"restartCount": "x", "state": null}], "conditions": [1]}},
      {"kind": "JobSet", "status": {"conditions": "none", "restarts": {}}}]})";
  EXPECT_EQ(read_cluster_state(strange, "JobSet").state.phase, Phase::kQueued);
}

}  // namespace
}  // namespace lockstep::schedulers
