// `lockstep doctor`: is this machine ready to train?
#include "lockstep/cli/doctor.h"
#include "lockstep/cli/engine_library.h"
#include "lockstep/cli/verbs.h"
#include "lockstep/telemetry/recorder.h"

namespace lockstep::cli {

void add_doctor(CLI::App& app, Outcome& outcome) {
  auto options = std::make_shared<DoctorOptions>();
  CLI::App* verb = app.add_subcommand("doctor", "Checks this machine and says what to fix");
  verb->add_flag("--json", options->json, "JSON on stdout (lockstep.doctor/1)");
  set_examples(*verb, "  lockstep doctor\n  lockstep doctor --json");
  verb->callback([options, &outcome] {
    outcome.json = options->json;
    options->run_store = telemetry::store_file(telemetry::home_directory()).string();
    options->engine_library = find_engine_library().string();
    const std::filesystem::path engine(options->engine_library);
    options->plugin_directory = (engine.empty() ? executable_folder() : engine.parent_path()).string();
    prepare_compute(1);
    outcome.exit_code = run_doctor(*options);
  });
}

}  // namespace lockstep::cli
