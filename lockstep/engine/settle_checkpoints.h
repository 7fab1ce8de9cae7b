// Before the first step, on the first rank: the checkpoint folder is taken for this run, and it is settled what the run
// goes on from.
#pragma once

#include <memory>

#include "lockstep/checkpoint/lease.h"
#include "lockstep/elastic/rank_request.h"
#include "lockstep/engine/run_context.h"

namespace lockstep::engine {

// Fills request.resume_from ("": a fresh start). Returns the lease of request.checkpoint_directory, to be held as long
// as the run lives; null when there is no such folder. Throws UserError when another run has the folder, when a fresh
// start would meet checkpoints, or when there is nothing to resume and something was asked for.
std::unique_ptr<checkpoint::Lease> settle_checkpoints(elastic::RankRequest& request, const Host& host);

}  // namespace lockstep::engine
