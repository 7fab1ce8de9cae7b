// Settings of nccl's groups as text, for LOCKSTEP_NCCL_GROUPS and for plans (knobs.nccl_groups):
//   dp:algorithm=Ring,protocol=Simple,channels=8;tp:protocol=LL128;*:min_channels=4,max_channels=16
#pragma once

#include <string>
#include <vector>

#include "lockstep/comm/communicator.h"

namespace lockstep::comm {

// `channels` sets both bounds. Throws UserError for what it cannot read; "" has no entries.
std::vector<GroupSettings> parse_group_settings(const std::string& text);

// Those of the environment where it has any, otherwise the plan's. `environment` may be null.
std::vector<GroupSettings> choose_group_settings(const char* environment, const std::string& planned);

}  // namespace lockstep::comm
