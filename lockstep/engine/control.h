// Control: the line between a rank's process and the agent that commands it. A thread listens for commands and tells
// the agent twice a second that the process lives and how far it is.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/elastic/chaos.h"
#include "lockstep/engine/run_context.h"

namespace lockstep::engine {

class Control {
 public:
  // `host` must be commanded, and outlive the object.
  explicit Control(const Host& host);
  ~Control();
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  struct Join {
    int generation = 0;
    int rank = 0, world = 1, local_rank = 0, local_world = 1;
    std::string master_host;  // where the ranks meet
    int master_port = 0;
    bool one_node = true;
    std::string towards;                     // a host that other nodes are reached like; "": none
    std::vector<elastic::ChaosEvent> chaos;  // that is left for this rank
    Endured endured;
  };
  // Blocks until the agent wants this process in a generation; nothing when it does not need it any more.
  std::optional<Join> next_join();

  // From now until left() an abort of this generation reaches `world`. Throws Fault when it came already.
  void entered(int generation, comm::Communicator world);
  // Why this generation is not to go on; nothing while it is. Also before entered().
  std::optional<std::string> aborted(int generation);
  // The generation is over for this process because of `fault`; it waits for the next one.
  void left(int generation, const Fault& fault);

  // The first rank has the state after `step` again; `lost_steps` that were done are done again (-1: unknown).
  void recovered(std::int64_t lost_steps, std::int64_t step);
  // Optimizer steps done; the first of a generation is told at once. Throws Fault when the agent ended the generation:
  // a rank that is alone has no communicator to learn it from.
  void stepped(std::int64_t step);
  // How long this rank was busy in a step, without what it waited for others: heartbeats tell the sum.
  void was_busy(double seconds) { busy_seconds_ = busy_seconds_ + seconds; }
  // Heartbeats tell what `log` says of this rank; null: nothing.
  void watch(std::shared_ptr<telemetry::SpanLog> log);
  // This rank gets on with what is not a step: a batch of an evaluation, a round of waiting for a save.
  void worked() { ++marks_; }

 private:
  void run();
  void obey(const nlohmann::json& command);
  void beat();
  std::optional<std::string> why_not(int generation) const;  // under mutex_

  const Host& host_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Join> join_;
  std::optional<comm::Communicator> world_;
  std::shared_ptr<telemetry::SpanLog> log_;
  int generation_ = 0;
  int aborted_ = 0;  // the newest generation that was aborted
  std::string abort_reason_;
  bool ended_ = false;
  std::atomic<std::int64_t> step_{-1}, marks_{0};
  std::atomic<double> busy_seconds_{0.0};  // written by the rank's own thread alone
  std::atomic<bool> closing_{false};
  std::thread thread_;
};

}  // namespace lockstep::engine
