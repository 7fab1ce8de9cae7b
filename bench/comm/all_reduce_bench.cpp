// All-reduce over message sizes, ranks as threads: the local backend, and Gloo through shared memory and through
// sockets. `bytes_per_second` is the algorithm bandwidth (message / time), `bus` the bytes each rank must move in a
// ring for it.
#include <benchmark/benchmark.h>

#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/comm/local.h"
#include "lockstep/elastic/store.h"

namespace {

using namespace lockstep;

enum Backend { kLocal, kGlooSharedMemory, kGlooSockets };

std::vector<comm::Communicator> open_world(Backend backend, int size) {
  std::vector<comm::Communicator> ranks(static_cast<std::size_t>(size));
  if (backend == kLocal) {
    comm::LocalWorld world(size);
    for (int rank = 0; rank < size; ++rank) ranks[static_cast<std::size_t>(rank)] = world.communicator(rank);
    return ranks;
  }
  elastic::StoreServer server;
  std::vector<std::thread> threads;
  std::vector<std::string> errors(ranks.size());
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        comm::CommOptions options;
        options.backend = "gloo";
        options.rank = rank;
        options.size = size;
        options.shared_memory = backend == kGlooSharedMemory;
        options.store = std::make_shared<elastic::StoreClient>(elastic::StoreClientOptions{.port = server.port()});
        ranks[static_cast<std::size_t>(rank)] = comm::open_communicator(options);
      } catch (const std::exception& error) {
        errors[static_cast<std::size_t>(rank)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& error : errors) {
    if (!error.empty()) throw std::runtime_error(error);
  }
  return ranks;
}

void all_reduce(benchmark::State& state) {
  const auto backend = static_cast<Backend>(state.range(0));
  const int size = static_cast<int>(state.range(1));
  const std::int64_t count = state.range(2) / 4;
  try {
    std::vector<comm::Communicator> ranks = open_world(backend, size);
    std::vector<std::vector<float>> buffers(ranks.size(), std::vector<float>(static_cast<std::size_t>(count)));
    for (std::vector<float>& buffer : buffers) std::fill(buffer.begin(), buffer.end(), 1.0f);
    for (auto unused : state) {
      std::vector<comm::Work> works;
      for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
        works.push_back(ranks[rank].all_reduce({buffers[rank].data(), count, comm::DType::kF32}, comm::ReduceOp::kMax));
      }
      for (comm::Work& work : works) work.wait();
    }
    // A benchmark also checks its result: the maximum of ones stays one.
    if (buffers.front().back() != 1.0f) state.SkipWithError("wrong result");
  } catch (const std::exception& error) {
    state.SkipWithError(error.what());
    return;
  }
  const double bytes = static_cast<double>(count * 4);
  state.SetBytesProcessed(state.iterations() * count * 4);
  state.counters["bus"] = benchmark::Counter(bytes * 2 * (size - 1) / size * static_cast<double>(state.iterations()),
                                             benchmark::Counter::kIsRate, benchmark::Counter::kIs1024);
  state.SetLabel(backend == kLocal ? "local" : backend == kGlooSharedMemory ? "gloo, shared memory" : "gloo, sockets");
}

BENCHMARK(all_reduce)
    ->ArgNames({"backend", "ranks", "bytes"})
    ->ArgsProduct({{kLocal, kGlooSharedMemory, kGlooSockets}, {2, 4}, {1 << 10, 1 << 16, 1 << 20, 1 << 24}})
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);

}  // namespace

BENCHMARK_MAIN();
