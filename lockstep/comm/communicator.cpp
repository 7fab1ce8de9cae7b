#include "lockstep/comm/communicator.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/group.h"

namespace lockstep::comm {
namespace {

[[noreturn]] void reject(const Group& group, OpKind kind, const std::string& problem, const std::string& fix) {
  throw bad_input(fmt::format("[comm] {} in group \"{}\": {}", to_string(kind), group.name(), problem), fix);
}

void check_buffer(const Group& group, OpKind kind, const ConstBuffer& buffer) {
  if (size_of(buffer.dtype) == 0) {
    reject(group, kind, fmt::format("dtype {} is unknown", static_cast<int>(buffer.dtype)),
           "use a value of comm::DType");
  }
  if (buffer.count < 0)
    reject(group, kind, fmt::format("count {} is negative", buffer.count), "pass 0 or more elements");
  if (buffer.count > 0 && buffer.data == nullptr) {
    reject(group, kind, fmt::format("no memory for {} elements", buffer.count), "pass a pointer, or count 0");
  }
}

void check_same_dtype(const Group& group, OpKind kind, const ConstBuffer& a, const ConstBuffer& b) {
  check_buffer(group, kind, a);
  check_buffer(group, kind, b);
  if (a.dtype != b.dtype) {
    reject(group, kind, fmt::format("input is {} and output {}", to_string(a.dtype), to_string(b.dtype)),
           "use one dtype");
  }
  if (a.device != b.device) {
    reject(group, kind, "input and output are not on the same device", "copy one of them first");
  }
}

void check_reduce(const Group& group, OpKind kind, ReduceOp op) {
  if (op != ReduceOp::kSum && op != ReduceOp::kMax && op != ReduceOp::kMin) {
    reject(group, kind, fmt::format("reduction {} is unknown", static_cast<int>(op)), "use a value of comm::ReduceOp");
  }
}

void check_peer(Group& group, OpKind kind, int peer, bool may_be_self) {
  const int size = group.backend().size();
  if (peer < 0 || peer >= size) {
    reject(group, kind, fmt::format("rank {} is not in a group of {}", peer, size),
           fmt::format("use 0 to {}", size - 1));
  }
  if (!may_be_self && peer == group.backend().rank()) {
    reject(group, kind, fmt::format("rank {} addresses itself", peer), "copy the memory instead");
  }
}

void check_counts(Group& group, const std::vector<std::int64_t>& counts, std::int64_t total, const char* what) {
  const auto size = static_cast<std::size_t>(group.backend().size());
  const bool negative = std::any_of(counts.begin(), counts.end(), [](std::int64_t count) { return count < 0; });
  if (counts.size() != size || negative || std::accumulate(counts.begin(), counts.end(), std::int64_t{0}) != total) {
    reject(group, OpKind::kAllToAll, fmt::format("{} do not add up to the buffer of {} elements", what, total),
           fmt::format("pass {} counts of 0 or more whose sum is the buffer's count", size));
  }
}

}  // namespace

std::int64_t Traffic::total_bytes() const {
  std::int64_t total = 0;
  for (const Entry& entry : entries) total += entry.bytes;
  return total;
}

Communicator::Communicator(std::unique_ptr<Backend> backend, std::string name, std::vector<int> global_ranks,
                           milliseconds default_timeout) {
  if (global_ranks.empty()) {
    global_ranks.resize(static_cast<std::size_t>(backend->size()));
    std::iota(global_ranks.begin(), global_ranks.end(), 0);
  }
  LOCKSTEP_ASSERT(static_cast<int>(global_ranks.size()) == backend->size(), "one global rank per member");
  group_ = Group::make_handle(
      std::make_shared<Group>(std::move(backend), std::move(name), std::move(global_ranks), default_timeout));
}

int Communicator::rank() const { return group_->backend().rank(); }
int Communicator::size() const { return group_->backend().size(); }
int Communicator::global_rank(int member) const { return group_->global_ranks().at(static_cast<std::size_t>(member)); }
const std::string& Communicator::name() const { return group_->name(); }
const std::string& Communicator::backend_name() const { return group_->backend_name(); }
milliseconds Communicator::timeout() const { return group_->timeout(); }

Work Communicator::all_reduce(Buffer buffer, ReduceOp op, OpOptions options) {
  check_buffer(*group_, OpKind::kAllReduce, buffer);
  check_reduce(*group_, OpKind::kAllReduce, op);
  return group_->submit({.kind = OpKind::kAllReduce, .input = buffer, .output = buffer, .reduce = op}, options);
}

Work Communicator::reduce_scatter(ConstBuffer input, Buffer output, ReduceOp op, OpOptions options) {
  check_same_dtype(*group_, OpKind::kReduceScatter, input, output);
  check_reduce(*group_, OpKind::kReduceScatter, op);
  if (input.count != output.count * size()) {
    reject(*group_, OpKind::kReduceScatter,
           fmt::format("input of {} elements for outputs of {} on {} ranks", input.count, output.count, size()),
           fmt::format("pass {} input elements", output.count * size()));
  }
  return group_->submit({.kind = OpKind::kReduceScatter, .input = input, .output = output, .reduce = op}, options);
}

Work Communicator::all_gather(ConstBuffer input, Buffer output, OpOptions options) {
  check_same_dtype(*group_, OpKind::kAllGather, input, output);
  if (output.count != input.count * size()) {
    reject(*group_, OpKind::kAllGather,
           fmt::format("output of {} elements for inputs of {} on {} ranks", output.count, input.count, size()),
           fmt::format("pass {} output elements", input.count * size()));
  }
  return group_->submit({.kind = OpKind::kAllGather, .input = input, .output = output}, options);
}

Work Communicator::broadcast(Buffer buffer, int root, OpOptions options) {
  check_buffer(*group_, OpKind::kBroadcast, buffer);
  check_peer(*group_, OpKind::kBroadcast, root, true);
  return group_->submit({.kind = OpKind::kBroadcast, .input = buffer, .output = buffer, .peer = root}, options);
}

Work Communicator::all_to_all(ConstBuffer input, Buffer output, OpOptions options) {
  if (input.count % size() != 0) {
    reject(*group_, OpKind::kAllToAll, fmt::format("{} elements do not divide by {} ranks", input.count, size()),
           "pad the buffer, or pass counts per rank");
  }
  const std::vector<std::int64_t> counts(static_cast<std::size_t>(size()), input.count / size());
  return all_to_all(input, counts, output, counts, options);
}

Work Communicator::all_to_all(ConstBuffer input, const std::vector<std::int64_t>& send_counts, Buffer output,
                              const std::vector<std::int64_t>& receive_counts, OpOptions options) {
  check_same_dtype(*group_, OpKind::kAllToAll, input, output);
  check_counts(*group_, send_counts, input.count, "send counts");
  check_counts(*group_, receive_counts, output.count, "receive counts");
  return group_->submit({.kind = OpKind::kAllToAll,
                         .input = input,
                         .output = output,
                         .send_counts = send_counts,
                         .receive_counts = receive_counts},
                        options);
}

Work Communicator::send(ConstBuffer buffer, int destination, OpOptions options) {
  check_buffer(*group_, OpKind::kSend, buffer);
  check_peer(*group_, OpKind::kSend, destination, false);
  return group_->submit({.kind = OpKind::kSend, .input = buffer, .peer = destination}, options);
}

Work Communicator::recv(Buffer buffer, int source, OpOptions options) {
  check_buffer(*group_, OpKind::kRecv, buffer);
  check_peer(*group_, OpKind::kRecv, source, false);
  return group_->submit({.kind = OpKind::kRecv, .output = buffer, .peer = source}, options);
}

Work Communicator::barrier(OpOptions options) { return group_->submit({.kind = OpKind::kBarrier}, options); }

Communicator Communicator::subgroup(const std::vector<int>& ranks, const std::string& name) {
  std::vector<int> sorted = ranks;
  std::sort(sorted.begin(), sorted.end());
  const bool repeated = std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end();
  const bool outside = sorted.empty() || sorted.front() < 0 || sorted.back() >= size();
  const bool member = std::find(ranks.begin(), ranks.end(), rank()) != ranks.end();
  if (repeated || outside || !member) {
    throw bad_input(fmt::format("[comm] sub-group \"{}\" of group \"{}\": {}", name, this->name(),
                                repeated  ? "a rank is named twice"
                                : outside ? "a rank is not in the group, or none is named"
                                          : fmt::format("rank {} asks for it and is not a member", rank())),
                    fmt::format("name ranks from 0 to {}, each once, on these ranks only", size() - 1));
  }
  auto [backend, global_ranks] = group_->make_subgroup(ranks, name);
  Communicator made(std::move(backend), name, std::move(global_ranks), group_->timeout());
  group_->add_child(made.group_->weak_from_this());
  if (auto log = group_->span_log()) made.record_to(std::move(log));
  return made;
}

Traffic Communicator::traffic() const { return group_->traffic(); }
void Communicator::reset_traffic() { group_->reset_traffic(); }
std::vector<RunningOperation> Communicator::running() const {
  std::vector<RunningOperation> all;
  group_->add_running(all);
  std::ranges::sort(all, [](const auto& a, const auto& b) { return a.seconds > b.seconds; });
  return all;
}
void Communicator::record_to(std::shared_ptr<telemetry::SpanLog> log) { group_->record_to(std::move(log)); }
std::vector<FlightEntry> Communicator::flight_record() const { return group_->flight_record(); }

void Communicator::abort(const std::string& reason) { group_->abort(reason); }

}  // namespace lockstep::comm
