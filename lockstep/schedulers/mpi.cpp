// `--on mpi`: ranks that mpirun starts. They find each other through MPI, so nothing else is needed; but mpirun ends
// all of them when one is lost.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/schedulers/all.h"
#include "lockstep/schedulers/children.h"

namespace lockstep::schedulers {
namespace {

class Mpi : public Scheduler {
 public:
  explicit Mpi(const LaunchSettings& settings) : hosts_(settings.hosts) {
    MapReader reader = settings.section("mpi");
    reader.name("mpirun", mpirun_);
    reader.texts("options", options_);
    reader.finish();
    const auto refuse = [](const std::string& what, const std::string& why) {
      throw bad_input(what + ": " + why, "leave it out, or launch on another scheduler");
    };
    if (!settings.image.empty()) refuse("launch.image", "mpirun starts programs, not containers");
    if (settings.spares > 0) refuse("launch.spares", "mpirun cannot replace a node");
    if (settings.time_seconds > 0) refuse("launch.time", "mpirun has no time limit");
  }

  Script script(const Submission& submission) const override {
    Script script;
    if (!hosts_.empty()) script.files.push_back({"hostfile", hostfile(submission), false});
    script.commands = {words(submission)};
    script.notes = {"Open MPI ends all ranks when one is lost: what is left is the last checkpoint"};
    if (!submission.job) {
      script.notes.emplace_back("the program finds its rank by MPI's variables; torchrun's are not set");
    }
    return script;
  }

  Submitted submit(const Submission& submission) override {
    children_.start({words(submission), variables(submission), "", ""});
    return {"mpirun", submission.run, submission.folder, nlohmann::json::object()};
  }

  State state(const Submitted&) override { return state_of_ends(children_); }
  std::unique_ptr<LogSource> open_log(const Submitted&) override { return follow_children(children_); }
  void cancel(const Submitted&) override { children_.interrupt(); }
  bool ends_with_submitter() const override { return true; }

 private:
  std::string hostfile(const Submission& submission) const {
    if (static_cast<std::int64_t>(hosts_.size()) < submission.nodes) {
      throw bad_input(fmt::format("the job needs {} nodes and {} machines are named", submission.nodes, hosts_.size()),
                      "name more in --hostfile");
    }
    std::vector<Host> merged;  // mpirun takes a machine once
    for (std::int64_t i = 0; i < submission.nodes; ++i) {
      const Host& host = hosts_[static_cast<std::size_t>(i)];
      if (host.slots != 0 && host.slots < submission.ranks_per_node) {
        throw bad_input(fmt::format("{} has {} slots and the job {} ranks per node", host.name, host.slots,
                                    submission.ranks_per_node),
                        "change the hostfile or the job's cluster");
      }
      const auto is_it = [&](const Host& one) { return one.name == host.name; };
      auto known = std::find_if(merged.begin(), merged.end(), is_it);
      if (known == merged.end()) known = merged.insert(merged.end(), Host{host.name, 0});
      known->slots += submission.ranks_per_node;
    }
    std::string text;
    for (const Host& host : merged) text += fmt::format("{} slots={}\n", host.name, host.slots);
    return text;
  }

  static std::map<std::string, std::string> variables(const Submission& submission) {
    auto variables = submission.environment();
    variables["LOCKSTEP_TOKEN"] = submission.token;
    if (const char* const home = std::getenv("LOCKSTEP_HOME")) variables.emplace("LOCKSTEP_HOME", home);
    return variables;
  }

  std::vector<std::string> words(const Submission& submission) const {
    const std::int64_t world = submission.nodes * submission.ranks_per_node;
    std::vector<std::string> words = {mpirun_, "-np", std::to_string(world)};
    if (::geteuid() == 0) words.emplace_back("--allow-run-as-root");
    if (hosts_.empty()) {
      words.emplace_back("--oversubscribe");  // all on this machine
    } else {
      words.insert(words.end(), {"--hostfile", (submission.folder / "hostfile").string()});
    }
    for (const auto& [name, value] : variables(submission)) words.insert(words.end(), {"-x", name});
    words.insert(words.end(), options_.begin(), options_.end());
    if (!submission.job) {
      words.insert(words.end(), submission.command.begin(), submission.command.end());
      return words;
    }
    std::vector<std::string> program = submission.words(submission.job_file().string());
    program[1] = "train";  // each process is a rank
    words.insert(words.end(), program.begin(), program.end());
    return words;
  }

  const std::vector<Host> hosts_;
  std::string mpirun_ = "mpirun";
  std::vector<std::string> options_;
  Children children_;
};

}  // namespace

std::unique_ptr<Scheduler> make_mpi(const LaunchSettings& settings) { return std::make_unique<Mpi>(settings); }

}  // namespace lockstep::schedulers
