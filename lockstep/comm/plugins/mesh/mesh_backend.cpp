#include "lockstep/comm/plugins/mesh/mesh_backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "lockstep/comm/plugins/fault_board.h"
#include "lockstep/comm/plugins/mesh/collectives.h"
#include "lockstep/comm/plugins/mesh/shared_memory.h"
#include "lockstep/comm/plugins/mesh/sigpipe_guard.h"

namespace lockstep::comm {
namespace {

class MeshBackend final : public Backend {
 public:
  MeshBackend(const char* name, MeshMaker make_mesh, HostStore store, std::string place, int rank, int size, bool share,
              Clock::time_point deadline)
      : name_(name),
        make_mesh_(std::move(make_mesh)),
        store_(std::move(store)),
        place_(std::move(place)),
        mesh_(make_mesh_(store_, place_, rank, size, deadline)),
        collectives_(*mesh_),
        share_(share),
        board_(store_, place_, rank, size),
        sent_(static_cast<std::size_t>(size)),
        received_(static_cast<std::size_t>(size)) {
    if (share_) memory_ = SharedMemory::open(store_, place_, rank, size, deadline);
    run({.kind = OpKind::kBarrier}, deadline);
    // What it was connected with is not needed once all ranks are.
    if (size > 1) store_.remove(fmt::format("{}/address/{}", place_, rank));
    if (size > 1 && rank == 0) store_.remove(place_ + "/secret");
  }

  ~MeshBackend() override { MeshBackend::abort(); }

  const char* name() const override { return name_; }
  int rank() const override { return mesh_->rank(); }
  int size() const override { return mesh_->size(); }

  void run(const Operation& operation, Clock::time_point deadline) override {
    const SigpipeGuard guard;
    try {
      if (operation.kind == OpKind::kSend || operation.kind == OpKind::kRecv) return message(operation, deadline);
      if (memory_ && operation.kind == OpKind::kAllReduce) return memory_->all_reduce(operation, deadline);
      if (memory_ && operation.kind == OpKind::kBarrier) return memory_->barrier(deadline);
      collectives_.run(operation, deadline);
    } catch (const BackendError& error) {
      throw board_.root_cause(error);
    }
  }

  std::unique_ptr<Backend> subgroup(const std::vector<int>& ranks, const std::string& name,
                                    Clock::time_point deadline) override {
    const SigpipeGuard guard;
    std::string key = name;
    for (const int member : ranks) key += fmt::format(":{}", member);
    key += fmt::format("#{}", ++made_[key]);  // the same key for the n-th such group on every member
    const auto self = std::find(ranks.begin(), ranks.end(), rank()) - ranks.begin();
    try {
      return std::make_unique<MeshBackend>(name_, make_mesh_, store_,
                                           fmt::format("{}/{:016x}", place_, fingerprint(key)), static_cast<int>(self),
                                           static_cast<int>(ranks.size()), share_, deadline);
    } catch (const BackendError& error) {
      // The rank in the message counts in the new group; the caller knows ranks of this one.
      const bool known = error.rank() >= 0 && error.rank() < static_cast<int>(ranks.size());
      throw BackendError(error.kind(), known ? ranks[static_cast<std::size_t>(error.rank())] : -1, error.detail());
    }
  }

  void abort() noexcept override {
    const SigpipeGuard guard;
    if (memory_) memory_->abort();
    mesh_->abort();
  }

 private:
  void message(const Operation& operation, Clock::time_point deadline) {
    // The highest bit keeps these tags apart from the collectives'. Each counter belongs to one lane of the group.
    constexpr std::uint64_t kPointToPoint = std::uint64_t{1} << 63;
    const auto peer = static_cast<std::size_t>(operation.peer);
    const bool sending = operation.kind == OpKind::kSend;
    const std::int64_t bytes = sending ? operation.input.bytes() : operation.output.bytes();
    const std::uint64_t tag = kPointToPoint | (sending ? sent_ : received_)[peer]++;
    if (bytes == 0) return;
    const auto moved = sending ? mesh_->send(operation.peer, tag, operation.input.data, bytes)
                               : mesh_->receive(operation.peer, tag, operation.output.data, bytes);
    mesh_->wait(*moved, deadline);
  }

  const char* const name_;
  const MeshMaker make_mesh_;
  HostStore store_;
  std::string place_;
  const std::unique_ptr<Mesh> mesh_;
  MeshCollectives collectives_;
  const bool share_;
  std::unique_ptr<SharedMemory> memory_;  // null: the ranks do not share a host, or must not use it
  FaultBoard board_;
  std::vector<std::uint64_t> sent_;
  std::vector<std::uint64_t> received_;
  std::map<std::string, int> made_;
};

}  // namespace

std::uint64_t fingerprint(const std::string& text) {
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

std::unique_ptr<Backend> open_mesh_backend(const char* name, const PluginOptions& options, MeshMaker make_mesh) {
  return std::make_unique<MeshBackend>(name, std::move(make_mesh), options.store, name, options.rank, options.size,
                                       options.shared_memory, options.connect_deadline);
}

}  // namespace lockstep::comm
