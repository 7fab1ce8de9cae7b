// What this machine has, as far as a Cluster of kind cpu needs it.
#pragma once

namespace lockstep::spec {

// Physical memory that processes here may use: the machine's, or less where a control group (container) says so.
double machine_memory_bytes();

}  // namespace lockstep::spec
