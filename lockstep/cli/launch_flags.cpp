#include "lockstep/cli/launch_flags.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/elastic/node_list.h"
#include "lockstep/elastic/service_nodes.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;
using F = LaunchFlags;

constexpr int kUsualEndpointPort = 29400;  // as torchrun's c10d
constexpr int kUsualMasterPort = 29500;    // as torchrun's static rendezvous
constexpr int kOut = 1, kErrors = 2;

const LaunchFlag kFlags[] = {
    {"--nproc,--nproc-per-node,--nproc_per_node", &F::nproc, nullptr, "PET_NPROC_PER_NODE",
     "Processes of a command on each node: a number, gpu, cpu or auto (default: 1)"},
    {"--nnodes", &F::nnodes, nullptr, "PET_NNODES",
     "Nodes: N, or MIN:MAX to go on with fewer and with more when they come", true},
    {"--rdzv-endpoint,--rdzv_endpoint", &F::rdzv_endpoint, nullptr, "PET_RDZV_ENDPOINT",
     "HOST[:PORT] of one node, where all meet (default port: 29400)", true},
    {"--rdzv-backend,--rdzv_backend", &F::rdzv_backend, nullptr, "PET_RDZV_BACKEND",
     "c10d or static: makes no difference, nodes meet in our own way", true},
    {"--rdzv-id,--rdzv_id", &F::rdzv_id, nullptr, "PET_RDZV_ID",
     "Nodes with another one are refused; TORCHELASTIC_RUN_ID of the processes (default: the run's id)", true},
    {"--rdzv-conf,--rdzv_conf", &F::rdzv_conf, nullptr, "PET_RDZV_CONF",
     "join_timeout or timeout (600), last_call_timeout (30), is_host; read_timeout, close_timeout and "
     "keep_alive_* make no difference",
     true},
    {"--node-rank,--node_rank", &F::node_rank, nullptr, "PET_NODE_RANK", "Which node this is where they meet", true},
    {"--master-addr,--master_addr", &F::master_addr, nullptr, "PET_MASTER_ADDR",
     "Host of the first node, in place of --rdzv-endpoint", true},
    {"--master-port,--master_port", &F::master_port, nullptr, "PET_MASTER_PORT",
     "Port there where nodes meet (default: 29500); the processes' own MASTER_PORT is a fresh one per generation",
     true},
    {"--local-addr,--local_addr", &F::local_addr, nullptr, "PET_LOCAL_ADDR",
     "Address that the other nodes reach this one by (default: by route to the endpoint)", true},
    {"--standalone", nullptr, &F::standalone, "PET_STANDALONE",
     "This machine alone, whatever is said about nodes (the default)"},
    {"--max-restarts,--max_restarts", &F::max_restarts, nullptr, "PET_MAX_RESTARTS",
     "Failures of a command that are recovered from (default: 3; torchrun's is 0)"},
    {"--shutdown-timeout,--shutdown_timeout", &F::shutdown_timeout, nullptr, "PET_SHUTDOWN_TIMEOUT",
     "Seconds between SIGTERM and SIGKILL (default: 10 after a failure, 30 after a stop was asked for)"},
    {"--role", &F::role, nullptr, "PET_ROLE", "ROLE_NAME of the processes (default: default)"},
    {"-m,--module", nullptr, &F::module, "PET_MODULE", "The command is a Python module: python3 -m"},
    {"--no-python,--no_python", nullptr, &F::no_python, "PET_NO_PYTHON", "The command is a program as it is"},
    {"--run-path,--run_path", nullptr, &F::run_path, "PET_RUN_PATH", "Run the script through runpy.run_path"},
    {"--log-dir,--log_dir", &F::log_dir, nullptr, "PET_LOG_DIR",
     "Folder for the logs of a command, in one named after the run (default: the run's folder)"},
    {"-r,--redirects", &F::redirects, nullptr, "PET_REDIRECTS",
     "What only the log gets: 1 output, 2 errors, 3 both, or per local rank 0:3,1:2 (the log always has all)"},
    {"-t,--tee", &F::tee, nullptr, "PET_TEE", "What the terminal gets as well, in the same form (the default: all)"},
    {"--local-ranks-filter,--local_ranks_filter", &F::local_ranks_filter, nullptr, "PET_LOCAL_RANKS_FILTER",
     "Local ranks whose output the terminal shows: 0,1"},
    {"--duplicate-stdout-filters,--duplicate_stdout_filters", &F::stdout_filters, nullptr,
     "PET_DUPLICATE_STDOUT_FILTERS", "Lines with one of these texts go to filtered-stdout.log too: apple,orange"},
    {"--duplicate-stderr-filters,--duplicate_stderr_filters", &F::stderr_filters, nullptr,
     "PET_DUPLICATE_STDERR_FILTERS", "The same for errors and filtered-stderr.log"},
    {"--signals-to-handle,--signals_to_handle", &F::signals, nullptr, "PET_SIGNALS_TO_HANDLE",
     "SIGINT, SIGTERM, SIGHUP, SIGQUIT and SIGUSR1 always reach the processes; others are refused"},
    {"--monitor-interval,--monitor_interval", &F::monitor_interval, nullptr, "PET_MONITOR_INTERVAL",
     "Makes no difference: an end is noticed at once"},
    {"--start-method,--start_method", &F::start_method, nullptr, "PET_START_METHOD",
     "Makes no difference: processes are programs of their own"},
    {"--event-log-handler,--event_log_handler", &F::event_log_handler, nullptr, "PET_EVENT_LOG_HANDLER",
     "null; others are refused: events are in the run store"},
    {"--logs-specs,--logs_specs", &F::logs_specs, nullptr, nullptr, "Refused: it names Python code inside torchrun"},
    {"--numa-binding,--numa_binding", &F::numa_binding, nullptr, nullptr, "Refused: use numactl in the command"},
    {"--virtual-local-rank,--virtual_local_rank", nullptr, &F::virtual_local_rank, "PET_VIRTUAL_LOCAL_RANK",
     "Refused: set CUDA_VISIBLE_DEVICES in the program"},
    {"--name", &F::name, nullptr, nullptr, "Name of a command's run (default: the script's)"},
    {"--health", &F::health, nullptr, nullptr,
     "What node checks may do to a command's run: act (the default), record, off"},
};

