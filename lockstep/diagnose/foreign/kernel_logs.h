// Kernel logs (dmesg, journalctl -k, /dev/kmsg) and logs of NVIDIA's fabric manager: hardware first.
#pragma once

#include <string_view>
#include <vector>

#include "lockstep/diagnose/diagnosis.h"

namespace lockstep::diagnose {

// What the lines mean is telemetry's knowledge (telemetry/kernel_log.h, xid.h), the same as the agent's. Faults of the
// hardware and processes that were ended are findings; what is worth a look only is not.
std::vector<Finding> kernel_log_findings(std::string_view text);

}  // namespace lockstep::diagnose
