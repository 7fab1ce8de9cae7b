// Worlds whose ranks are threads of the test process.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/comm/local.h"
#include "lockstep/elastic/store.h"

namespace lockstep::comm::testing {

struct ThreadOptions {
  std::string backend = "local";  // "local", "tcp", "gloo", "nccl"; "tcp_apart", "gloo_apart": without shared memory
  int size = 1;
  milliseconds timeout{60'000};
};

// Runs body(communicator) on one thread per rank; returns what each rank threw (null: nothing).
inline std::vector<std::exception_ptr> run_ranks(const ThreadOptions& options,
                                                 const std::function<void(Communicator&)>& body) {
  LocalWorld local(options.size, options.timeout);
  elastic::StoreServer server;
  std::vector<std::exception_ptr> thrown(static_cast<std::size_t>(options.size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < options.size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        Communicator comm;
        if (options.backend == "local") {
          comm = local.communicator(rank);
        } else {
          CommOptions open;
          open.backend = options.backend.substr(0, options.backend.find('_'));
          open.rank = rank;
          open.size = options.size;
          open.timeout = options.timeout;
          open.shared_memory = options.backend.find("_apart") == std::string::npos;
          open.plugin_folders = {LOCKSTEP_BUILD_DIR};
          open.store = std::make_shared<elastic::StoreClient>(elastic::StoreClientOptions{.port = server.port()});
          comm = open_communicator(open);
        }
        body(comm);
      } catch (...) {
        thrown[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  return thrown;
}

// The Fault that a rank threw, or one of kind kAborted with an explaining text when it threw another thing.
inline std::optional<Fault> fault_of(const std::exception_ptr& thrown) {
  if (!thrown) return std::nullopt;
  try {
    std::rethrow_exception(thrown);
  } catch (const Fault& fault) {
    return fault;
  } catch (const std::exception& error) {
    return Fault(FaultKind::kAborted, -2, std::string("not a Fault: ") + error.what());
  }
}

}  // namespace lockstep::comm::testing
