#include "lockstep/elastic/roster.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <map>
#include <memory>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/elastic/host_address.h"
#include "lockstep/elastic/link.h"
#include "lockstep/elastic/sockets.h"
#include "lockstep/elastic/token_file.h"

namespace lockstep::elastic {
namespace {

using nlohmann::json;

constexpr int kPollMilliseconds = 50;
constexpr double kRetrySeconds = 0.2;
constexpr double kConnectSeconds = 3.0;
constexpr double kBeatSeconds = 1.0;
constexpr double kTellSeconds = 10.0;
constexpr std::size_t kMostStrangers = 4096;

std::string name_of(const NodeAddress& address) { return fmt::format("{}:{}", address.host, address.port); }

bool is_of_this_machine(const std::string& host) {
  addrinfo hints{};
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), "9", &hints, &found) != 0) return false;
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> guard(found, freeaddrinfo);
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    char text[INET_ADDRSTRLEN] = {};
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(entry->ai_addr)->sin_addr, text, sizeof(text));
    if (std::string_view(text).rfind("127.", 0) == 0 || !interface_of_address(text).empty()) return true;
  }
  return false;
}

void require_going_on(const RosterOptions& options) {
  if (options.stopped && options.stopped()) throw Fault(FaultKind::kAborted, -1, "stopped before the nodes had met");
}

// The node that has the endpoint.
class Host {
 public:
  Host(const Endpoint& endpoint, const RosterOptions& options, UniqueFd listener)
      : endpoint_(endpoint), options_(options), listener_(std::move(listener)) {}

  NodeList gather() {
    const double begun = monotonic_seconds();
    double told = begun, enough = -1.0;
    while (true) {
      require_going_on(options_);
      round();
      const double now = monotonic_seconds();
      const int there = static_cast<int>(joined_.size()) + 1;
      if (there >= endpoint_.fewest && enough < 0) enough = now;
      if (there < endpoint_.fewest) enough = -1.0;
      if (there == endpoint_.most || (enough >= 0 && now - enough >= endpoint_.last_call_seconds)) return settle();
      if (enough < 0 && now - begun > endpoint_.join_seconds) too_few(there);
      if (now - told > kTellSeconds && options_.note) {
        told = now;
        options_.note(fmt::format("{} of {} nodes are there", there, endpoint_.most));
      }
    }
  }

 private:
  struct Joined {
    std::unique_ptr<Link> link;
    NodeAddress address;
    int rank = -1;
    double beaten = 0.0;
  };

  void round() {
    Poller poller;
    poller.watch(listener_.get(), POLLIN, [] {});
    for (const auto& link : strangers_) link->watch(poller);
    for (const Joined& node : joined_) node.link->watch(poller);
    poller.run(kPollMilliseconds);
    const double now = monotonic_seconds();
    while (true) {
      UniqueFd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!fd || strangers_.size() >= kMostStrangers) break;
      strangers_.push_back(std::make_unique<Link>(std::move(fd), false));
    }
    for (auto& link : strangers_) greet(link, now);
    std::erase(strangers_, nullptr);
    for (Joined& node : joined_) {
      node.link->take();
      if (now - node.beaten > kBeatSeconds) node.link->send({{"type", "wait"}}), node.beaten = now;
    }
    std::erase_if(joined_, [](const Joined& node) { return !node.link->is_open(); });
  }

  void greet(std::unique_ptr<Link>& link, double now) {
    const std::vector<json> said = link->take();
    if (said.empty()) {
      if (!link->is_open() || now - link->opened() > kConnectSeconds) link.reset();
      return;
    }
    const json& join = said.front();
    json answer = refusal(join, options_.token, options_.job, name_of(endpoint_.address));
    const int rank = join.value("rank", -1);
    const bool taken = rank == endpoint_.node && rank >= 0;
    if (answer.is_null() && (taken || std::any_of(joined_.begin(), joined_.end(), [&](const Joined& other) {
                               return rank >= 0 && other.rank == rank;
                             }))) {
      answer = {{"type", "refused"},
                {"error", fmt::format("node rank {} is there already", rank)},
                {"fix", "give every node a --node-rank of its own"}};
    }
    std::unique_ptr<Link> owned = std::move(link);
    const std::string from = owned->peer();
    if (join.value("type", "") != "join") return;
    if (!answer.is_null()) {
      if (options_.note) options_.note(fmt::format("{} is refused: {}", from, answer.value("error", "")));
      owned->send(answer);
      return owned->flush(1.0);
    }
    const std::string address = join.value("address", "");
    joined_.push_back({std::move(owned), {address.empty() ? from : address, join.value("port", 0)}, rank, now});
  }

  [[noreturn]] void too_few(int there) {
    const std::string error = fmt::format("{} of {} nodes came to {} in {:.0f} s", there, endpoint_.fewest,
                                          name_of(endpoint_.address), endpoint_.join_seconds);
    const std::string fix = "start the same command on every node, and check that they reach this one";
    for (const Joined& node : joined_) {
      node.link->send({{"type", "refused"}, {"error", error}, {"fix", fix}});
      node.link->flush(0.5);
    }
    throw environment_error(error, fix);
  }

  NodeList settle() {
    // By rank where ranks were given; those without one after them, as they came.
    std::stable_sort(joined_.begin(), joined_.end(), [](const Joined& a, const Joined& b) {
      const auto key = [](int rank) { return rank < 0 ? 1 << 30 : rank; };
      return key(a.rank) < key(b.rank);
    });
    NodeList list{{endpoint_.address}, 0, "endpoint"};
    for (const Joined& node : joined_) list.nodes.push_back(node.address);
    for (std::size_t i = 0; i < joined_.size(); ++i) {
      joined_[i].link->send({{"type", "nodes"}, {"nodes", to_json(list.nodes)}, {"self", i + 1}});
    }
    for (const Joined& node : joined_) node.link->flush(2.0);
    return list;
  }

  const Endpoint& endpoint_;
  const RosterOptions& options_;
  UniqueFd listener_;
  std::vector<std::unique_ptr<Link>> strangers_;
  std::vector<Joined> joined_;
};

