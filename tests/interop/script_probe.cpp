// Trains a job whose model is a module from Python, its ranks as threads:
//
//   interop_script_probe JOB.yaml LAYOUT OUT.safetensors [key=value...]
//
// prints the loss of every step, one a line with every digit, and writes the weights and buffers at the end.
#include <fmt/format.h>

#include <exception>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/engine/probe.h"
#include "lockstep/engine/train.h"

int main(int count, char** words) {
  using namespace lockstep;
  try {
    if (count < 4) throw bad_input("usage: interop_script_probe JOB LAYOUT OUT [key=value...]", "");
    spec::Job job = spec::load_job(words[1], {words + 4, words + count});
    job.model.script.facts = engine::probe_script(job);
    plan::Layout layout = plan::parse_layout(words[2]);
    layout.precision = job.precision;
    const engine::TrainResult result = engine::train(job, layout, {});
    for (const double loss : result.losses) fmt::print("{:.17g}\n", loss);
    checkpoint::write_safetensors(words[3], result.weights);
    for (const spec::ScriptUnit& unit : job.model.script.facts.units) {
      fmt::print(stderr, "unit {}: {} parameters, {:.0f} bytes kept of a sample\n", unit.name, unit.parameters,
                 unit.saved_bytes);
    }
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
