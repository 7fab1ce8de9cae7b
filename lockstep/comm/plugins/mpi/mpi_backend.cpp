#include <algorithm>
#include <climits>
#include <cstring>

#include <fmt/format.h>

#include "lockstep/comm/plugin_export.h"
#include "lockstep/comm/plugins/fault_board.h"
#include "lockstep/comm/plugins/mpi/session.h"

namespace lockstep::comm {
namespace {

// MPI-3 counts are ints. Larger all-reduces and broadcasts are cut; for the others the limit is the caller's.
constexpr std::int64_t kMaxCount = INT_MAX;

int int_count(std::int64_t count) {
  if (count > kMaxCount) {
    throw BackendError(FaultKind::kAborted, -1,
                       fmt::format("{} elements are more than MPI can count in one operation ({})", count, kMaxCount));
  }
  return static_cast<int>(count);
}

std::byte* at(void* data, std::int64_t bytes) { return static_cast<std::byte*>(data) + bytes; }
const std::byte* at(const void* data, std::int64_t bytes) { return static_cast<const std::byte*>(data) + bytes; }

class MpiBackend final : public Backend {
 public:
  MpiBackend(MpiSession& session, MPI_Comm comm, HostStore store, const std::string& place)
      : session_(session), comm_(comm), store_(std::move(store)), place_(place) {
    session_.call("MPI_Comm_rank", [&] { return MPI_Comm_rank(comm_, &rank_); });
    session_.call("MPI_Comm_size", [&] { return MPI_Comm_size(comm_, &size_); });
    board_ = std::make_unique<FaultBoard>(store_, place_, rank_, size_);
  }

  // The MPI communicator is not freed: that would be collective, and members may go at different times.
  ~MpiBackend() override = default;

  const char* name() const override { return "mpi"; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }

  void run(const Operation& operation, Clock::time_point deadline) override {
    try {
      execute(operation, deadline);
    } catch (const BackendError& error) {
      session_.mark_failed();
      throw board_->root_cause(error);
    }
  }

  std::unique_ptr<Backend> subgroup(const std::vector<int>& ranks, const std::string& name,
                                    Clock::time_point) override {
    // The one call of MPI without a non-blocking form; if it hangs, the group's own deadline ends the wait for it.
    MPI_Group all = MPI_GROUP_NULL;
    MPI_Group some = MPI_GROUP_NULL;
    MPI_Comm made = MPI_COMM_NULL;
    session_.call("MPI_Comm_create_group", [&] {
      MPI_Comm_group(comm_, &all);
      MPI_Group_incl(all, static_cast<int>(ranks.size()), ranks.data(), &some);
      const int result = MPI_Comm_create_group(comm_, some, ranks.front(), &made);
      MPI_Group_free(&some);
      MPI_Group_free(&all);
      return result;
    });
    std::string place = place_ + "/" + name;
    for (const int member : ranks) place += fmt::format(":{}", member);
    return std::make_unique<MpiBackend>(session_, made, store_, place.substr(0, 256));
  }

  void abort() noexcept override {
    stop_ = true;
    session_.mark_failed();
  }

 private:
  void complete(const char* what, Clock::time_point deadline, const std::function<int(MPI_Request*)>& start) {
    session_.complete(what, start, deadline, stop_);
  }

  void execute(const Operation& operation, Clock::time_point deadline) {
    switch (operation.kind) {
      case OpKind::kAllReduce:
        return all_reduce(operation, deadline);
      case OpKind::kReduceScatter:
        return reduce_scatter(operation, deadline);
      case OpKind::kAllGather:
        return all_gather(operation, deadline);
      case OpKind::kBroadcast:
        return broadcast(operation, deadline);
      case OpKind::kAllToAll:
        return all_to_all(operation, deadline);
      case OpKind::kSend:
        return complete("MPI_Isend", deadline, [&](MPI_Request* request) {
          return MPI_Isend(operation.input.data, int_count(operation.input.count),
                           MpiSession::type_of(operation.input.dtype), operation.peer, 0, comm_, request);
        });
      case OpKind::kRecv:
        return complete("MPI_Irecv", deadline, [&](MPI_Request* request) {
          return MPI_Irecv(operation.output.data, int_count(operation.output.count),
                           MpiSession::type_of(operation.output.dtype), operation.peer, 0, comm_, request);
        });
      case OpKind::kBarrier:
        return complete("MPI_Ibarrier", deadline, [&](MPI_Request* request) { return MPI_Ibarrier(comm_, request); });
    }
  }

