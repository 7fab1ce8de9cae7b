// What a rank works with: its request, its communicator, its recorder and the process around it. Passed in, never
// global.
#pragma once

#include <torch/types.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/checkpoint/file_layer.h"
#include "lockstep/checkpoint/lease.h"
#include "lockstep/checkpoint/pieces.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/elastic/engine_api.h"
#include "lockstep/elastic/rank_request.h"
#include "lockstep/engine/checkpoint_cadence.h"
#include "lockstep/engine/device_step.h"
#include "lockstep/parallel/parallel_model.h"
#include "lockstep/plan/run.h"
#include "lockstep/spec/job.h"
#include "lockstep/telemetry/recorder.h"
#include "lockstep/telemetry/span_log.h"

namespace lockstep::engine {

// The process that opened the engine, seen from one rank. Thread-safe as far as the callbacks are.
class Host {
 public:
  explicit Host(const LockstepEngineHost* host) : host_(host) {}

  void send(const nlohmann::json& message) const;
  void note(const std::string& text) const { send({{"type", "note"}, {"text", text}}); }
  bool stop_requested() const { return stop_answer() != 0; }
  bool requeue_requested() const { return stop_answer() == 2; }  // stopped to be started again
  // Whether an agent commands this process, and its next command; nothing when none came in time.
  bool commanded() const { return host_ != nullptr && host_->next_command != nullptr; }
  std::optional<nlohmann::json> next_command(int timeout_ms) const;

 private:
  int stop_answer() const;

  const LockstepEngineHost* host_;  // may be null: nobody listens
};

// What the plan decides; without a plan every rank is a replica. Throws UserError when no launch of it works.
plan::Run resolve_run(const spec::Job& job, const std::optional<plan::Plan>& plan, int ranks);

class Chaos;
class Control;

struct RunContext {
  elastic::RankRequest request;  // rank 0's facts (run id, folders, resume point) on every rank
  spec::Job job;                 // its batch is the run's
  plan::Run run;                 // resolved, the same on every rank
  comm::Communicator world;
  std::shared_ptr<telemetry::Recorder> recorder;  // null: not recorded
  Host host;
  torch::Device device = torch::kCPU;  // where this rank computes
  DeviceStepMaker make_device_step = engine::make_device_step;
  parallel::ModelFactory make_model = nn::build_model;
  std::shared_ptr<checkpoint::Lease> lease = nullptr;  // of the checkpoint folder; on the first rank
  int generation = 1;
  Endured endured = {};        // before this generation, since the run was started
  Control* control = nullptr;  // null: nobody commands this process
  Chaos* chaos = nullptr;      // null: no fault is asked for
  // What this process holds of the run's state, between the generations of the run; null: nobody commands it.
  std::vector<checkpoint::CheckpointPart>* held = nullptr;
  std::shared_ptr<telemetry::SpanLog> log = nullptr;  // that of the rank's own thread; null: not recorded
  const checkpoint::FileLayer* files = &checkpoint::system_files();  // what checkpoints are written through

  int rank() const { return world.rank(); }
  // "rank 3"; with its host where ranks are on several.
  std::string rank_name() const;
};

// For an exchange that waits for the disk of another rank: as patient as a save (checkpoint.timeout), not as a step.
comm::OpOptions disk_options(const spec::Job& job, const char* site);

// Text from `root` to every rank of the group; blocks.
std::string broadcast_text(comm::Communicator& group, const std::string& text, int root,
                           const comm::OpOptions& options = {});

// {"lockstep", "torch", "threads"}: what this library was built with.
nlohmann::json engine_versions();

// Joins the run, executes request.verb and returns the exit code; errors are sent to the host, never thrown.
// With backend "local" all ranks of the world run as threads of this process.
int run_rank(const elastic::RankRequest& request, const Host& host);

}  // namespace lockstep::engine
