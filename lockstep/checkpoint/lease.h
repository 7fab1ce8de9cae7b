// A checkpoint folder belongs to one run at a time (docs/reference/resume-and-health.md).
//
// The file `.lease` in the folder says who has it: run, host, process, start and a generation that counts the owners.
// The first rank of a run locks it (flock) for as long as it lives and counts a beat in it every two seconds. A second
// run is refused and told who the owner is; what a dead one left is taken over:
//
//   the lock is taken                    somebody lives: refused, after a few seconds of waiting for one that is ending
//   the same run id                      a rank 0 of an earlier generation of the run: its lock is waited for a moment,
//                                        then the folder is taken over whether it is free or not. A file server may
//                                        keep the lock of a node that is cut off; check() keeps that one from writing
//   the lock is free, the same host,     taken over at once: the kernel drops the lock of a dead process
//   or given back
//   the lock is free, another host       taken over when the beat stands still for ten seconds: locks of some network
//                                        file systems hold on one host only
//   the file system has no locks         as above, and on the same host when the process is gone
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

namespace lockstep::checkpoint {

struct LeaseOwner {
  std::string run;
  std::string host;
  std::int64_t pid = 0;
  double started_at = 0.0;      // seconds since 1970
  std::int64_t generation = 0;  // of this folder, from 1
  bool given_back = false;

  std::string to_string() const;  // "run 20261116-..., process 1234 on node7, since 2026-11-16T..."
};

struct LeaseOptions {
  double wait_seconds = 5.0;     // for a lock that is taken
  double own_run_seconds = 1.0;  // the same, where this run itself has it
  double beat_seconds = 2.0;     // between two beats
  double silent_seconds = 10.0;  // without a beat: the owner is gone
  bool use_lock = true;          // false: as on a file system without locks
};

// Thread-safe. The destructor gives the folder back.
class Lease {
 public:
  // Creates the folder when it is missing. Blocks as the table above says. Throws UserError (environment) when the
  // folder cannot be written or another run has it.
  static std::unique_ptr<Lease> take(const std::filesystem::path& folder, const std::string& run,
                                     const LeaseOptions& options = {});
  virtual ~Lease() = default;

  // Returns while the folder is still ours, as the file system shows it now; else throws UserError (environment) that
  // names the new owner. Call it before anything in the folder is replaced or deleted.
  virtual void check() const = 0;
  virtual const LeaseOwner& owner() const = 0;
};

}  // namespace lockstep::checkpoint