  void all_reduce(const Operation& operation, Clock::time_point deadline) {
    const DType dtype = operation.output.dtype;
    for (std::int64_t done = 0; done < operation.output.count; done += kMaxCount) {
      const int count = int_count(std::min(kMaxCount, operation.output.count - done));
      complete("MPI_Iallreduce", deadline, [&](MPI_Request* request) {
        return MPI_Iallreduce(MPI_IN_PLACE, at(operation.output.data, done * size_of(dtype)), count,
                              MpiSession::type_of(dtype), session_.op_of(dtype, operation.reduce), comm_, request);
      });
    }
  }

  void reduce_scatter(const Operation& operation, Clock::time_point deadline) {
    if (operation.output.count == 0) return;
    // MPI forbids that input and output overlap; our contract allows this rank's own slice.
    const bool in_place = at(operation.input.data, rank_ * operation.output.bytes()) == operation.output.data;
    std::vector<std::byte> apart(in_place ? static_cast<std::size_t>(operation.output.bytes()) : 0);
    void* const output = in_place ? apart.data() : operation.output.data;
    complete("MPI_Ireduce_scatter_block", deadline, [&](MPI_Request* request) {
      return MPI_Ireduce_scatter_block(operation.input.data, output, int_count(operation.output.count),
                                       MpiSession::type_of(operation.output.dtype),
                                       session_.op_of(operation.output.dtype, operation.reduce), comm_, request);
    });
    if (in_place) std::memcpy(operation.output.data, apart.data(), apart.size());
  }

  void all_gather(const Operation& operation, Clock::time_point deadline) {
    if (operation.output.count == 0) return;
    const bool in_place = at(operation.output.data, rank_ * operation.input.bytes()) == operation.input.data;
    const MPI_Datatype type = MpiSession::type_of(operation.output.dtype);
    const int count = int_count(operation.input.count);
    complete("MPI_Iallgather", deadline, [&](MPI_Request* request) {
      return MPI_Iallgather(in_place ? MPI_IN_PLACE : operation.input.data, count, type, operation.output.data, count,
                            type, comm_, request);
    });
  }

  void broadcast(const Operation& operation, Clock::time_point deadline) {
    const DType dtype = operation.output.dtype;
    for (std::int64_t done = 0; done < operation.output.count; done += kMaxCount) {
      const int count = int_count(std::min(kMaxCount, operation.output.count - done));
      complete("MPI_Ibcast", deadline, [&](MPI_Request* request) {
        return MPI_Ibcast(at(operation.output.data, done * size_of(dtype)), count, MpiSession::type_of(dtype),
                          operation.peer, comm_, request);
      });
    }
  }

  void all_to_all(const Operation& operation, Clock::time_point deadline) {
    std::vector<int> send_counts, receive_counts, from, to;
    std::int64_t sent = 0;
    std::int64_t received = 0;
    for (std::size_t i = 0; i < operation.send_counts.size(); ++i) {
      send_counts.push_back(int_count(operation.send_counts[i]));
      receive_counts.push_back(int_count(operation.receive_counts[i]));
      from.push_back(int_count(sent));
      to.push_back(int_count(received));
      sent += operation.send_counts[i];
      received += operation.receive_counts[i];
    }
    const MPI_Datatype type = MpiSession::type_of(operation.output.dtype);
    complete("MPI_Ialltoallv", deadline, [&](MPI_Request* request) {
      return MPI_Ialltoallv(operation.input.data, send_counts.data(), from.data(), type, operation.output.data,
                            receive_counts.data(), to.data(), type, comm_, request);
    });
  }

  MpiSession& session_;
  MPI_Comm comm_;
  HostStore store_;
  std::string place_;
  int rank_ = 0;
  int size_ = 1;
  std::unique_ptr<FaultBoard> board_;
  std::atomic<bool> stop_{false};
};

std::unique_ptr<Backend> open_mpi(const PluginOptions& options) {
  MpiSession& session = MpiSession::get();
  if (session.rank() != options.rank || session.size() != options.size) {
    throw bad_input(fmt::format("rank {} of {} was asked for, and MPI says rank {} of {}", options.rank, options.size,
                                session.rank(), session.size()),
                    fmt::format("start the job with mpirun -np {}", options.size));
  }
  if (session.failed()) throw environment_error("MPI failed in this process before", "start a new process");
  MPI_Comm world = MPI_COMM_NULL;
  const std::atomic<bool> never{false};
  session.complete(
      "MPI_Comm_idup", [&](MPI_Request* request) { return MPI_Comm_idup(MPI_COMM_WORLD, &world, request); },
      options.connect_deadline, never);
  return std::make_unique<MpiBackend>(session, world, options.store, "mpi");
}

}  // namespace
}  // namespace lockstep::comm

LOCKSTEP_EXPORT_COMM_BACKEND("mpi", lockstep::comm::open_mpi)
