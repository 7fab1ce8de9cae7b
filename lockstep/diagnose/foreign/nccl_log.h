// Logs of NCCL (NCCL_DEBUG=INFO or WARN) and RCCL, in the line forms of 2.7 to 2.30, alone or among other output: which
// ways data takes between GPUs, and what went wrong.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/diagnose/diagnosis.h"

namespace lockstep::diagnose {

struct NcclProblem {
  std::string host;
  int device = -1;   // of its host
  int rank = -1;     // -1: not told
  std::string text;  // as NCCL or torch says it
};

struct NcclLog {
  std::set<std::string> versions;
  std::map<int, std::string> hosts;                  // of the ranks of the largest communicator
  std::map<std::pair<std::string, int>, int> ranks;  // by host and device
  // Connections of the largest communicator and of others, each counted once per channel.
  int within_p2p = 0;      // directly from GPU to GPU
  int within_shared = 0;   // through the memory of the host
  int between_direct = 0;  // network, from GPU memory (GPUDirect RDMA)
  int between_staged = 0;  // network, through the memory of the host
  int between_sockets = 0;
  std::set<std::string> adapters;       // that NCCL found ("mlx5_0")
  std::set<std::string> adapters_used;  // numbers of them
  std::set<std::string> settings;       // NCCL_... that the environment sets, "NAME=value" where told
  std::vector<std::vector<int>> rings;  // of the largest communicator
  std::vector<double> bus_bandwidths;   // results of benchmarks in the log, bytes/s
  std::vector<NcclProblem> problems;    // in the order of the log
  bool hung = false;                    // a watchdog ended it
};

// Lines that are not NCCL's are passed over.
NcclLog read_nccl_log(std::string_view text);
std::vector<Finding> nccl_findings(const NcclLog& log);

}  // namespace lockstep::diagnose