// A node that comes to the endpoint.
class Guest {
 public:
  Guest(const Endpoint& endpoint, const RosterOptions& options)
      : endpoint_(endpoint), options_(options), target_(endpoint.address), port_(find_free_port()) {}

  NodeList join() {
    const double begun = monotonic_seconds();
    double told = begun;
    while (true) {
      require_going_on(options_);
      const double now = monotonic_seconds();
      if (!link_ && now >= next_try_) connect(now);
      Poller poller;
      if (link_) link_->watch(poller);
      poller.run(kPollMilliseconds);
      if (auto list = answer()) return *list;
      if (link_ && (!link_->is_open() || (!link_->is_connected() && now - link_->opened() > kConnectSeconds))) {
        link_.reset();
        target_ = endpoint_.address;
      }
      if (now - begun > endpoint_.join_seconds) {
        throw environment_error(fmt::format("nobody let this node in at {} in {:.0f} s", name_of(endpoint_.address),
                                            endpoint_.join_seconds),
                                "start the same command on the node that has this address, and check that it is "
                                "reached from here");
      }
      if (now - told > kTellSeconds && options_.note) {
        told = now;
        options_.note(fmt::format("waiting at {}", name_of(target_)));
      }
    }
  }

 private:
  void connect(double now) {
    next_try_ = now + kRetrySeconds;
    UniqueFd fd = begin_to_connect(target_.host, target_.port);
    if (!fd) return;
    link_ = std::make_unique<Link>(std::move(fd), true);
    link_->send({{"type", "join"},
                 {"token", options_.token},
                 {"job", options_.job},
                 {"rank", endpoint_.node},
                 {"address", endpoint_.local_address},
                 {"port", port_}});
  }

  std::optional<NodeList> answer() {
    if (!link_) return std::nullopt;
    for (const json& message : link_->take()) {
      const std::string type = message.value("type", "");
      if (type == "refused") throw bad_input(message.value("error", "refused"), message.value("fix", ""));
      if (type == "elsewhere") {
        target_ = {message.value("host", endpoint_.address.host), message.value("port", endpoint_.address.port)};
        next_try_ = 0.0;
        link_.reset();
        return std::nullopt;
      }
      if (type != "nodes") continue;
      NodeList list{nodes_from(message.value("nodes", json::array())), message.value("self", -1), "endpoint"};
      if (list.self < 0 || list.self >= static_cast<int>(list.nodes.size()))
        throw bad_input("a list without this node");
      return list;
    }
    return std::nullopt;
  }

  const Endpoint& endpoint_;
  const RosterOptions& options_;
  NodeAddress target_;
  int port_;
  std::unique_ptr<Link> link_;
  double next_try_ = 0.0;
};

// The socket of the endpoint where this node has it; none where another one does.
UniqueFd own_listener(const Endpoint& endpoint, const RosterOptions& options) {
  const bool by_rank = endpoint.node >= 0;
  if (!endpoint.is_host.value_or(by_rank ? endpoint.node == 0 : is_of_this_machine(endpoint.address.host))) return {};
  const bool local = endpoint.address.host == "localhost" || endpoint.address.host.rfind("127.", 0) == 0;
  try {
    return listen_on({"the meeting of nodes", local ? "127.0.0.1" : "0.0.0.0", endpoint.address.port, options.token});
  } catch (const UserError&) {
    if (endpoint.is_host.value_or(by_rank)) throw;
    return {};  // another process of this machine was first
  }
}

}  // namespace

json to_json(const std::vector<NodeAddress>& nodes) {
  json list = json::array();
  for (const NodeAddress& node : nodes) list.push_back({{"host", node.host}, {"port", node.port}});
  return list;
}

std::vector<NodeAddress> nodes_from(const json& list) {
  std::vector<NodeAddress> nodes;
  for (const json& node : list) nodes.push_back({node.value("host", ""), node.value("port", 0)});
  return nodes;
}

json refusal(const json& join, const std::string& token, const std::string& job, const std::string& self) {
  if (!equal_tokens(join.value("token", ""), token)) {
    return {{"type", "refused"}, {"error", self + " has another secret than this node"}, {"fix", kOtherTokenFix}};
  }
  if (join.value("job", "") == job) return nullptr;
  return {{"type", "refused"},
          {"error", self + " was started with another job or command than this node"},
          {"fix", "start the same on every node"}};
}

NodeList meet(const Endpoint& endpoint, const RosterOptions& options) {
  if (UniqueFd listener = own_listener(endpoint, options)) return Host(endpoint, options, std::move(listener)).gather();
  return Guest(endpoint, options).join();
}

}  // namespace lockstep::elastic
