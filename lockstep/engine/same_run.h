// Before the first step: do all ranks mean the same run? Under torchrun, srun and mpirun every process reads its own
// job file and its own copy of the data; one stale file is enough to train replicas that differ.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/elastic/rank_request.h"

namespace lockstep::engine {

// What this rank was told and what it finds, by name: keys of the job (spec/job_identity.h), layout, data, versions.
using RunFacts = std::map<std::string, std::string>;

// Reads some blocks of the data (data/fingerprint.h).
RunFacts facts_of(const elastic::RankRequest& request);

// "rank 1 has optimizer.learning_rate 0.1, rank 0 has 0.001" for every fact that is not the same on all ranks; a value
// is said once, with the ranks that have it.
std::vector<std::string> differences(const std::vector<RunFacts>& of_ranks);

// Collective: returns when all ranks have the same facts, else throws the same UserError (bad input) on every rank.
void require_same_run(comm::Communicator& world, const RunFacts& mine);

}  // namespace lockstep::engine
