// `lockstep doctor`: is this machine ready to train? With --nodes: are they all?
#include "lockstep/base/error.h"
#include "lockstep/cli/doctor.h"
#include "lockstep/cli/doctor_nodes.h"
#include "lockstep/cli/engine_library.h"
#include "lockstep/cli/launch_on.h"
#include "lockstep/cli/verbs.h"
#include "lockstep/elastic/token_file.h"
#include "lockstep/spec/job_reader.h"
#include "lockstep/telemetry/recorder.h"

namespace lockstep::cli {
namespace {

struct DoctorFlags {
  DoctorOptions checks;
  std::string job_file, nodes;
  std::vector<std::string> overrides;
  LaunchOnOptions on;
  bool member = false;  // started on a node by another doctor
};

// On the nodes of a scheduler, of a list of machines, or, when this process is on one of them already, here.
int doctor_of_nodes(DoctorFlags& flags) {
  const auto nodes = elastic::find_nodes("", -1);
  if (flags.member || (nodes && flags.nodes.empty() && flags.on.on.empty())) {
    if (!nodes) throw bad_input("nothing names the nodes", "write --nodes n1,n2, or start it with srun on each node");
    return run_doctor_member({.checks = flags.checks, .token = elastic::shared_token(telemetry::home_directory())},
                             *nodes);
  }
  std::int64_t count = 0;
  schedulers::LaunchSettings settings;
  if (flags.on.on.empty() && (!flags.nodes.empty() || !flags.on.hostfile.empty())) flags.on.on = "ssh";
  flags.on.nodes = flags.nodes;
  if (flags.job_file.find('=') != std::string::npos) {  // no file: launch.ssh.port=2222
    YamlNode tree = parse_yaml("{}", "the command line");
    flags.overrides.insert(flags.overrides.begin(), flags.job_file);
    for (const std::string& assignment : flags.overrides) apply_override(tree, assignment);
    settings = launch_settings(flags.on, tree.find("launch"));
  } else if (!flags.job_file.empty()) {
    const YamlNode tree = spec::load_job_tree(flags.job_file, flags.overrides);
    settings = launch_settings(flags.on, tree.find("launch"));
    if (flags.on.on.empty()) flags.on.on = settings.on;
    count = spec::read_job(tree, "job").cluster.groups.front().nodes + settings.spares;
  } else {
    settings = launch_settings(flags.on, nullptr);
  }
  if (!settings.hosts.empty()) count = 0;  // all of them
  if (flags.on.on.empty() || flags.on.on == "local") {
    throw bad_input("nothing names the nodes", "write --nodes n1,n2, --hostfile FILE, or a job file and --on slurm");
  }
  std::vector<std::string> words = {"--member"};
  if (flags.checks.json) words.emplace_back("--json");
  return run_verb_on("doctor", words, count, flags.on, settings);
}

}  // namespace

void add_doctor(CLI::App& app, Outcome& outcome) {
  auto flags = std::make_shared<DoctorFlags>();
  CLI::App* verb = app.add_subcommand("doctor", "Checks this machine, or every node, and says what to fix");
  verb->add_option("job", flags->job_file, "With --nodes or --on: a job file, for its launch section and its cluster");
  verb->add_option("overrides", flags->overrides, "key=value for any field of the file: launch.ssh.port=2222");
  verb->add_flag("--json", flags->checks.json, "JSON on stdout (lockstep.doctor/1, of nodes lockstep.doctor_nodes/1)");
  CLI::Option* nodes =
      verb->add_option("--nodes", flags->nodes,
                       "Every node and the links between them: n1,n2 over ssh; without a list, the nodes of the job's "
                       "scheduler, or those of the allocation this runs in")
          ->expected(0, 1);
  verb->add_option("--on", flags->on.on, "Where the nodes are: ssh, slurm, ...");
  verb->add_option("--hostfile", flags->on.hostfile, "The machines, one per line");
  verb->add_flag("--member", flags->member)->group("");
  set_examples(*verb,
               "  lockstep doctor\n"
               "  lockstep doctor --nodes n1,n2,n3\n"
               "  lockstep doctor job.yaml --on slurm\n"
               "  srun --ntasks-per-node=1 lockstep doctor --nodes");
  verb->callback([flags, nodes, &outcome] {
    outcome.json = flags->checks.json;
    flags->checks.run_store = telemetry::store_file(telemetry::home_directory()).string();
    flags->checks.engine_library = find_engine_library().string();
    const std::filesystem::path engine(flags->checks.engine_library);
    flags->checks.plugin_directory = (engine.empty() ? executable_folder() : engine.parent_path()).string();
    prepare_compute(1);
    const bool of_nodes = nodes->count() > 0 || flags->member || !flags->on.on.empty() || !flags->on.hostfile.empty();
    if (!of_nodes && !flags->job_file.empty()) {
      throw bad_input("doctor looks at a job's nodes with --nodes or --on", "add one of them");
    }
    outcome.exit_code = of_nodes ? doctor_of_nodes(*flags) : run_doctor(flags->checks);
  });
}

}  // namespace lockstep::cli
