// Trials on other machines. A lane's evaluator asks and a worker there answers, through small files in a folder that
// both see (a cluster's shared file system). Every file is replaced as a whole, so that no reader sees half of one.
//
//   owner             counts while the study lives; workers whose study went away end
//   over              the study has ended: so do the workers
//   LANE.request      what to measure: an id, a trial
//   LANE.stop         the id of a request to end, and whether its result still counts
//   LANE.worker       counts while the worker lives; the id it works on and its samples so far
//   LANE.result       the id that was answered, and the trial with its figures
//
// A worker that is lost is started again somewhere and finds the request that was not answered.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "lockstep/tune/evaluators/evaluator.h"
#include "lockstep/tune/space/space.h"

namespace lockstep::tune {

// Where the workers of the lanes run. Thread-safe: lanes ask from threads of their own.
class LaneTasks {
 public:
  enum class Phase { kWaiting, kRunning, kGone, kCancelled };
  struct State {
    Phase phase = Phase::kWaiting;
    std::string detail;
  };
  virtual ~LaneTasks() = default;
  virtual State state(std::size_t lane) = 0;
  // Ends the lane's worker, if it is there, and starts another. Throws UserError when that cannot be.
  virtual void start_again(std::size_t lane) = 0;
};

struct RemoteOptions {
  std::filesystem::path folder;
  std::size_t lane = 0;
  double quiet_seconds = 90;  // without a sign of a worker that runs: it is lost. File systems may be that late
  int attempts = 3;           // of a trial whose worker is lost; then it counts as a crash
};

// `local` says what a configuration holds and in which unit it is measured; it is never asked to evaluate. Time in
// which no worker had the trial is not charged.
std::unique_ptr<Evaluator> make_remote_evaluator(std::unique_ptr<Evaluator> local, Space space, RemoteOptions options,
                                                 std::shared_ptr<LaneTasks> tasks);

// Says to the workers that the study lives, until it is destroyed: then that it is over.
class RemoteOwner {
 public:
  explicit RemoteOwner(std::filesystem::path folder);
  ~RemoteOwner();
  RemoteOwner(const RemoteOwner&) = delete;
  RemoteOwner& operator=(const RemoteOwner&) = delete;

 private:
  const std::filesystem::path folder_;
  std::jthread beat_;
};

// On the node: answers the requests of a lane with what `evaluator` measures, until the study is over or gone, another
// worker has the lane, the scheduler asks, or there is nothing to do: another lane may be waiting for the node.
enum class WorkerEnd { kNo, kAfterThisTrial, kNow };
struct ServeOptions {
  std::filesystem::path folder;
  std::size_t lane = 0;
  double owner_seconds = 180;                // without a sign of the study
  double idle_seconds = 45;                  // without a request
  std::function<WorkerEnd()> end_was_asked;  // by signals; may be empty
};
void serve_trials(Evaluator& evaluator, const Space& space, const ServeOptions& options);

}  // namespace lockstep::tune