std::optional<int> whole_number(std::string_view text) {
  int value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || stop != text.data() + text.size()) return std::nullopt;
  return value;
}

int number_of(const std::string& text, const char* flag, int least, int most) {
  const auto value = whole_number(text);
  if (value && *value >= least && *value <= most) return *value;
  throw bad_input(fmt::format("{} {} is not a whole number", flag, printable(text)),
                  fmt::format("give one between {} and {}", least, most));
}

bool is_true(const std::string& text) { return text == "1" || to_lower(text) == "true" || to_lower(text) == "yes"; }

void read_count(const std::string& text, NodesAsked& asked) {
  constexpr int kMostNodes = 100'000;
  const std::vector<std::string> parts = split(text, ':');
  if (parts.size() > 2) throw bad_input("--nnodes " + printable(text) + " is not N or MIN:MAX", "write 4 or 2:4");
  asked.fewest = number_of(parts.front(), "--nnodes", 1, kMostNodes);
  asked.most = number_of(parts.back(), "--nnodes", 1, kMostNodes);
  if (asked.fewest > asked.most) {
    throw bad_input("--nnodes " + printable(text) + ": the smaller number comes first", "write MIN:MAX");
  }
  asked.counted = true;
}

// "host", "host:29400", "[::1]:29400".
elastic::NodeAddress address_of(const std::string& text, int port) {
  const std::size_t colon = text.rfind(':'), bracket = text.rfind(']');
  elastic::NodeAddress address{text, port};
  if (colon != std::string::npos && (bracket == std::string::npos || colon > bracket)) {
    address.host = text.substr(0, colon);
    address.port = number_of(text.substr(colon + 1), "--rdzv-endpoint", 1, 65535);
  }
  if (!address.host.empty() && address.host.front() == '[' && address.host.back() == ']') {
    address.host = address.host.substr(1, address.host.size() - 2);
  }
  if (address.host.empty()) throw bad_input("--rdzv-endpoint has no host", "write HOST:PORT");
  return address;
}

