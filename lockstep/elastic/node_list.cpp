#include "lockstep/elastic/node_list.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/elastic/service_nodes.h"

namespace lockstep::elastic {
namespace {

constexpr std::size_t kMostNodes = 100'000;

[[noreturn]] void refuse(const std::string& list, const std::string& why) {
  throw bad_input(fmt::format("node list \"{}\": {}", list, why),
                  "write it like n1,n2 or n[1-4] or 10.0.0.1:29400,...");
}

// Splits at commas outside brackets.
std::vector<std::string> split_list(const std::string& list) {
  std::vector<std::string> parts(1);
  int depth = 0;
  for (const char c : list) {
    depth += c == '[' ? 1 : c == ']' ? -1 : 0;
    if (depth < 0 || depth > 1) refuse(list, "brackets do not match");
    if (c == ',' && depth == 0) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  if (depth != 0) refuse(list, "brackets do not match");
  return parts;
}

void expand(const std::string& list, const std::string& part, std::vector<std::string>& hosts) {
  const std::size_t open = part.find('[');
  if (open == std::string::npos) {
    if (part.empty()) refuse(list, "a name is empty");
    hosts.push_back(part);
    return;
  }
  const std::size_t close = part.find(']');
  const std::string before = part.substr(0, open), after = part.substr(close + 1);
  for (const std::string& range : split(part.substr(open + 1, close - open - 1), ',')) {
    const std::string first = range.substr(0, range.find('-'));
    const std::string last = range.find('-') == std::string::npos ? first : range.substr(range.find('-') + 1);
    const auto from = whole_number(first), to = whole_number(last);
    if (!from || !to || *to < *from) refuse(list, "\"" + range + "\" is not a range");
    for (int number = *from; number <= *to; ++number) {
      if (hosts.size() >= kMostNodes) refuse(list, "too many nodes");
      expand(list, fmt::format("{}{:0{}d}{}", before, number, first.size(), after), hosts);
    }
  }
}

std::string this_host() {
  char name[256] = {};
  gethostname(name, sizeof(name) - 1);
  return name;
}

// Which of them is this host, by name.
int find_self(const std::vector<NodeAddress>& nodes, const std::string& list) {
  const std::string host = this_host(), short_name = host.substr(0, host.find('.'));
  int found = -1;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (nodes[i].host != host && nodes[i].host.substr(0, nodes[i].host.find('.')) != short_name) continue;
    if (found >= 0) refuse(list, fmt::format("{} is in it twice, say which with --node", nodes[i].host));
    found = static_cast<int>(i);
  }
  if (found < 0) refuse(list, fmt::format("this host, {}, is not in it; say which it is with --node", host));
  return found;
}

NodeList checked(std::vector<NodeAddress> nodes, int self, const std::string& source, const std::string& list,
                 const std::string& interface = "") {
  if (self < 0) self = find_self(nodes, list);
  if (self >= static_cast<int>(nodes.size())) {
    refuse(list, fmt::format("node {} of {}: numbers begin at 0", self, nodes.size()));
  }
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (std::find(nodes.begin() + static_cast<std::ptrdiff_t>(i) + 1, nodes.end(), nodes[i]) != nodes.end()) {
      refuse(list, fmt::format("{}:{} is in it twice", nodes[i].host, nodes[i].port));
    }
  }
  return {std::move(nodes), self, source, interface};
}

std::optional<NodeList> from_service(const VariableLookup& lookup) {
  const auto found = nodes_of_service(lookup);
  if (!found) return std::nullopt;
  std::vector<std::string> names;
  names.reserve(found->nodes.size());
  for (const NodeAddress& node : found->nodes) names.push_back(node.host);
  return checked(found->nodes, found->self, found->source, join(names, ","), found->interface);
}

}  // namespace

std::optional<int> whole_number(const std::string& text) {
  int value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (text.empty() || error != std::errc() || stop != end || value < 0) return std::nullopt;
  return value;
}

bool NodeList::on_loopback() const {
  return std::all_of(nodes.begin(), nodes.end(), [](const NodeAddress& node) {
    return node.host == "localhost" || node.host.rfind("127.", 0) == 0;
  });
}

std::vector<std::string> hosts_of(const std::string& list) {
  std::vector<std::string> hosts;
  for (const std::string& part : split_list(list)) expand(list, part, hosts);
  return hosts;
}

std::vector<NodeAddress> parse_nodes(const std::string& text, int port) {
  std::vector<NodeAddress> nodes;
  for (const std::string& name : hosts_of(text)) {
    const std::size_t colon = name.rfind(':');
    NodeAddress node{name.substr(0, colon), port};
    if (colon != std::string::npos) {
      const auto given = whole_number(name.substr(colon + 1));
      if (!given || *given < 1 || *given > 65535) refuse(text, "\"" + name.substr(colon + 1) + "\" is not a port");
      node.port = *given;
    }
    nodes.push_back(std::move(node));
  }
  return nodes;
}

std::optional<NodeList> find_nodes(const std::string& nodes, int node, const VariableLookup& lookup) {
  if (!nodes.empty()) return checked(parse_nodes(nodes, kUsualPort), node, "flags", nodes);
  if (const auto named = lookup("LOCKSTEP_NODES")) {
    const auto number = lookup("LOCKSTEP_NODE");
    if (number && !whole_number(*number)) {
      throw bad_input("environment variable LOCKSTEP_NODE=" + *number + " is not a whole number",
                      "set it to 0 or more");
    }
    const int self = node >= 0 ? node : number ? *whole_number(*number) : -1;
    return checked(parse_nodes(*named, kUsualPort), self, "lockstep", *named);
  }
  const auto tasks = lookup("SLURM_STEP_NUM_TASKS"), count = lookup("SLURM_STEP_NUM_NODES");
  const auto list = lookup("SLURM_STEP_NODELIST"), self = lookup("SLURM_NODEID");
  if (node >= 0) throw bad_input("--node is given and --nodes is not", "name the nodes with --nodes");
  if (!tasks || !count || !list || !self || *count == "1") return from_service(lookup);
  if (*tasks != *count) {
    throw bad_input(fmt::format("Slurm started {} tasks on {} nodes", *tasks, *count),
                    "start one agent per node: srun --ntasks-per-node=1 lockstep launch JOB.yaml");
  }
  const int port = derived_port(lookup("SLURM_JOB_ID").value_or("0") + "." + lookup("SLURM_STEP_ID").value_or("0"));
  return checked(parse_nodes(*list, port), whole_number(*self).value_or(-1), "slurm", *list);
}

}  // namespace lockstep::elastic
