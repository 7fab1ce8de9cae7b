// `lockstep health`: is the hardware of this node fit for a run?
#include "lockstep/cli/health.h"
#include "lockstep/cli/verbs.h"

namespace lockstep::cli {

void add_health(CLI::App& app, Outcome& outcome) {
  auto request = std::make_shared<HealthRequest>();
  CLI::App* verb = app.add_subcommand("health", "Checks disks, memory, links, GPUs and the kernel log of this node");
  verb->add_option("job", request->job_file, "Job file: its checkpoint folder and its devices are looked at");
  verb->add_option("--interface", request->interface, "Look at this network interface (default: all that are up)")
      ->envname("LOCKSTEP_INTERFACE");
  verb->add_flag("--json", request->json, "JSON on stdout (lockstep.health/1)");
  set_examples(*verb,
               "  lockstep health\n"
               "  lockstep health job.yaml --json\n"
               "  lockstep health || scontrol update nodename=$(hostname) state=drain reason=health   (in a prolog)");
  verb->callback([request, &outcome] {
    outcome.json = request->json;
    outcome.exit_code = show_health(*request);
  });
}

}  // namespace lockstep::cli