double seconds_of(const std::string& key, const std::string& text) {
  double value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && stop == text.data() + text.size() && value > 0 && value < 1e7) return value;
  throw bad_input(fmt::format("--rdzv-conf {}={} is not a number of seconds", key, printable(text)),
                  "give one above 0");
}

void read_conf(const std::string& text, elastic::Endpoint& meeting) {
  if (text.empty()) return;
  for (const std::string& pair : split(text, ',')) {
    const std::string key(trim(pair.substr(0, pair.find('='))));
    const std::string value =
        pair.find('=') == std::string::npos ? "" : std::string(trim(pair.substr(pair.find('=') + 1)));
    if (key == "join_timeout" || key == "timeout") {
      meeting.join_seconds = seconds_of(key, value);
    } else if (key == "last_call_timeout") {
      meeting.last_call_seconds = seconds_of(key, value);
    } else if (key == "is_host") {
      meeting.is_host = is_true(value);
    } else if (key != "read_timeout" && key != "close_timeout" && key != "keep_alive_interval" &&
               key != "keep_alive_max_attempt") {
      throw bad_input("--rdzv-conf: " + printable(key) + " means nothing here",
                      "known are join_timeout, last_call_timeout, timeout, is_host");
    }
  }
}

void require_backend(const std::string& backend) {
  if (backend.empty() || backend == "c10d" || backend == "static") return;
  if (backend.rfind("etcd", 0) == 0) {
    throw bad_input("--rdzv-backend " + backend + ": there is no etcd here, nodes meet at one of them",
                    "leave it out and give --rdzv-endpoint HOST:PORT of a node");
  }
  throw bad_input("--rdzv-backend " + printable(backend) + " is not known", "use c10d or static");
}

int cpus_here() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? std::max(1, CPU_COUNT(&set)) : 1;
}

int gpus_here(const elastic::VariableLookup& lookup) {
  if (const auto visible = lookup("CUDA_VISIBLE_DEVICES")) {
    const std::vector<std::string> listed = split(*visible, ',');
    return static_cast<int>(std::count_if(listed.begin(), listed.end(), [](const std::string& device) {
      return !trim(device).empty() && trim(device) != "-1";
    }));
  }
  int count = 0;
  std::error_code missing;
  for (const auto& entry : fs::directory_iterator("/dev", missing)) {
    const std::string name = entry.path().filename().string();
    if (name.rfind("nvidia", 0) == 0 && whole_number(name.substr(6))) ++count;
  }
  return count;
}

std::map<int, int> streams_of(const std::string& text, const char* flag) {
  std::map<int, int> streams;
  if (text.empty()) return streams;
  for (const std::string& part : split(text, ',')) {
    const std::size_t colon = part.find(':');
    const int rank = colon == std::string::npos ? -1 : number_of(part.substr(0, colon), flag, 0, 1 << 20);
    streams[rank] = number_of(colon == std::string::npos ? part : part.substr(colon + 1), flag, 0, 3);
  }
  return streams;
}

// torchrun's lists: a doubled comma is a comma.
std::vector<std::string> texts_of(const std::string& list) {
  std::vector<std::string> texts(1);
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (list[i] != ',') {
      texts.back() += list[i];
    } else if (i + 1 < list.size() && list[i + 1] == ',') {
      texts.back() += list[i++];
    } else {
      texts.emplace_back();
    }
  }
  std::erase(texts, "");
  return texts;
}

int masked(const std::map<int, int>& streams, int rank) {
  if (const auto found = streams.find(rank); found != streams.end()) return found->second;
  const auto all = streams.find(-1);
  return all == streams.end() ? 0 : all->second;
}

}  // namespace

