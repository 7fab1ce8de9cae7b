// What people see of a plan and of a finished run.
#pragma once

#include <cstdio>
#include <nlohmann/json.hpp>

#include "lockstep/cli/session.h"
#include "lockstep/plan/plan.h"
#include "lockstep/spec/job.h"

namespace lockstep::cli {

// The number under `key`, NaN where JSON has null (which is how NaN travels) or nothing.
double number_or_nan(const nlohmann::json& object, const char* key);
// ", accuracy 97.00%" of an evaluation; "" where its loss counts no classes.
std::string accuracy_text(const nlohmann::json& evaluation);

// A few lines before training: what, where, how, memory bar, predicted throughput with its interval.
void show_plan(std::FILE* out, const spec::Job& job, const plan::Plan& plan, const Placement& placement);

// The table after training, predicted and measured side by side. `result` is lockstep.run/1.
void show_run_summary(std::FILE* out, const nlohmann::json& result);

// "[PPGGOOAAAAx...] 5.1 GiB of 24.0 GiB": what takes how much of the device, in `width` cells; below a quarter of the
// device the cells show the composition alone.
std::string memory_bar(const plan::MemoryBreakdown& memory, int width);

// On stderr: what `cluster: auto` found and assumed; nothing for a cluster that was written down.
void note_discovery(const spec::Cluster& cluster);

}  // namespace lockstep::cli
