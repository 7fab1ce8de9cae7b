#include "lockstep/comm/plugins/mpi/session.h"

#include <sched.h>

#include <cstdio>
#include <thread>

#include <fmt/format.h>

#include "lockstep/comm/reduce.h"

namespace lockstep::comm {
namespace {

// How long a rank that exits waits for the others to be done as well before it ends the job.
constexpr auto kGoodbyeTime = std::chrono::seconds(10);

template <DType dtype, ReduceOp op>
void reduce_own(void* in, void* inout, int* count, MPI_Datatype*) {
  reduce_pair(inout, in, inout, *count, dtype, op);
}

// Sleeps between two looks at a request: at once for small messages, then longer, so that a waiting thread leaves its
// core to those that compute.
class Pause {
 public:
  void operator()() {
    if (++looks_ < 64) {
      ::sched_yield();
    } else {
      std::this_thread::sleep_for(looks_ < 4096 ? std::chrono::microseconds(20) : std::chrono::microseconds(500));
    }
  }

 private:
  int looks_ = 0;
};

}  // namespace

MpiSession& MpiSession::get() {
  static MpiSession session;
  return session;
}

MpiSession::MpiSession() {
  int ready = 0;
  int ended = 0;
  int level = MPI_THREAD_SINGLE;
  MPI_Initialized(&ready);
  MPI_Finalized(&ended);
  if (ended != 0) throw environment_error("MPI was ended in this process", "start a new process");
  if (ready == 0) {
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level), "MPI_Init_thread");
    owns_mpi_ = true;
  } else {
    MPI_Query_thread(&level);
  }
  if (level < MPI_THREAD_SERIALIZED) {
    throw environment_error("this MPI does not allow calls from more than one thread",
                            "initialise it with MPI_THREAD_MULTIPLE");
  }
  needs_lock_ = level < MPI_THREAD_MULTIPLE;
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &size_);
  check(MPI_Comm_dup(MPI_COMM_WORLD, &goodbye_), "MPI_Comm_dup");
  make_ops();
}

MpiSession::~MpiSession() {
  if (!owns_mpi_) return;
  if (failed_) {
    std::fprintf(stderr, "lockstep: rank %d failed and ends the MPI job\n", rank_);
    MPI_Abort(MPI_COMM_WORLD, 1);
  } else if (!everybody_is_done()) {
    std::fprintf(stderr, "lockstep: rank %d exits while other ranks still work, and ends the MPI job\n", rank_);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
}

bool MpiSession::everybody_is_done() noexcept {
  try {
    complete(
        "MPI_Ibarrier", [&](MPI_Request* request) { return MPI_Ibarrier(goodbye_, request); },
        Clock::now() + kGoodbyeTime, failed_);
    return true;
  } catch (...) {
    return false;
  }
}

void MpiSession::make_ops() {
  MPI_User_function* const functions[3][3] = {
      {reduce_own<DType::kF16, ReduceOp::kSum>, reduce_own<DType::kF16, ReduceOp::kMax>,
       reduce_own<DType::kF16, ReduceOp::kMin>},
      {reduce_own<DType::kBF16, ReduceOp::kSum>, reduce_own<DType::kBF16, ReduceOp::kMax>,
       reduce_own<DType::kBF16, ReduceOp::kMin>},
      {reduce_own<DType::kU8, ReduceOp::kSum>, reduce_own<DType::kU8, ReduceOp::kMax>,
       reduce_own<DType::kU8, ReduceOp::kMin>}};
  for (int type = 0; type < 3; ++type) {
    for (int op = 0; op < 3; ++op) check(MPI_Op_create(functions[type][op], 1, &own_ops_[type][op]), "MPI_Op_create");
  }
}

MPI_Datatype MpiSession::type_of(DType dtype) {
  // In DType's order; the 16-bit floats are reduced by our own operations.
  const MPI_Datatype types[] = {MPI_DOUBLE,  MPI_FLOAT,   MPI_UINT16_T, MPI_UINT16_T,
                                MPI_INT64_T, MPI_INT32_T, MPI_UINT8_T};
  return types[static_cast<std::size_t>(dtype)];
}

MPI_Op MpiSession::op_of(DType dtype, ReduceOp op) const {
  if (dtype == DType::kF16) return own_ops_[0][static_cast<int>(op)];
  // Open MPI 4.1's AVX code saturates sums of bytes; ours wrap around like those of all other integers.
  if (dtype == DType::kU8) return own_ops_[2][static_cast<int>(op)];
  if (dtype == DType::kBF16) return own_ops_[1][static_cast<int>(op)];
  return op == ReduceOp::kSum ? MPI_SUM : op == ReduceOp::kMax ? MPI_MAX : MPI_MIN;
}

void MpiSession::check(int result, const char* what) const {
  if (result == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(result, text, &length);
  throw BackendError(FaultKind::kPeerLost, -1, fmt::format("{}: {}", what, text));
}

std::unique_lock<std::mutex> MpiSession::lock_if_needed() {
  return needs_lock_ ? std::unique_lock(mutex_) : std::unique_lock<std::mutex>();
}

void MpiSession::complete(const char* what, const std::function<int(MPI_Request*)>& start, Clock::time_point deadline,
                          const std::atomic<bool>& stop) {
  MPI_Request request = MPI_REQUEST_NULL;
  const auto began = Clock::now();
  if (failed_) throw BackendError(FaultKind::kAborted, -1, "aborted here");
  call(what, [&] { return start(&request); });
  Pause pause;
  while (true) {
    int done = 0;
    call(what, [&] { return MPI_Test(&request, &done, MPI_STATUS_IGNORE); });
    if (done != 0) return;
    if (stop) throw BackendError(FaultKind::kAborted, -1, "aborted here");
    if (Clock::now() >= deadline) {
      const std::chrono::duration<double> waited = Clock::now() - began;
      throw BackendError(FaultKind::kTimeout, -1, fmt::format("not complete after {:.1f} s", waited.count()));
    }
    pause();
  }
}

}  // namespace lockstep::comm
