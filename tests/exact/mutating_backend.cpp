#include "tests/exact/mutating_backend.h"

#include <algorithm>
#include <cstring>

#include "lockstep/comm/backend.h"

namespace lockstep::exact {
namespace {

using comm::Buffer;
using comm::DType;
using comm::Operation;
using comm::OpKind;

bool reduces(OpKind kind) { return kind == OpKind::kAllReduce || kind == OpKind::kReduceScatter; }

template <typename T>
void scale_as(const Buffer& buffer, double factor) {
  T* data = static_cast<T*>(buffer.data);
  for (std::int64_t i = 0; i < buffer.count; ++i) data[i] = static_cast<T>(static_cast<double>(data[i]) * factor);
}

void scale(const Buffer& buffer, double factor) {
  if (buffer.dtype == DType::kF64) scale_as<double>(buffer, factor);
  if (buffer.dtype == DType::kF32) scale_as<float>(buffer, factor);
  if (buffer.dtype == DType::kI64) scale_as<std::int64_t>(buffer, factor);
  if (buffer.dtype == DType::kI32) scale_as<std::int32_t>(buffer, factor);
}

}  // namespace

const char* to_string(Fault fault) {
  switch (fault) {
    case Fault::kNone:
      return "none";
    case Fault::kDropped:
      return "dropped";
    case Fault::kDoubled:
      return "doubled";
    case Fault::kWrongScale:
      return "wrong scale";
    case Fault::kWrongGroup:
      return "wrong group";
  }
  return "?";
}

// Passes operations on to `inner`, but for those of the mutated site.
class MutatingBackend : public comm::Backend {
 public:
  MutatingBackend(comm::Communicator inner, comm::Communicator decoy, Mutation& mutation, comm::Communicator world)
      : inner_(std::move(inner)), decoy_(std::move(decoy)), mutation_(mutation), world_(std::move(world)) {}

  const char* name() const override { return "mutating"; }
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }

  void run(const Operation& op, comm::Clock::time_point) override {
    const Site site{op.site, inner_.name(), op.kind, op.reduce};
    mutation_.saw(site);
    const bool mutated = *op.site != '\0' && site.name == mutation_.site_.name && site.group == mutation_.site_.group;
    if (!mutated || mutation_.fault_ == Fault::kNone) return pass_on(inner_, op);
    switch (mutation_.fault_) {
      case Fault::kNone:
        return;
      case Fault::kDropped:
        return drop(op);
      case Fault::kDoubled:
        pass_on(inner_, op);
        if (op.kind == OpKind::kAllReduce) return pass_on(inner_, op);
        return changed(op, 2.0);
      case Fault::kWrongScale:
        pass_on(inner_, op);
        return changed(op, reduces(op.kind) ? 1.0 / inner_.size() : 0.5);
      case Fault::kWrongGroup:
        return pass_on(decoy_.valid() ? decoy_ : inner_, op);
    }
  }

  std::unique_ptr<comm::Backend> subgroup(const std::vector<int>& ranks, const std::string& name,
                                          comm::Clock::time_point) override {
    mutation_.saw_group(name, ranks);
    comm::Communicator group = inner_.subgroup(ranks, name);
    comm::Communicator decoy;
    if (mutation_.fault_ == Fault::kWrongGroup && name == mutation_.site_.group) {
      decoy = inner_.subgroup(mutation_.exchanged(inner_.rank()), name);
    }
    return std::make_unique<MutatingBackend>(std::move(group), std::move(decoy), mutation_, inner_);
  }

  void abort() noexcept override {
    inner_.abort("a peer gave up");
    if (decoy_.valid()) decoy_.abort("a peer gave up");
  }

