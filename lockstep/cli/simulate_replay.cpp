// `lockstep simulate --replay TRACE|RUN`: recorded operations played again, and without stragglers.
#include <fmt/format.h>

#include <filesystem>
#include <optional>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/cli/simulate.h"
#include "lockstep/diagnose/foreign/replayed_trace.h"
#include "lockstep/diagnose/replayed_run.h"
#include "lockstep/plan/layout.h"
#include "lockstep/report/replay_text.h"
#include "lockstep/telemetry/progress.h"
#include "lockstep/telemetry/recorder.h"
#include "lockstep/telemetry/run_store.h"

namespace lockstep::cli {
namespace {

constexpr auto kHeading = "Replay of recorded operations";

struct ReplayOptions {
  std::string trace, mesh;
};

// Axes by our names; `vpp` and `dsp` are what ByteDance's description files call two of them.
std::optional<plan::Layout> mesh_of(const std::string& text) {
  if (text.empty()) return std::nullopt;
  std::vector<std::string> parts = split(text, ',');
  for (std::string& part : parts) {
    if (part.starts_with("vpp=")) part.replace(0, 3, "virtual_stages");
    if (part.starts_with("dsp=")) part.replace(0, 3, "cp");
  }
  return plan::parse_layout(join(parts, ","));
}

// What is there, or has a dot or a folder in its name, is meant as a file: no run's id has.
bool is_file(const std::string& word) {
  std::error_code ignored;
  return word.find_first_of("./") != std::string::npos || std::filesystem::exists(word, ignored);
}

template <class Replayed>
int print(const Replayed& replayed, bool json) {
  if (json) {
    fmt::print("{}\n", diagnose::to_json(replayed).dump());
  } else {
    fmt::print("{}", report::to_text(replayed, telemetry::detect_style(stdout)));
  }
  return 0;
}

int replay(const ReplayOptions& options, const SimulateCommon& common) {
  if (options.trace.empty()) throw bad_input("--mesh is the mesh of a trace", "give the trace with --replay");
  if (!common.plan.empty()) throw bad_input("--replay takes no plan", "leave the plan out");
  if (is_file(options.trace)) return print(diagnose::replay_file(options.trace, mesh_of(options.mesh)), common.json);
  if (!options.mesh.empty()) throw bad_input("a recorded run knows its mesh", "leave --mesh out");
  const auto store = telemetry::open_run_store(telemetry::home_directory());
  return print(diagnose::replay_run(*store, options.trace), common.json);
}

}  // namespace

SimulateQuestion add_replay_question(CLI::App& verb) {
  auto options = std::make_shared<ReplayOptions>();
  verb.add_option("--replay", options->trace,
                  "Trace of operations (CSV, plain or gzip), or a recorded run: its id, its beginning, `last`")
      ->group(kHeading);
  verb.add_option("--mesh", options->mesh, "It was recorded on: dp=4,pp=4,tp=4; checked against the trace")
      ->group(kHeading);
  return {.heading = kHeading, .answer = [options, &verb](const SimulateCommon& common) {
            if (verb.count("--seed") > 0) throw bad_input("--replay draws no random numbers", "leave --seed out");
            return replay(*options, common);
          }};
}

}  // namespace lockstep::cli