std::span<const LaunchFlag> launch_flags() { return kFlags; }

void fill_from_environment(LaunchFlags& flags, const elastic::VariableLookup& lookup) {
  for (const LaunchFlag& flag : kFlags) {
    const auto value = flag.variable == nullptr ? std::nullopt : lookup(flag.variable);
    if (!value) continue;
    if (flag.on != nullptr) {
      flags.*flag.on = flags.*flag.on || is_true(*value);
    } else if ((flags.*flag.text).empty()) {
      flags.*flag.text = *value;
    }
  }
}

const LaunchFlag* flag_of_commands(const LaunchFlags& flags) {
  for (const LaunchFlag& flag : kFlags) {
    if (flag.of_nodes || flag.on == &F::standalone) continue;
    if (flag.on != nullptr ? flags.*flag.on : !(flags.*flag.text).empty()) return &flag;
  }
  return nullptr;
}

NodesAsked nodes_asked(const LaunchFlags& flags, const std::string& nodes, int node,
                       const elastic::VariableLookup& lookup) {
  require_backend(flags.rdzv_backend);
  NodesAsked asked;
  const bool number = whole_number(nodes).has_value();
  if (number && !flags.nnodes.empty()) throw bad_input("--nodes and --nnodes are both a number", "give one of them");
  if (number || !flags.nnodes.empty()) read_count(number ? nodes : flags.nnodes, asked);
  if (flags.standalone) {
    if (asked.fewest > 1) throw bad_input("--standalone is this machine alone", "leave it out, or --nnodes");
    return {};
  }
  if (!nodes.empty() && !number) return asked;
  // MASTER_ADDR alone is not enough: it may be left from something else.
  const auto master = lookup("MASTER_ADDR"), rank = lookup("NODE_RANK"), count = lookup("NNODES");
  const bool from_variables = flags.rdzv_endpoint.empty() && flags.master_addr.empty() && master && rank && count;
  if (from_variables && !asked.counted) read_count(*count, asked);
  elastic::Endpoint meeting;
  if (!flags.rdzv_endpoint.empty()) {
    meeting.address = address_of(flags.rdzv_endpoint, kUsualEndpointPort);
  } else if (!flags.master_addr.empty() || from_variables) {
    const std::string port = from_variables ? lookup("MASTER_PORT").value_or("") : flags.master_port;
    meeting.address = {from_variables ? *master : flags.master_addr,
                       port.empty() ? kUsualMasterPort : number_of(port, "--master-port", 1, 65535)};
  }
  const auto service = meeting.address.host.empty() ? elastic::endpoint_of_service(lookup) : std::nullopt;
  if (service) {
    meeting.address = service->address;
    meeting.is_host = service->node == 0;
    if (!asked.counted) read_count(std::to_string(service->nodes), asked);
  }
  if (meeting.address.host.empty() || asked.most == 1) return asked;
  std::string own = !flags.node_rank.empty() ? flags.node_rank : from_variables ? *rank : "";
  if (own.empty() && service) own = std::to_string(service->node);
  meeting.node = node >= 0 ? node : own.empty() ? -1 : number_of(own, "--node-rank", 0, asked.most - 1);
  meeting.fewest = asked.fewest;
  meeting.most = asked.most;
  meeting.local_address = flags.local_addr;
  read_conf(flags.rdzv_conf, meeting);
  asked.meeting = meeting;
  return asked;
}

int processes_per_node(const std::string& nproc, const elastic::VariableLookup& lookup) {
  constexpr int kMost = 4096;
  if (nproc.empty()) return 1;
  if (nproc == "cpu") return cpus_here();
  if (nproc == "xpu") throw bad_input("--nproc-per-node xpu: Intel's devices are not counted here", "give a number");
  if (nproc != "gpu" && nproc != "auto") return number_of(nproc, "--nproc-per-node", 1, kMost);
  const int gpus = gpus_here(lookup);
  if (gpus == 0 && nproc == "gpu") {
    throw environment_error("--nproc-per-node gpu: this machine has no NVIDIA GPU", "give a number, or cpu");
  }
  return gpus > 0 ? gpus : cpus_here();
}

