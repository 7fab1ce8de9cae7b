// Snapshots: recent states of a run in the memory of its ranks, so that a lost rank (or node) costs no disk and at most
// a step. Each rank copies what it holds of the state after a step (data position included) into its own memory, and
// what no rank of another failure domain holds to a peer there. Where every rank holds the whole state (plain data
// parallelism) there is nothing to do: live replicas are the snapshot.
//
//   take      after the update of step s: live tensors are copied, then the exchange runs beside step s + 1
//   wait      before any rank updates to s + 1 the exchange of s is complete on all of them (Executor's before_update)
//
// So when the first rank has updated to s + 1, snapshot s is whole, own copies and peers'. There are two of each: s
// stays until s + 1 is whole. With a snapshot in every step a rank that is lost
//   - in forward or backward of s + 1: the others are at s, its keeper has s: nothing is done again
//   - from its update to s + 1 until its copy of s + 1 has arrived: all go back to s, one step is done again
//
// Two losses at once, of a rank and its keeper, go back to the last checkpoint on disk. After a recovery the first
// snapshot is taken before the first step, and what was recovered from stays in memory until it is whole.
//
// Memory: twice what this rank holds of the state and what it keeps for others, in host memory (cost/snapshots.h).
#pragma once

#include <cstdint>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/checkpoint/host_image.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/engine/run_context.h"
#include "lockstep/engine/snapshot_cadence.h"
#include "lockstep/engine/step_result.h"
#include "lockstep/engine/training_state.h"

namespace lockstep::engine {

// Belongs to one rank's thread. Every rank makes the same calls.
class Snapshots {
 public:
  // Collective: finds out who keeps what. `context` must outlive the object. Throws UserError (does not fit) where the
  // job insists on them and memory lacks.
  Snapshots(RunContext& context, const TrainingState& state);
  ~Snapshots();
  Snapshots(const Snapshots&) = delete;
  Snapshots& operator=(const Snapshots&) = delete;

  bool active() const { return active_; }

  // Collective, before the first step and when the run went back to an earlier one: takes one, complete on return, and
  // drops what was taken before.
  void begin(const TrainingState& state);
  // Before the state changes: until the one in flight is complete here. Throws Fault when a peer is lost.
  void wait();
  // After a step: takes one when it is due. Collective.
  void after_step(const TrainingState& state, const StepResult& result);
  // Collective, at the end of the run: nothing is in flight any more.
  void finish();

  // After a Fault: adds what is complete here to `held`, in which this rank's state after `live_step` is already.
  void give(std::int64_t live_step, std::vector<checkpoint::CheckpointPart>& held);

  // {"every", "own_bytes", "sent_bytes", "kept_bytes", "taken", "stall_seconds"}; null when there are none.
  nlohmann::json summary() const;

 private:
  struct Slot {
    checkpoint::CheckpointFacts facts;
    checkpoint::HostImage sent{checkpoint::HostImage::Front::kNone};  // to the keeper
    checkpoint::HostImage kept{checkpoint::HostImage::Front::kNone};  // what others hold too
    std::unique_ptr<unsigned char[]> received;                        // of the wards, back to back
    bool complete = false;
  };
  struct Ward {  // a rank whose copy is here
    int rank = 0;
    std::int64_t offset = 0, bytes = 0;  // in Slot::received
    std::vector<checkpoint::StoredPiece> pieces;
  };

  bool is_wanted() const;
  bool find_work(const checkpoint::CheckpointPart& part);
  void meet_wards(const checkpoint::CheckpointPart& part);
  bool has_room() const;
  void take(const TrainingState& state);
  void start_exchange(Slot& slot);
  comm::Work exchange(Slot& slot);
  void tell() const;

  RunContext& context_;
  bool active_ = false;
  SnapshotCadence cadence_;
  comm::Communicator group_;  // of all ranks, apart from the world's own traffic
  int keeper_ = -1;
  std::vector<bool> is_sent_;  // by piece of live_part()
  std::vector<Ward> wards_;
  std::int64_t own_bytes_ = 0, sent_bytes_ = 0, kept_bytes_ = 0;
  std::shared_ptr<Slot> slots_[2];
  Slot* in_flight_ = nullptr;
  comm::Work work_;
  std::future<void> copying_;  // from a device, and then the exchange
  std::int64_t last_step_ = 0, taken_ = 0;
  double stall_seconds_ = 0.0;  // all of them
  double current_stall_ = 0.0;  // of the last one
  bool step_after_snapshot_ = false;
};

// A peer is lost: what this rank has in memory, live and in snapshots (may be null), goes to context.held for the next
// generation. Not collective. What the generation before left there stays while this one has not done a step.
void hold_state(RunContext& context, const TrainingState& state, Snapshots* snapshots);

}  // namespace lockstep::engine
