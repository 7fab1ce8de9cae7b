// Small texts between ranks, where every rank has one of its own.
#pragma once

#include <string>
#include <vector>

#include "lockstep/comm/communicator.h"

namespace lockstep::engine {

// Collective: the text of every rank, on every rank.
std::vector<std::string> gather_texts(comm::Communicator& group, const std::string& mine);

// Collective: texts[i] goes to rank i; returns what came from each rank.
std::vector<std::string> exchange_texts(comm::Communicator& group, const std::vector<std::string>& texts);

}  // namespace lockstep::engine
