#include "lockstep/comm/join.h"

#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/elastic/host_address.h"

namespace lockstep::comm {
namespace {

// Where the first rank's store listens: where the launcher told the others to look for it.
std::string store_address(const elastic::RankEnvironment& ranks) {
  if (ranks.one_node) return ranks.master_host;
  if (ranks.interface.empty()) return "0.0.0.0";
  elastic::require_on_interface(ranks.master_host, ranks.interface, "the meeting point " + ranks.master_host);
  return elastic::address_of_interface(ranks.interface);
}

// The other node may be lost, and its name with it: pods take theirs along.
std::string address_for_others(const elastic::RankEnvironment& ranks) {
  if (!ranks.interface.empty()) return elastic::address_of_interface(ranks.interface);
  if (ranks.one_node) return "127.0.0.1";
  if (!ranks.towards.empty() && elastic::is_known_host(ranks.towards)) {
    return elastic::address_of_this_host(ranks.towards);
  }
  return elastic::address_of_this_host(ranks.master_host);
}

}  // namespace

Meeting meet(const elastic::RankEnvironment& ranks, MeetingOptions options) {
  if (ranks.master_port == 0) {
    throw bad_input(ranks.source + " gave no meeting point", "set MASTER_ADDR and MASTER_PORT, or use the mpi backend");
  }
  Meeting meeting;
  const std::string token = elastic::token_from_environment();
  if (!options.is_served && ranks.rank == 0) {
    meeting.server = std::make_unique<elastic::StoreServer>(
        elastic::StoreServerOptions{store_address(ranks), ranks.master_port, token});
  }
  elastic::StoreClientOptions client{.address = ranks.master_host, .port = ranks.master_port, .token = token};
  client.connect_timeout = options.timeout;
  client.aborted = std::move(options.aborted);
  meeting.store = std::make_shared<elastic::StoreClient>(std::move(client));
  meeting.address = address_for_others(ranks);
  return meeting;
}

CommOptions options_of(const elastic::RankEnvironment& ranks, const std::string& backend, const Meeting* meeting) {
  CommOptions options;
  options.backend = backend;
  options.rank = ranks.rank;
  options.size = ranks.world;
  options.device = ranks.local_rank;
  if (meeting != nullptr) {
    options.store = meeting->store;
    options.address = meeting->address;
  }
  return options;
}

}  // namespace lockstep::comm
