// Figures of a runbook that the plan's JSON does not have as such: each follows from it by one line of arithmetic.
#pragma once

#include <nlohmann/json.hpp>

#include "lockstep/report/runbook/runbook.h"

namespace lockstep::report {

nlohmann::json size_facts(const RunbookInput& input);    // nodes, GPUs, steps
nlohmann::json memory_facts(const RunbookInput& input);  // what is free
nlohmann::json time_facts(const RunbookInput& input);    // shares of a step
nlohmann::json money_facts(const RunbookInput& input);   // per day, per billion tokens, at both ends of the interval
nlohmann::json checkpoint_facts(const RunbookInput& input);  // sizes and times of saves
nlohmann::json recovery_facts(const RunbookInput& input);    // what happens when a node dies, in seconds
nlohmann::json alert_facts(const RunbookInput& input);       // limits of the rules in the units of this run
nlohmann::json job_facts(const RunbookInput& input);         // settings of the job that the text speaks of

// Does an agent of ours keep the run alive there? Not under MPI.
bool has_agents(const RunbookInput& input);
// Does the state of a lost node survive in the memory of the others?
bool survives_in_memory(const RunbookInput& input);

// The plan's cadence, or that which the job's file fixes (`every: 30m`, `every_steps`) with what a failure then costs;
// nothing where it saves only at the end.
std::optional<plan::CheckpointCadence> cadence_of_run(const RunbookInput& input);

// How old the newest checkpoint may become before an alert says so: the bound on lost work where the cadence is chosen
// (`every: auto`), else two intervals.
double lost_bound(const RunbookInput& input);

}  // namespace lockstep::report
