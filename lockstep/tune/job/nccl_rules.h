// NCCL's rules: which values of NCCL_ALGO and NCCL_PROTO work together, from facts about version and machines.
//
// Values are NCCL's own syntax, letter case ignored: "Ring", "ring,tree", "^LL128", "allreduce:tree;broadcast:ring".
// "", "auto" and "default" mean that the variable is not set. Algorithms and protocols that are not known here (newer
// than the table) go with everything.
#pragma once

#include <string>
#include <vector>

#include "lockstep/tune/space/space.h"

namespace lockstep::tune {

// Why NCCL cannot work so, in one line; "" when it can or nothing is known against it. Both values may be "".
std::string nccl_objection(const std::string& algo, const std::string& proto, const NcclFacts& facts);

// The rules as expressions over the knobs NCCL_ALGO and NCCL_PROTO; an empty list of values: there is no such knob.
std::vector<std::string> nccl_constraints(const std::vector<Value>& algos, const std::vector<Value>& protos,
                                          const NcclFacts& facts);

// Does NCCL_NTHREADS have any effect with these? LL128, NVLS and CollNet ignore it. For messages, not a rule.
bool nccl_uses_nthreads(const std::string& algo, const std::string& proto);

// "2.30.7" and "2.30" to 23007 and 23000, NCCL's own number "23007" as it is; 0 when it is neither.
int parse_nccl_version(const std::string& text);

}  // namespace lockstep::tune
