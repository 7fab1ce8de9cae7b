// `--on ssh`: an agent on every machine of a list, with nothing there but sshd and lockstep. What a node is to do goes
// through the connection's standard input, so that no shell sees a word of it; when the connection ends, the node's
// agent saves and ends too.
#include <fmt/format.h>

#include <cstdlib>
#include <functional>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/schedulers/all.h"
#include "lockstep/schedulers/children.h"

namespace lockstep::schedulers {
namespace {

// The first line is the executable, the second what it is to do.
constexpr const char* kRemoteCommand = "exec sh -c 'IFS= read -r program && exec \"$program\" launch --submission -'";
constexpr int kFirstPort = 20000, kPorts = 9000;  // below the ports that kernels hand out

class Ssh : public Scheduler {
 public:
  explicit Ssh(const LaunchSettings& settings) : hosts_(settings.hosts) {
    MapReader reader = settings.section("ssh");
    reader.name("user", user_);
    reader.count("port", port_, 1, 65535);
    reader.path("identity", identity_);
    reader.texts("options", options_);
    reader.finish();
    if (!settings.image.empty()) {
      throw bad_input("launch.image: ssh starts programs, not containers",
                      "leave it out, or launch on another scheduler");
    }
    if (settings.time_seconds > 0) {
      throw bad_input("launch.time: nobody ends a run that was started over ssh", "leave it out");
    }
  }

  Script script(const Submission& submission) const override {
    Script script;
    for (const Host& host : hosts_for(submission)) script.commands.push_back(words_for(host));
    script.notes = {
        "nodes find each other as " + nodes_variable(submission),
        "each node reads what it is to do from the connection; when the connection ends, it saves and ends"};
    return script;
  }

  Submitted submit(const Submission& submission) override {
    const std::vector<Host> hosts = hosts_for(submission);
    const std::string program = submission.words("").front();
    for (std::size_t i = 0; i < hosts.size(); ++i) {
      nlohmann::json start = to_json(submission);
      start["environment"]["LOCKSTEP_NODES"] = nodes_variable(submission);
      start["environment"]["LOCKSTEP_NODE"] = std::to_string(i);
      // Machines of one user see one home more often than not; launch.environment says otherwise.
      const char* const home = std::getenv("LOCKSTEP_HOME");
      if (home != nullptr && !submission.settings.environment.contains("LOCKSTEP_HOME")) {
        start["environment"]["LOCKSTEP_HOME"] = home;
      }
      start["directory"] =
          submission.settings.directory.empty() ? submission.directory.string() : submission.settings.directory;
      children_.start({words_for(hosts[i]),
                       {},
                       program + "\n" + start.dump() + "\n",
                       i == 0 ? "" : fmt::format("[{}] ", hosts[i].name)});
    }
    return {fmt::format("{} machines", hosts.size()), submission.run, submission.folder, nlohmann::json::object()};
  }

  State state(const Submitted&) override {
    State state = state_of_ends(children_);
    if (state.detail.empty()) state.detail = fmt::format("{} machines", children_.ends().size());
    return state;
  }

  std::unique_ptr<LogSource> open_log(const Submitted&) override { return follow_children(children_); }
  void cancel(const Submitted&) override { children_.tell("stop"); }
  bool ends_with_submitter() const override { return true; }

 private:
  std::vector<Host> hosts_for(const Submission& submission) const {
    const auto needed = static_cast<std::size_t>(submission.all_nodes());
    if (hosts_.size() >= needed) return hosts_;
    throw bad_input(fmt::format("the job needs {} nodes and {} machines are named", needed, hosts_.size()),
                    "name them: --hostfile FILE or --nodes n1,n2");
  }

  std::vector<std::string> words_for(const Host& host) const {
    std::vector<std::string> words = {"ssh", "-T",
                                      "-o",  "BatchMode=yes",
                                      "-o",  "ConnectTimeout=20",
                                      "-o",  "ServerAliveInterval=5",
                                      "-o",  "ServerAliveCountMax=3"};
    if (port_ != 0) words.insert(words.end(), {"-p", std::to_string(port_)});
    if (!user_.empty()) words.insert(words.end(), {"-l", user_});
    if (!identity_.empty()) words.insert(words.end(), {"-i", identity_});
    words.insert(words.end(), options_.begin(), options_.end());
    words.insert(words.end(), {"--", host.name, kRemoteCommand});
    return words;
  }

  // Two runs on the same machines rarely get the same port; agents of one machine never do.
  std::string nodes_variable(const Submission& submission) const {
    const std::vector<Host> hosts = hosts_for(submission);
    std::size_t port = std::hash<std::string>()(submission.run) % kPorts + kFirstPort;
    std::vector<std::string> nodes;
    nodes.reserve(hosts.size());
    for (const Host& host : hosts) nodes.push_back(fmt::format("{}:{}", host.name, port++));
    return join(nodes, ",");
  }

  const std::vector<Host> hosts_;
  std::string user_, identity_;
  std::int64_t port_ = 0;
  std::vector<std::string> options_;
  Children children_;
};

}  // namespace

std::unique_ptr<Scheduler> make_ssh(const LaunchSettings& settings) { return std::make_unique<Ssh>(settings); }

}  // namespace lockstep::schedulers
