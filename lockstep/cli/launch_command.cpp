#include "lockstep/cli/launch_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/cli/foreign_session.h"
#include "lockstep/cli/signals.h"
#include "lockstep/elastic/host_address.h"
#include "lockstep/elastic/token_file.h"
#include "lockstep/telemetry/recorder.h"

namespace lockstep::cli {
namespace {

constexpr int kUsualRestarts = 3;
constexpr const char* kGroup = "A command in place of a job, and where nodes meet (torchrun's flags)";

bool is_job(const std::string& word) {
  const std::string extension = std::filesystem::path(word).extension().string();
  return extension == ".yaml" || extension == ".yml";
}

// `launch.time=4h`: where a command runs, as a job file would say it.
bool is_setting(const std::string& word) {
  return word.rfind("launch.", 0) == 0 && word.find('=') != std::string::npos;
}

// Whether the word after this flag is its value.
bool takes_next(const CLI::App& verb, const std::string& flag) {
  if (flag.find('=') != std::string::npos) return false;
  const CLI::Option* const option = verb.get_option_no_throw(flag);
  if (option == nullptr) return false;
  return option->get_items_expected_min() > 0;
}

double number_of(const std::string& text, const char* flag, double otherwise) {
  if (text.empty()) return otherwise;
  double value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && stop == text.data() + text.size() && value >= 0 && value <= 1e6) return value;
  throw bad_input(fmt::format("{} {} is not a number of 0 or more", flag, printable(text)), "give one, such as 3");
}

std::string name_of(const LaunchFlags& flags, const std::vector<std::string>& words) {
  if (!flags.name.empty()) return flags.name;
  // The script says more than the interpreter that runs it.
  const auto script = std::find_if(words.begin(), words.end(), [](const std::string& word) {
    return std::filesystem::path(word).extension() == ".py";
  });
  return std::filesystem::path(script == words.end() ? words.front() : *script).stem().string();
}

spec::NodeChecks checks_of(const std::string& health) {
  if (health == "off") return spec::NodeChecks::kOff;
  return health == "record" ? spec::NodeChecks::kRecord : spec::NodeChecks::kAct;
}

// A script that is not there would fail on every rank, several times over.
void require_script(const Outcome& outcome) {
  const std::filesystem::path script = outcome.command.front();
  if (script.extension() != ".py" || std::filesystem::exists(script)) return;
  throw environment_error("there is no script " + printable(script.string(), 200), "check the name and the folder");
}

// What of a job's flags means nothing for a command.
void refuse_flags_of_jobs(const TrainOptions& options, bool submits) {
  const std::pair<bool, const char*> given[] = {
      {!options.plan_file.empty(), "--plan"},
      {!options.profile.empty() && std::getenv("LOCKSTEP_PROFILE") == nullptr, "--profile"},
      {!options.backend.empty() && std::getenv("LOCKSTEP_BACKEND") == nullptr, "--backend"},
      {options.resuming, "--resume"},
      {options.accept_changes, "--accept-changes"},
      {!options.export_folder.empty(), "--export"},
      {!options.tensorboard.empty(), "--tensorboard"},
      {!options.chaos.empty(), "--chaos"},
      {options.dry_run && !submits, "--dry-run"},
      {options.report_steps, "--report-steps"},
      {options.general_step, "--general-step"}};
  for (const auto& [is_given, name] : given) {
    if (is_given) throw bad_input(fmt::format("{} is for jobs, and a command is launched", name), "leave it out");
  }
}

// Largest first.
std::vector<int> counts_asked(const NodesAsked& asked) {
  std::vector<int> counts;
  for (int count = asked.most; count >= asked.fewest; --count) counts.push_back(count);
  return counts;
}

std::vector<int> node_counts(const NodesAsked& asked, const std::optional<elastic::NodeList>& nodes) {
  const bool met = nodes && nodes->source == "endpoint";
  const int listed = nodes ? static_cast<int>(nodes->nodes.size()) : 1;
  if (!asked.counted) return {listed};
  if (!met && listed < asked.fewest) {
    throw bad_input(
        fmt::format("{} nodes are asked for, and {} {} known", asked.fewest, listed, listed == 1 ? "is" : "are"),
        "name them with --nodes n1,n2, or say where they meet with --rdzv-endpoint HOST:PORT");
  }
  return counts_asked(asked);
}

}  // namespace

void add_launch_flags(CLI::App& verb, const std::shared_ptr<LaunchFlags>& flags) {
  for (const LaunchFlag& flag : launch_flags()) {
    CLI::Option* const option = flag.on != nullptr ? verb.add_flag(flag.names, (*flags).*flag.on, flag.help)
                                                   : verb.add_option(flag.names, (*flags).*flag.text, flag.help);
    option->group(kGroup);
  }
}

