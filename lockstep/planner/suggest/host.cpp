#include "lockstep/planner/suggest/host.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lockstep/base/units.h"

namespace lockstep::planner {
namespace {

// What one worker prepares per second with a tokenizer at work, assumed low; token shards are read far faster.
constexpr double kTokensPerWorker = 100'000;
constexpr double kHeadroom = 4;
constexpr double kSecondsAhead = 2;
constexpr std::int64_t kAssumedCoresPerGpu = 12;  // 96 to 112 cores in nodes of 8
constexpr double kTightMemory = 0.8;

std::int64_t cores_per_gpu(const Suggestion& suggestion) {
  const spec::NodeGroup& group = suggestion.cluster.groups.front();
  const std::int64_t cores = suggestion.request.host_cores;
  return cores > 0 ? std::max<std::int64_t>(1, cores / group.devices_per_node) : kAssumedCoresPerGpu;
}

const char* auto_reason(std::string_view name, bool nodes) {
  if (name == "NCCL_ALGO") {
    return nodes ? "NCCL chooses ring, tree or NVLS per message size and topology; a forced one holds for every "
                   "collective, small and large. Set it only after a measurement (lockstep tune)"
                 : "inside one node NCCL chooses ring or NVLS per message size; a forced one holds for every "
                   "collective. Set it only after a measurement (lockstep tune)";
  }
  if (name == "NCCL_PROTO") {
    return "NCCL takes LL and LL128 for small messages and Simple for large ones where the links allow it; forcing "
           "LL128 on links that tear 128-byte stores corrupts data";
  }
  if (name == "NCCL_NTHREADS")
    return "NCCL's default for the architecture; fewer threads only help beside huge kernels";
  if (name == "NCCL_BUFFSIZE") return "the default of 4 MiB; larger ones pay on long fat links and cost GPU memory";
  return "the interface NCCL finds first; name one where nodes have several networks";
}

}  // namespace

LoaderAdvice choose_loader(Suggestion& suggestion) {
  const plan::Candidate& plan = suggestion.candidate;
  const double step = plan.prediction->step_seconds.expected;
  const auto micro_tokens = static_cast<double>(plan.batch.micro * plan.batch.sequence_length);
  // Every rank of a tensor, context or pipeline group reads the same batch.
  const double needed = micro_tokens * static_cast<double>(plan.batch.accumulation) / step;
  const std::int64_t cores = cores_per_gpu(suggestion);
  const std::int64_t most = std::max<std::int64_t>(1, cores - 2);  // the training thread and the communicator
  const auto wanted = static_cast<std::int64_t>(std::ceil(kHeadroom * needed / kTokensPerWorker));
  LoaderAdvice advice;
  advice.num_workers = std::min(std::max<std::int64_t>(2, wanted), most);
  const double micro_step = step / static_cast<double>(plan.batch.accumulation);
  const double ahead = kSecondsAhead / micro_step / static_cast<double>(advice.num_workers);
  advice.prefetch_factor = std::clamp<std::int64_t>(static_cast<std::int64_t>(std::ceil(ahead)), 2, 8);
  suggestion.reasons.push_back(fmt::format(
      "loader: a rank consumes {} tokens/s; {} workers at {} tokens/s each (tokenizing, assumed) leave {:.1f}x "
      "headroom, "
      "{} of {} cores per GPU{}; {} batches ahead are {} of training",
      format_count(needed), advice.num_workers, format_count(kTokensPerWorker),
      static_cast<double>(advice.num_workers) * kTokensPerWorker / needed, advice.num_workers, cores,
      suggestion.request.host_cores > 0 ? "" : " (assumed; --host-cores)", advice.num_workers * advice.prefetch_factor,
      format_seconds(static_cast<double>(advice.num_workers * advice.prefetch_factor) * micro_step)));
  if (wanted > most) {
    suggestion.warnings.push_back(
        fmt::format("the loader may not keep up when it tokenizes: {} workers are wanted and {} fit the cores; train "
                    "from token shards",
                    wanted, most));
  }
  return advice;
}

std::vector<EnvironmentVariable> choose_environment(const Suggestion& suggestion) {
  const bool several_nodes = suggestion.cluster.groups.size() > 1 || suggestion.cluster.groups.front().nodes > 1;
  std::vector<EnvironmentVariable> variables;
  for (const char* name : {"NCCL_ALGO", "NCCL_PROTO", "NCCL_NTHREADS", "NCCL_BUFFSIZE"}) {
    variables.push_back({name, "auto", auto_reason(name, several_nodes)});
  }
  if (several_nodes) variables.push_back({"NCCL_SOCKET_IFNAME", "auto", auto_reason("NCCL_SOCKET_IFNAME", true)});
  const std::int64_t cores = cores_per_gpu(suggestion);
  const std::int64_t threads = std::clamp<std::int64_t>(cores - suggestion.loader.num_workers, 1, 8);
  variables.push_back({"OMP_NUM_THREADS", std::to_string(threads),
                       fmt::format("{} cores per GPU less {} loader workers, at most 8; without it every rank "
                                   "starts a thread per core of the node",
                                   cores, suggestion.loader.num_workers)});
  if (suggestion.request.stack == Stack::kLockstep) return variables;
  variables.push_back({"TOKENIZERS_PARALLELISM", "false",
                       "loader workers are forked; tokenizers' own threads would warn and contend with them"});
  const plan::MemoryBreakdown& memory = suggestion.candidate.memory;
  if (memory.capacity > 0 && memory.total() > kTightMemory * memory.capacity) {
    variables.push_back({"PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True",
                         fmt::format("{:.0f}% of the memory is predicted to be in use: growing segments lose less to "
                                     "fragmentation",
                                     100 * memory.total() / memory.capacity)});
  }
  return variables;
}

}  // namespace lockstep::planner
