// What may be wrong with a run, one function each: hardware, then communication, then software, as an expert would
// look. Each says what it sees by itself; which of them are consequences of others is run.cpp's to say. Pure functions:
// a finding's cost is of the usual step; dollars are filled in later.
#pragma once

#include <vector>

#include "lockstep/diagnose/diagnosis.h"
#include "lockstep/diagnose/evidence.h"

namespace lockstep::diagnose {

using Findings = std::vector<Finding>;

// --- it does not go on -----------------------------------------------------------------------------------------------
Findings find_hang(const RunEvidence& evidence);   // an event names who is missing
Findings find_crash(const RunEvidence& evidence);  // ranks ended, whether or not the run went on
// --- hardware --------------------------------------------------------------------------------------------------------
Findings find_hardware_error(const RunEvidence& evidence);    // what agents found in kernel logs and drivers
Findings find_throttling(const RunEvidence& evidence);        // clocks below what the device has
Findings find_oversubscription(const RunEvidence& evidence);  // threads that are ready and have no core
Findings find_memory_pressure(const RunEvidence& evidence);   // memory that grows towards its end
// --- one rank, or one stage, holds the others up ---------------------------------------------------------------------
Findings find_slow_rank(const RunEvidence& evidence);
Findings find_stages(const RunEvidence& evidence);  // stage_imbalance, or slow_rank where the layers do not explain it
Findings find_data_imbalance(const RunEvidence& evidence);
Findings find_expert_imbalance(const RunEvidence& evidence);
// --- communication ---------------------------------------------------------------------------------------------------
Findings find_slow_link(const RunEvidence& evidence);
Findings find_small_messages(const RunEvidence& evidence);
Findings find_wrong_placement(const RunEvidence& evidence);
Findings find_exposed_communication(const RunEvidence& evidence);
// --- software --------------------------------------------------------------------------------------------------------
Findings find_loader(const RunEvidence& evidence);
Findings find_checkpoint_stall(const RunEvidence& evidence);
Findings find_bubble(const RunEvidence& evidence);        // too few micro-batches
Findings find_launch_bound(const RunEvidence& evidence);  // too many, too small
Findings find_recompute(const RunEvidence& evidence);
Findings find_host_bound(const RunEvidence& evidence);

// --- what they share -------------------------------------------------------------------------------------------------
// More per second when `cost_percent` of the step is gone.
double gain_without(double cost_percent);
Finding make_finding(Cause cause, double confidence, double cost_percent, std::vector<int> ranks, std::string evidence,
                     std::string fix);
// "rank 2", "ranks 0, 1".
std::string named_ranks(const std::vector<int>& ranks);
// "lockstep train JOB.yaml loader.num_workers=4".
std::string train_with(const RunEvidence& evidence, const std::string& overrides);
// Exposed transfers of a usual step: blocked on communication, waiting for peers not included. Of `rank`; without it
// the median of the ranks.
double transfer_seconds(const RunEvidence& evidence, int rank);
double transfer_seconds(const RunEvidence& evidence);
// What the plan expected of communication; 0 when there is no prediction.
double predicted_transfer_seconds(const RunEvidence& evidence);

}  // namespace lockstep::diagnose
