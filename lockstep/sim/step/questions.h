// What the flags of `lockstep simulate` say: what is disturbed, and what the cluster would be like if. Pure functions;
// errors are UserErrors (exit code 2) that name the flag and the right words.
#pragma once

#include <string>
#include <vector>

#include "lockstep/sim/step/symmetry.h"
#include "lockstep/spec/cluster.h"

namespace lockstep::sim {

// --inject: "slow-rank=17,1.3x" (its compute takes 1.3 times as long), "slow-link=2,0.5x" (node 2 has half the
// bandwidth of its NICs), "slow-loader=3,50ms" (rank 3 waits so long for every micro-batch; stage 0 alone has a
// loader). A rank or node that is not there is refused.
void add_injection(const std::string& text, const RankMap& ranks, Disturbances& disturbances);

// --what-if: "nic=800Gb/s" (of one NIC), "nics=8" (of a node), "nvlink=1.8TB/s" (of a device inside its node),
// "peak=2.25PFLOPS" (dense bf16 of a device; fp8 and fp32 grow alike), "memory=8TB/s" (its memory's bandwidth),
// "storage=200GB/s" (writing, of the cluster). Of every node group.
void apply_what_if(const std::string& text, spec::Cluster& cluster);

}  // namespace lockstep::sim
