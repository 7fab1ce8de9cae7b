// Saver: one rank's side of saving checkpoints while training goes on.
//
//   saver.begin(part);                              // all ranks, after the same step; the copy is all that stalls
//   ... steps; each carries saver.progress(), and all ranks get the sums ...
//   if (auto outcome = saver.advance(sums)) ...     // the same on every rank
//
// begin() copies the state into host memory; a background thread writes this rank's files into a hidden folder and
// fsyncs them. When every rank's are durable, rank 0's background thread writes the manifest and renames the folder.
// Background threads exchange nothing with other ranks: what they have done travels with the steps, as sums over all
// ranks, so all ranks see the same and decide the same. At most one save is in flight.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/base/clock.h"
#include "lockstep/checkpoint/file_layer.h"
#include "lockstep/checkpoint/host_image.h"
#include "lockstep/checkpoint/pieces.h"

namespace lockstep::telemetry {
class SpanLog;
}

namespace lockstep::checkpoint {

struct SaverOptions {
  std::filesystem::path directory;  // holds the step-* folders; created when missing; shared by all ranks
  int rank = 0;
  int world = 1;
  std::int64_t keep = 3;         // checkpoints kept after a save, at least 1
  std::string session;           // new_session() of rank 0 on all ranks; "" on one rank: a new one
  double timeout_seconds = 600;  // a save that takes longer has failed
  const FileLayer* files = &system_files();
  // Called on rank 0, in the background, before a checkpoint takes its place and older ones go; may throw UserError.
  std::function<void()> before_publish = {};
  std::shared_ptr<telemetry::SpanLog> log = nullptr;  // hears of what is written in the background; may be null
};

// A name unlike that of any other start of a run, so that what is left of those is never taken for a part of this one.
std::string new_session();

// What a rank tells the others of the save in flight; ranks add it up.
struct SaveProgress {
  double written = 0;    // its part is durable
  double failed = 0;     // its part could not be written
  double published = 0;  // rank 0: the checkpoint is there
  double refused = 0;    // rank 0: it could not be published
  double expired = 0;    // rank 0: the time is over
  double given_up = 0;   // rank 0: nobody waits any longer for those that hang
  static constexpr int kFields = 6;

  // In the order above, to be added up, and back.
  std::array<double, kFields> numbers() const { return {written, failed, published, refused, expired, given_up}; }
  static SaveProgress of(const double* sums) { return {sums[0], sums[1], sums[2], sums[3], sums[4], sums[5]}; }
};

// How a save ended; `saved` and `step` are the same on every rank.
struct SaveOutcome {
  bool saved = false;
  std::int64_t step = 0;
  std::filesystem::path path;
  std::uint64_t bytes = 0;  // written by this rank
  double seconds = 0.0;     // from begin() to here
  double stall_seconds = 0.0;
  std::string problem;  // what went wrong on this rank; "": it went wrong elsewhere
  int failed_ranks = 0;
  bool expired = false;  // it took longer than the timeout
};

class Saver {
 public:
  // Nothing happens on the disk yet.
  explicit Saver(SaverOptions options);
  // A save in flight is given up.
  ~Saver();
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;

  const SaverOptions& options() const { return options_; }
  bool busy() const { return job_ != nullptr; }
  std::int64_t step() const;  // of the save in flight

  // Gets memory for a part like this one, in the background: otherwise the first save waits for it.
  void prepare(const CheckpointPart& part);
  // Not while busy(). On return the tensors may change. Saving a step again replaces that step's checkpoint. `accept`
  // is told the name of a tensor in host memory that holds a value that is not finite; what it throws leaves no save.
  using Accept = std::function<void(const std::optional<std::string>& not_finite)>;
  void begin(const CheckpointPart& part, const Accept& accept = {});
  // This rank's share; nothing but zeros when idle.
  SaveProgress progress(bool give_up = false) const;
  // The sums of all ranks' progress(), in the same order on every rank. Returns the outcome once.
  std::optional<SaveOutcome> advance(const SaveProgress& sums);

 private:
  struct Job;
  SaveOutcome end(bool saved, int failed_ranks);
  void start(void (*work)(Job&));

  SaverOptions options_;
  std::shared_ptr<HostImage> image_;
  std::future<void> preparing_;
  std::shared_ptr<Job> job_;
  int attempts_ = 0;
};

// Sums a rank's numbers over all ranks; blocks. Called equally often on every rank. May throw (a lost peer).
using Exchange = std::function<SaveProgress(const SaveProgress&)>;

// Waits for the save in flight, in rounds of `exchange`: nobody waits long for one that is still writing. Not longer
// than the saver's timeout and a little, counted from begin().
SaveOutcome finish_save(Saver& saver, const Exchange& exchange);

// begin() and finish_save(); throws UserError (environment) when it was not saved.
SaveOutcome save_checkpoint(const CheckpointPart& part, const SaverOptions& options, const Exchange& exchange = {});

// Before the first step: every rank writes a small file into the directory and reads another rank's. Collective. Throws
// UserError (environment) on every rank when one could not: the folder is not writable there, or not the same one.
void probe_directory(const SaverOptions& options, const std::function<double(double)>& sum);

}  // namespace lockstep::checkpoint