int take_command(const CLI::App& app, int argc, char** argv, Outcome& outcome) {
  if (argc < 3 || std::string_view(argv[1]) != "launch") return argc;
  const CLI::App* const verb = app.get_subcommand("launch");
  bool named = false;  // -m and --no-python say that a command follows, whatever its name
  for (int at = 2; at < argc; ++at) {
    const std::string word = argv[at];
    outcome.command_separated = word == "--";
    if (word == "-m" || word == "--module" || word == "--no-python" || word == "--no_python") named = true;
    if (!outcome.command_separated && word.size() > 1 && word.front() == '-') {
      if (takes_next(*verb, word)) ++at;
      continue;
    }
    if (!outcome.command_separated && !named && is_job(word)) return argc;
    if (!outcome.command_separated && is_setting(word)) continue;
    outcome.command.assign(argv + at + (outcome.command_separated ? 1 : 0), argv + argc);
    if (outcome.command.empty()) throw bad_input("there is no command after `--`", "name one: -- python3 train.py");
    return at;
  }
  return argc;
}

std::optional<elastic::NodeList> find_launch_nodes(const NodesAsked& asked, const TrainOptions& options,
                                                   const std::string& job) {
  const bool counts = !options.nodes.empty() && options.nodes.find_first_not_of("0123456789") == std::string::npos;
  const auto lookup = elastic::process_environment();
  if (!asked.meeting || lookup("LOCKSTEP_NODES")) {
    return elastic::find_nodes(counts ? "" : options.nodes, options.node, lookup);
  }
  elastic::Endpoint endpoint = *asked.meeting;
  if (endpoint.local_address.empty() && !options.interface.empty()) {
    endpoint.local_address = elastic::address_of_interface(options.interface);
  }
  count_stop_signals(SecondSignal::kCounts);
  elastic::RosterOptions roster;
  roster.token = elastic::shared_token(telemetry::home_directory());
  roster.job = job;
  roster.note = [](const std::string& text) { fmt::print(stderr, "lockstep: {}\n", text); };
  roster.stopped = [] { return stop_signals() > 0; };
  return elastic::meet(endpoint, roster);
}

int launch_command(const TrainOptions& options, LaunchFlags flags, const Outcome& outcome) {
  refuse_flags_of_jobs(options, false);
  fill_from_environment(flags);
  require_honoured(flags);
  require_script(outcome);
  ForeignRequest request;
  request.argv = program_of(flags, outcome.command, outcome.command_separated);
  request.name = name_of(flags, outcome.command);
  request.processes = processes_per_node(flags.nproc);
  request.restarts = static_cast<int>(number_of(flags.max_restarts, "--max-restarts", kUsualRestarts));
  request.leave_seconds = number_of(flags.shutdown_timeout, "--shutdown-timeout", request.leave_seconds);
  request.stop_seconds = number_of(flags.shutdown_timeout, "--shutdown-timeout", request.stop_seconds);
  if (!flags.role.empty()) request.role = flags.role;
  request.id = flags.rdzv_id == "none" ? "" : flags.rdzv_id;
  request.interface = options.interface;
  if (!options.interface.empty()) elastic::address_of_interface(options.interface);
  request.log_dir = flags.log_dir;
  request.checks = checks_of(flags.health);
  request.record = !options.no_record;
  request.json = options.json;
  const Shown shown(flags);
  const NodesAsked asked = nodes_asked(flags, options.nodes, options.node);
  if (asked.counted) request.node_counts = counts_asked(asked);  // what nodes that come later compare
  request.nodes = find_launch_nodes(asked, options, digest_of(request));
  if (request.interface.empty() && request.nodes) request.interface = request.nodes->interface;
  request.node_counts = node_counts(asked, request.nodes);
  if (request.nodes) request.token = elastic::shared_token(telemetry::home_directory());
  return run_foreign(request, shown);
}

ForeignProgram program_elsewhere(const TrainOptions& options, const LaunchFlags& flags, const Outcome& outcome,
                                 const schedulers::LaunchSettings& settings) {
  refuse_flags_of_jobs(options, true);
  require_honoured(flags);
  const NodesAsked asked = nodes_asked(flags, options.nodes, options.node);
  if (asked.meeting)
    throw bad_input("--rdzv-endpoint: the scheduler's nodes find each other by themselves", "leave it out");
  ForeignProgram program;
  program.name = name_of(flags, outcome.command);
  program.command = program_of(flags, outcome.command, outcome.command_separated);
  // How the program is found is settled; where nodes meet too.
  for (const LaunchFlag& flag : launch_flags()) {
    const std::string name = std::string(flag.names).substr(std::string(flag.names).rfind("--"));
    const bool settled = flag.on != nullptr || (flag.of_nodes && flag.text != &LaunchFlags::nnodes);
    if (!settled && !(flags.*flag.text).empty()) program.flags.push_back(name + "=" + flags.*flag.text);
  }
  if (options.json) program.flags.emplace_back("--json");
  if (options.no_record) program.flags.emplace_back("--no-record");
  if (!options.interface.empty()) program.flags.push_back("--interface=" + options.interface);
  program.nodes =
      asked.counted ? asked.most : std::max<std::int64_t>(1, static_cast<std::int64_t>(settings.hosts.size()));
  program.device = settings.gpus_per_node > 0 ? "gpu" : "cpu";
  const bool counts_there = flags.nproc.empty() || flags.nproc.find_first_not_of("0123456789") != std::string::npos;
  program.ranks_per_node = settings.gpus_per_node > 0 ? settings.gpus_per_node
                           : counts_there             ? 1
                                                      : processes_per_node(flags.nproc);
  program.dry_run = options.dry_run;
  program.json = options.json;
  program.record = !options.no_record;
  return program;
}

}  // namespace lockstep::cli
