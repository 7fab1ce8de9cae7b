#include "lockstep/elastic/service_nodes.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/json.h"
#include "lockstep/base/text.h"

namespace lockstep::elastic {
namespace {

using nlohmann::json;

std::string required(const VariableLookup& lookup, const std::string& name, const std::string& because) {
  const auto value = lookup(name);
  if (!value) throw bad_input(because + " is set and " + name + " is not", "set both, or neither");
  return *value;
}

int number(const VariableLookup& lookup, const std::string& name, const std::string& because) {
  const std::string text = required(lookup, name, because);
  const auto value = whole_number(text);
  if (!value) throw bad_input(name + "=" + printable(text) + " is not a whole number", "set it to 0 or more");
  return *value;
}

std::vector<NodeAddress> with_port(const std::vector<std::string>& hosts, int port) {
  std::vector<NodeAddress> nodes;
  nodes.reserve(hosts.size());
  for (const std::string& host : hosts) nodes.push_back({host, port});
  return nodes;
}

// One node needs no list.
std::optional<NodeList> several(NodeList list) {
  if (list.nodes.size() < 2) return std::nullopt;
  return list;
}

std::optional<NodeList> from_skypilot(const VariableLookup& lookup) {
  const auto listed = lookup("SKYPILOT_NODE_IPS");
  if (!listed) return std::nullopt;
  std::vector<std::string> hosts;
  for (const std::string& line : split(*listed, '\n')) {
    if (const std::string_view host = trim(line); !host.empty()) hosts.emplace_back(host);
  }
  const int self = number(lookup, "SKYPILOT_NODE_RANK", "SKYPILOT_NODE_IPS");
  const std::string task = lookup("SKYPILOT_TASK_ID").value_or("");
  const std::string job = lookup("SKYPILOT_INTERNAL_JOB_ID").value_or("");
  return several({with_port(hosts, derived_port(task + "." + job)), self, "skypilot", ""});
}

std::optional<NodeList> from_sage_maker(const std::vector<std::string>& hosts, const std::string& current,
                                        const std::string& interface) {
  const auto found = std::find(hosts.begin(), hosts.end(), current);
  if (found == hosts.end()) {
    throw bad_input(fmt::format("SageMaker names this host {}, which is not one of {}", printable(current),
                                printable(join(hosts, ", "), 200)),
                    "SM_CURRENT_HOST must be one of SM_HOSTS");
  }
  return several({with_port(hosts, kUsualPort), static_cast<int>(found - hosts.begin()), "sagemaker", interface});
}

std::optional<NodeList> from_sage_maker(const VariableLookup& lookup, const std::filesystem::path& file) {
  if (const auto hosts = lookup("SM_HOSTS")) {
    const json value = {{"SM_HOSTS", parse_json(*hosts, "SM_HOSTS")}};
    return from_sage_maker(JsonReader(value, "environment").texts("SM_HOSTS"),
                           required(lookup, "SM_CURRENT_HOST", "SM_HOSTS"),
                           lookup("SM_NETWORK_INTERFACE_NAME").value_or(""));
  }
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(file, ignored)) return std::nullopt;
  const json value = read_json_file(file, 1 << 20);
  const JsonReader reader(value, printable_path(file));
  return from_sage_maker(reader.texts("hosts"), reader.text("current_host"), reader.text("network_interface_name", ""));
}

// {"cluster": {"workerpool0": ["host:2222"], ...}, "task": {"type": "workerpool0", "index": 0}} of Vertex AI; TF_CONFIG
// has the same form with other names. `roles`: those that train, in their order.
std::optional<NodeList> from_cluster_spec(const std::string& name, const std::string& text,
                                          const std::vector<std::string>& roles, const std::string& source) {
  const json value = parse_json(text, name);
  const JsonReader reader(value, name);
  const JsonReader cluster = reader.object("cluster"), task = reader.object("task");
  const std::string type = task.text("type");
  const auto index = static_cast<int>(task.integer("index", 0, 1'000'000));
  NodeList list{{}, -1, source, ""};
  for (const std::string& role : roles) {
    if (!cluster.has(role)) continue;
    if (role == type) list.self = static_cast<int>(list.nodes.size()) + index;
    const std::vector<std::string> hosts = cluster.texts(role);
    if (role == type && index >= static_cast<int>(hosts.size())) {
      throw bad_input(fmt::format("{} says task {} of {} {}s", name, index, hosts.size(), role), "numbers begin at 0");
    }
    for (const std::string& host : hosts) list.nodes.push_back(parse_nodes(host, kUsualPort).front());
  }
  if (list.self < 0) {
    throw bad_input(fmt::format("{} says that this task is a \"{}\", which does not train", name, printable(type)),
                    "known: " + join(roles, ", "));
  }
  return several(list);
}

}  // namespace

std::optional<NodeList> nodes_of_service(const VariableLookup& lookup, const std::filesystem::path& sage_maker_file) {
  if (auto nodes = from_skypilot(lookup)) return nodes;
  if (auto nodes = from_sage_maker(lookup, sage_maker_file)) return nodes;
  if (const auto spec = lookup("CLUSTER_SPEC")) {
    return from_cluster_spec("CLUSTER_SPEC", *spec, {"workerpool0", "workerpool1", "workerpool2", "workerpool3"},
                             "vertex");
  }
  if (const auto config = lookup("TF_CONFIG")) {
    return from_cluster_spec("TF_CONFIG", *config, {"chief", "master", "worker"}, "tf_config");
  }
  return std::nullopt;
}

std::optional<ServiceEndpoint> endpoint_of_service(const VariableLookup& lookup) {
  const auto run = lookup("AZUREML_RUN_ID");
  if (!run || !lookup("AZUREML_NODE_COUNT")) return std::nullopt;
  ServiceEndpoint endpoint;
  endpoint.source = "azureml";
  endpoint.nodes = number(lookup, "AZUREML_NODE_COUNT", "AZUREML_RUN_ID");
  if (endpoint.nodes < 2) return std::nullopt;
  std::string host;
  for (const char* name : {"AZ_BATCHAI_MPI_MASTER_NODE", "AZ_BATCH_MASTER_NODE", "MASTER_ADDR"}) {
    if (host.empty()) host = lookup(name).value_or("");
  }
  host = host.substr(0, host.rfind(':'));
  if (host.empty()) {
    throw bad_input("AZUREML_NODE_COUNT is set, and neither MASTER_ADDR nor AZ_BATCH_MASTER_NODE is",
                    "give the job a distribution: {type: pytorch, process_count_per_instance: 1}");
  }
  endpoint.address = {host, derived_port(*run)};
  endpoint.node = number(lookup, lookup("NODE_RANK") ? "NODE_RANK" : "OMPI_COMM_WORLD_RANK", "AZUREML_NODE_COUNT");
  if (endpoint.node >= endpoint.nodes) {
    throw bad_input(fmt::format("Azure ML says node {} of {}", endpoint.node, endpoint.nodes),
                    "start one agent per node: process_count_per_instance: 1");
  }
  return endpoint;
}

}  // namespace lockstep::elastic
