// MPI itself: one per process, initialised by the first world and ended when the process exits.
//
// Every call is non-blocking and followed by polling, so timeouts are ours and not MPI's. Memory of an operation that
// failed may still be known to MPI, so after a failure this process makes no further MPI call except MPI_Abort, at
// exit: it ends the whole job with exit code 1 and names the rank on stderr. A rank that exits while others still work
// ends the job in the same way.
#pragma once

#include <mpi.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>

#include "lockstep/comm/backend.h"

namespace lockstep::comm {

class MpiSession {
 public:
  // The session of this process. Throws environment_error when MPI cannot be initialised with threads.
  static MpiSession& get();

  int rank() const { return rank_; }
  int size() const { return size_; }

  // Checks the result of an MPI call made while the lock is held.
  template <typename Call>
  void call(const char* what, Call function) {
    const auto lock = lock_if_needed();
    check(function(), what);
  }

  // Starts an operation and sleeps until it is complete. `stop` ends it early.
  void complete(const char* what, const std::function<int(MPI_Request*)>& start, Clock::time_point deadline,
                const std::atomic<bool>& stop);

  MPI_Op op_of(DType dtype, ReduceOp op) const;
  static MPI_Datatype type_of(DType dtype);

  void mark_failed() noexcept { failed_ = true; }
  bool failed() const { return failed_; }

 private:
  MpiSession();
  ~MpiSession();
  void make_ops();
  void check(int result, const char* what) const;
  std::unique_lock<std::mutex> lock_if_needed();
  bool everybody_is_done() noexcept;

  bool owns_mpi_ = false;
  bool needs_lock_ = false;  // MPI came without MPI_THREAD_MULTIPLE
  std::mutex mutex_;
  int rank_ = 0;
  int size_ = 1;
  MPI_Comm goodbye_ = MPI_COMM_NULL;
  std::atomic<bool> failed_{false};
  MPI_Op own_ops_[3][3] = {};  // [f16, bf16, u8][ReduceOp]
};

}  // namespace lockstep::comm
