// How ranks that a launcher started find each other: the store they meet at, and their own addresses.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/comm/communicator.h"
#include "lockstep/elastic/rank_environment.h"
#include "lockstep/elastic/store.h"

namespace lockstep::comm {

// Kept as long as a communicator that was opened with it.
struct Meeting {
  std::unique_ptr<elastic::StoreServer> server;  // of the first rank, where nobody else serves the store
  std::shared_ptr<elastic::KeyValueStore> store;
  std::string address = "127.0.0.1";  // of this host, as the other ranks reach it
};

struct MeetingOptions {
  bool is_served = false;  // by an agent; else the first rank serves the store itself
  elastic::milliseconds timeout{30'000};
  std::function<std::optional<std::string>()> aborted;  // as StoreClientOptions has it
};

// Blocks until the store answers. Beyond this machine the store asks for the token of the environment. Throws bad_input
// where the launcher named no meeting point, and what StoreServer and StoreClient throw.
Meeting meet(const elastic::RankEnvironment& ranks, MeetingOptions options = {});

// What of a communicator's options follows from where this rank is. `meeting` is null for mpi, which needs none.
CommOptions options_of(const elastic::RankEnvironment& ranks, const std::string& backend, const Meeting* meeting);

// Whether its plugin is found where open_communicator() looks. Libraries that the plugin needs may still be missing.
bool has_plugin(const std::string& backend);

}  // namespace lockstep::comm
