// One rank as a process, for the tests with processes and under mpirun.
//
//   comm_rank SCENARIO BACKEND [RANK SIZE STORE_PORT]      without the latter three: from Open MPI's environment
//
// SCENARIO: suite  the conformance suite, small sizes; exit 0 when all is well
//           loop   all-reduces until a fault; prints "READY" once it goes round, then "FAULT kind rank text", exit 1
//           part   like loop, but the last rank leaves (returns from main) after a while
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "conformance.h"
#include "lockstep/base/error.h"
#include "lockstep/elastic/store.h"

namespace lockstep::comm::testing {
namespace {

int number_from(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? 0 : std::atoi(text);
}

CommOptions options_from(int argc, char** argv) {
  CommOptions options;
  options.backend = argv[2];
  options.plugin_folders = {LOCKSTEP_BUILD_DIR};
  options.timeout = milliseconds(60'000);
  if (const char* timeout = std::getenv("COMM_TEST_TIMEOUT_MS")) options.timeout = milliseconds(std::atoi(timeout));
  if (const char* shared = std::getenv("COMM_TEST_SHARED_MEMORY")) options.shared_memory = std::atoi(shared) != 0;
  if (argc >= 6) {
    options.rank = std::atoi(argv[3]);
    options.size = std::atoi(argv[4]);
    options.store = std::make_shared<elastic::StoreClient>(elastic::StoreClientOptions{.port = std::atoi(argv[5])});
  } else {
    options.rank = number_from("OMPI_COMM_WORLD_RANK");
    options.size = number_from("OMPI_COMM_WORLD_SIZE");
  }
  return options;
}

int run_suite(Communicator& comm) {
  Findings findings;
  check_everything(comm, {.counts = {0, 1, 1023, 1 << 16}}, findings);
  if (!findings.empty()) std::fprintf(stderr, "rank %d: %s\n", comm.rank(), findings.to_string().c_str());
  return findings.empty() ? 0 : 1;
}

int run_loop(Communicator& comm, bool last_leaves) {
  constexpr const char* kKinds[] = {"peer_lost", "timeout", "aborted"};
  std::vector<float> data(1 << 18, 1.0f);
  try {
    for (int round = 0;; ++round) {
      comm.all_reduce({data.data(), static_cast<std::int64_t>(data.size()), DType::kF32}, ReduceOp::kMax).wait();
      if (round == 20) {
        std::printf("READY %d\n", static_cast<int>(::getpid()));
        std::fflush(stdout);
      }
      if (round == 40 && last_leaves && comm.rank() == comm.size() - 1) return 7;
    }
  } catch (const Fault& fault) {
    std::printf("FAULT %s %d %s\n", kKinds[static_cast<int>(fault.kind())], fault.rank(), fault.what());
    std::fflush(stdout);
    return 1;
  }
}

}  // namespace
}  // namespace lockstep::comm::testing

int main(int argc, char** argv) {
  using namespace lockstep::comm;
  if (argc < 3) return 2;
  try {
    const std::string scenario = argv[1];
    Communicator comm = open_communicator(testing::options_from(argc, argv));
    return scenario == "suite" ? testing::run_suite(comm) : testing::run_loop(comm, scenario == "part");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank program: %s\n", error.what());
    return 4;
  }
}