Shown::Shown(const LaunchFlags& flags) {
  const std::map<int, int> redirected = streams_of(flags.redirects, "--redirects");
  const std::map<int, int> teed = streams_of(flags.tee, "--tee");
  for (const auto* streams : {&redirected, &teed}) {
    for (const auto& [rank, ignored] : *streams) hidden_[rank] = masked(redirected, rank) & ~masked(teed, rank);
  }
  if (!flags.local_ranks_filter.empty()) {
    for (const std::string& rank : split(flags.local_ranks_filter, ',')) {
      only_.insert(number_of(std::string(trim(rank)), "--local-ranks-filter", 0, 1 << 20));
    }
  }
  filters_[0] = texts_of(flags.stdout_filters);
  filters_[1] = texts_of(flags.stderr_filters);
}

bool Shown::on_terminal(int local_rank, bool is_error) const {
  if (!only_.empty() && !only_.contains(local_rank)) return false;
  return (masked(hidden_, local_rank) & (is_error ? kErrors : kOut)) == 0;
}

bool Shown::is_copied(bool is_error, const std::string& line) const {
  const auto& filters = filters_[is_error ? 1 : 0];
  return std::any_of(filters.begin(), filters.end(),
                     [&](const std::string& text) { return line.find(text) != std::string::npos; });
}

std::vector<std::string> program_of(const LaunchFlags& flags, const std::vector<std::string>& words, bool separated,
                                    const elastic::VariableLookup& lookup) {
  if (words.empty()) throw bad_input("there is no command after `--`", "name a program: -- python3 train.py");
  if (flags.module && flags.no_python) throw bad_input("-m and --no-python exclude each other", "leave one out");
  const std::string python = lookup("PYTHON_EXEC").value_or("python3");
  const bool script = fs::path(words.front()).extension() == ".py";
  std::vector<std::string> program;
  if (flags.run_path) {
    program = {python, "-u", "-c",
               "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"};
  } else if (flags.module) {
    program = {python, "-u", "-m"};
  } else if (script && !flags.no_python && !separated) {
    program = {python, "-u"};
  } else if (!separated && !flags.no_python) {
    throw bad_input(printable(words.front()) + " is neither a job (.yaml) nor a Python script (.py)",
                    "put `--` before a command: lockstep launch -- PROGRAM");
  }
  program.insert(program.end(), words.begin(), words.end());
  return program;
}

void require_honoured(const LaunchFlags& flags) {
  const auto refuse = [](const std::string& what, const std::string& fix) { throw bad_input(what, fix); };
  if (!flags.logs_specs.empty()) refuse("--logs-specs names Python code inside torchrun", "use --log-dir and --tee");
  if (!flags.numa_binding.empty()) refuse("--numa-binding is not done here", "put numactl before the command");
  if (flags.virtual_local_rank) {
    refuse("--virtual-local-rank is not done here", "set CUDA_VISIBLE_DEVICES from LOCAL_RANK in the program");
  }
  if (!flags.event_log_handler.empty() && flags.event_log_handler != "null") {
    refuse("--event-log-handler: events go to the run store", "see them with `lockstep report last`");
  }
  static constexpr const char* kForwarded[] = {"SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1"};
  for (const std::string& name : split(flags.signals, ',')) {
    if (trim(name).empty() || std::any_of(std::begin(kForwarded), std::end(kForwarded),
                                          [&](const char* known) { return trim(name) == known; })) {
      continue;
    }
    refuse("--signals-to-handle: " + printable(name) + " is not passed on",
           "SIGINT, SIGTERM, SIGHUP, SIGQUIT and SIGUSR1 always are");
  }
  if (!flags.health.empty() && flags.health != "act" && flags.health != "record" && flags.health != "off") {
    refuse("--health " + printable(flags.health) + " is not known", "use act, record or off");
  }
}

}  // namespace lockstep::cli