 private:
  static void pass_on(comm::Communicator& group, const Operation& op) {
    switch (op.kind) {
      case OpKind::kAllReduce:
        return group.all_reduce(op.output, op.reduce).wait();
      case OpKind::kReduceScatter:
        return group.reduce_scatter(op.input, op.output, op.reduce).wait();
      case OpKind::kAllGather:
        return group.all_gather(op.input, op.output).wait();
      case OpKind::kBroadcast:
        return group.broadcast(op.output, op.peer).wait();
      case OpKind::kAllToAll:
        return group.all_to_all(op.input, op.send_counts, op.output, op.receive_counts).wait();
      case OpKind::kSend:
        return group.send(op.input, op.peer).wait();
      case OpKind::kRecv:
        return group.recv(op.output, op.peer).wait();
      case OpKind::kBarrier:
        return group.barrier().wait();
    }
  }

  void drop(const Operation& op) {
    auto* out = static_cast<char*>(op.output.data);
    const auto* in = static_cast<const char*>(op.input.data);
    const auto bytes = static_cast<std::size_t>(op.output.bytes());
    switch (op.kind) {
      case OpKind::kReduceScatter:
        std::memmove(out, in + static_cast<std::size_t>(inner_.rank()) * bytes, bytes);
        return;
      case OpKind::kAllGather: {
        const auto own = static_cast<std::size_t>(op.input.bytes());
        const std::vector<char> part(in, in + own);
        std::memset(out, 0, bytes);
        std::memcpy(out + static_cast<std::size_t>(inner_.rank()) * own, part.data(), own);
        return;
      }
      case OpKind::kAllToAll:
        std::memset(out, 0, bytes);
        std::memcpy(out, in, std::min(bytes, static_cast<std::size_t>(op.input.bytes())));
        return;
      case OpKind::kRecv:
        std::memset(out, 0, bytes);
        return;
      default:
        return;  // in place, or only sent
    }
  }

  static void changed(const Operation& op, double factor) {
    if (op.kind != OpKind::kSend) scale(op.output, factor);
  }

  comm::Communicator inner_, decoy_;
  Mutation& mutation_;
  comm::Communicator world_;
};

Mutation::Mutation(Site site, Fault fault, std::map<std::string, std::set<std::vector<int>>> groups)
    : site_(std::move(site)), fault_(fault), groups_(std::move(groups)) {}

comm::Communicator Mutation::wrap(comm::Communicator inner, int) {
  const comm::milliseconds timeout = inner.timeout();
  const std::string name = inner.name();
  return comm::Communicator(std::make_unique<MutatingBackend>(inner, comm::Communicator(), *this, inner), name, {},
                            timeout);
}

void Mutation::saw(const Site& site) {
  if (site.name.empty()) return;
  const std::lock_guard lock(mutex_);
  sites_.insert(site);
}

void Mutation::saw_group(const std::string& name, const std::vector<int>& ranks) {
  if (fault_ != Fault::kNone) return;
  const std::lock_guard lock(mutex_);
  groups_[name].insert(ranks);
}

std::set<Site> Mutation::sites() const {
  const std::lock_guard lock(mutex_);
  return sites_;
}

std::map<std::string, std::set<std::vector<int>>> Mutation::groups() const {
  const std::lock_guard lock(mutex_);
  return groups_;
}

bool Mutation::possible() const {
  if (fault_ != Fault::kWrongGroup) return true;
  const auto found = groups_.find(site_.group);
  return found != groups_.end() && found->second.size() > 1;
}

std::vector<int> Mutation::exchanged(int rank) const {
  const std::set<std::vector<int>>& all = groups_.at(site_.group);
  // From different places, so that the one who comes holds other data than the one who goes.
  const int a = all.begin()->back(), b = std::next(all.begin())->front();
  const int place = rank == a ? b : rank == b ? a : rank;
  for (std::vector<int> group : all) {
    if (std::find(group.begin(), group.end(), place) == group.end()) continue;
    for (int& member : group) member = member == a ? b : member == b ? a : member;
    return group;
  }
  return {rank};
}

}  // namespace lockstep::exact
