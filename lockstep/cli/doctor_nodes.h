// `lockstep doctor --nodes`: the checks of every node and of the links between them, before hours are paid for.
#pragma once

#include <string>

#include "lockstep/cli/doctor.h"
#include "lockstep/elastic/node_list.h"

namespace lockstep::cli {

struct NodesDoctorOptions {
  DoctorOptions checks;  // of each node
  std::string token;
  double patience_seconds = 40.0;  // for other nodes to come
};

// This process is one of the nodes: all meet at the first, look at themselves and measure the link to the next; the
// first prints. Returns the exit code: 0 when every node came and is fit, else 4.
int run_doctor_member(const NodesDoctorOptions& options, const elastic::NodeList& nodes);

}  // namespace lockstep::cli
