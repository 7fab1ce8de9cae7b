#include "lockstep/comm/local.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <optional>

#include <fmt/format.h>

#include "lockstep/comm/backend.h"
#include "lockstep/comm/local_device.h"
#include "lockstep/comm/reduce.h"

namespace lockstep::comm {

// The memory that the ranks of one group share. A collective has three phases:
//   arrive  every rank shows its operation and waits until all have; only here can it fail
//   work    every rank reads the others' buffers and writes what is its part; nothing blocks
//   depart  every rank waits until all have worked, since its own buffers may still be read
// Failing only while arriving is what makes it safe to hand back the buffers at once.
//
// On device memory the three phases only order queues: `work` makes this rank's stream wait for the marks that
// all ranks made when the operation was called, and queues its part after them; when all have departed, every rank's
// stream waits for the marks after all parts. No thread waits for the device.
class LocalExchange {
 public:
  LocalExchange(int size, std::shared_ptr<DeviceQueues> device)
      : device_(std::move(device)),
        slots_(static_cast<std::size_t>(size)),
        parts_(static_cast<std::size_t>(size)),
        gone_(static_cast<std::size_t>(size)) {}

  int size() const { return static_cast<int>(slots_.size()); }
  DeviceQueues* device() const { return device_.get(); }
  void collective(int rank, const Operation& operation, Clock::time_point deadline);
  void send(int rank, const Operation& operation, Clock::time_point deadline);
  void receive(int rank, const Operation& operation, Clock::time_point deadline);
  void leave(int rank);
  std::shared_ptr<LocalExchange> child(const std::string& key, int size);

 private:
  enum class Phase { kArrive, kWork };
  struct Message {
    const Operation* operation = nullptr;
    bool taken = false;
    bool done = false;
    DeviceQueues::Mark copied;
  };
  // What a rank leaves when it has worked, and where it expects what all others left.
  struct Part {
    DeviceQueues::Mark done;
    std::vector<DeviceQueues::Mark>* everyones = nullptr;
  };

  void arrive(int rank, const Operation& operation, Clock::time_point deadline, std::unique_lock<std::mutex>& lock);
  int missing_rank(bool only_gone) const;
  std::optional<BackendError> mismatch() const;
  void work(int rank, const Operation& operation) const;
  void all_reduce(int rank, const Operation& operation) const;

  void depart(int rank, const Operation& operation, Part part, std::unique_lock<std::mutex>& lock);

  const std::shared_ptr<DeviceQueues> device_;  // may be null
  std::mutex mutex_;
  std::condition_variable changed_;
  Phase phase_ = Phase::kArrive;
  std::vector<const Operation*> slots_;
  std::vector<Part> parts_;
  std::vector<bool> gone_;
  int arrived_ = 0;
  int worked_ = 0;
  std::optional<BackendError> failure_;                           // of the collectives; once set, for good
  std::map<std::pair<int, int>, std::deque<Message*>> channels_;  // (source, destination)
  std::map<std::string, std::weak_ptr<LocalExchange>> children_;
};

namespace {

BackendError late(int rank, Clock::time_point started) {
  const std::chrono::duration<double> waited = Clock::now() - started;
  return {FaultKind::kTimeout, rank, fmt::format("did not join within {:.1f} s", waited.count())};
}

// memmove, because an input may be the output itself.
void copy_bytes(void* out, const void* in, std::int64_t bytes) {
  if (bytes > 0 && out != in) std::memmove(out, in, static_cast<std::size_t>(bytes));
}

}  // namespace

int LocalExchange::missing_rank(bool only_gone) const {
  for (int rank = 0; rank < size(); ++rank) {
    if (slots_[static_cast<std::size_t>(rank)] == nullptr && (!only_gone || gone_[static_cast<std::size_t>(rank)])) {
      return rank;
    }
  }
  return -1;
}

std::optional<BackendError> LocalExchange::mismatch() const {
  const Operation& first = *slots_[0];
  for (int rank = 1; rank < size(); ++rank) {
    const Operation& other = *slots_[static_cast<std::size_t>(rank)];
    const bool same_size = first.kind == OpKind::kAllToAll || first.output.count == other.output.count;
    if (other.kind != first.kind || !same_size || other.output.dtype != first.output.dtype ||
        other.reduce != first.reduce || other.peer != first.peer || other.device != first.device) {
      return BackendError(FaultKind::kAborted, rank,
                          fmt::format("called {} of {} {} where the first rank called {} of {} {}",
                                      to_string(other.kind), other.output.count, to_string(other.output.dtype),
                                      to_string(first.kind), first.output.count, to_string(first.output.dtype)));
    }
    for (int peer = 0; first.kind == OpKind::kAllToAll && peer < size(); ++peer) {
      const auto to = static_cast<std::size_t>(peer);
      if (other.send_counts[to] != slots_[to]->receive_counts[static_cast<std::size_t>(rank)]) {
        return BackendError(FaultKind::kAborted, rank, "sends another count than its peer expects");
      }
    }
  }
  return std::nullopt;
}

void LocalExchange::arrive(int rank, const Operation& operation, Clock::time_point deadline,
                           std::unique_lock<std::mutex>& lock) {
  const auto started = Clock::now();
  const auto self = static_cast<std::size_t>(rank);
  const auto wait = [&](auto ready) {
    while (!ready()) {
      if (failure_) throw BackendError(*failure_);
      if (gone_[self]) throw BackendError(FaultKind::kAborted, -1, "aborted here");
      if (const int lost = missing_rank(true); lost >= 0 && phase_ == Phase::kArrive) {
        failure_ = BackendError(FaultKind::kPeerLost, lost, "left the group");
      } else if (Clock::now() >= deadline) {
        failure_ = late(missing_rank(false), started);
      } else {
        changed_.wait_until(lock, deadline);
        continue;
      }
      changed_.notify_all();
    }
  };
  wait([&] { return phase_ == Phase::kArrive; });  // the ranks of the operation before have not all left
  slots_[self] = &operation;
  ++arrived_;
  if (arrived_ == size()) {
    failure_ = mismatch();
    if (!failure_) phase_ = Phase::kWork;
    changed_.notify_all();
  }
  try {
    wait([&] { return phase_ == Phase::kWork; });
  } catch (const BackendError&) {
    slots_[self] = nullptr;
    --arrived_;
    throw;
  }
}

void LocalExchange::collective(int rank, const Operation& operation, Clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  arrive(rank, operation, deadline, lock);
  lock.unlock();
  std::vector<DeviceQueues::Mark> everyones;
  Part part{nullptr, &everyones};
  std::exception_ptr failed;  // a device may refuse; the others must not wait for this rank forever
  try {
    if (operation.on_device()) {
      part.done = queue_collective(*device_, rank, slots_);
    } else {
      work(rank, operation);
    }
  } catch (...) {
    failed = std::current_exception();
  }
  lock.lock();
  depart(rank, operation, part, lock);
  lock.unlock();
  if (failed) std::rethrow_exception(failed);
  for (const auto& mark : everyones) {
    if (mark) device_->wait(operation.stream, mark);
  }
}

void LocalExchange::depart(int rank, const Operation& operation, Part part, std::unique_lock<std::mutex>& lock) {
  parts_[static_cast<std::size_t>(rank)] = part;
  if (++worked_ == size()) {
    for (const Part& reader : parts_) {
      for (const Part& other : parts_) reader.everyones->push_back(other.done);
    }
    std::fill(parts_.begin(), parts_.end(), Part{});
    std::fill(slots_.begin(), slots_.end(), nullptr);
    arrived_ = worked_ = 0;
    phase_ = Phase::kArrive;
    changed_.notify_all();
    return;
  }
  // Bounded: the others only have memory left to move.
  changed_.wait(lock, [&] { return slots_[static_cast<std::size_t>(rank)] != &operation; });
}

void LocalExchange::all_reduce(int rank, const Operation& operation) const {
  // Each rank reduces one slice, block by block, straight from and into all ranks' buffers.
  constexpr std::int64_t kBlockBytes = 32 * 1024;
  const std::int64_t element = size_of(operation.output.dtype);
  const std::int64_t block_count = kBlockBytes / element;
  alignas(64) std::byte block[kBlockBytes];
  const Slice slice = slice_of(operation.output.count, size(), rank);
  std::vector<const void*> inputs(slots_.size());
  for (std::int64_t done = 0; done < slice.count; done += block_count) {
    const std::int64_t offset = (slice.begin + done) * element;
    const std::int64_t count = std::min(block_count, slice.count - done);
    for (std::size_t i = 0; i < slots_.size(); ++i) inputs[i] = at(slots_[i]->input.data, offset);
    reduce_in_order(block, inputs, count, operation.output.dtype, operation.reduce);
    for (const Operation* other : slots_) copy_bytes(at(other->output.data, offset), block, count * element);
  }
}

void LocalExchange::work(int rank, const Operation& operation) const {
  switch (operation.kind) {
    case OpKind::kAllReduce:
      return all_reduce(rank, operation);
    case OpKind::kReduceScatter: {
      std::vector<const void*> inputs;
      for (const Operation* other : slots_) inputs.push_back(at(other->input.data, rank * operation.output.bytes()));
      return reduce_in_order(operation.output.data, inputs, operation.output.count, operation.output.dtype,
                             operation.reduce);
    }
    case OpKind::kAllGather:
      for (std::size_t source = 0; source < slots_.size(); ++source) {
        const std::int64_t bytes = operation.input.bytes();
        copy_bytes(at(operation.output.data, static_cast<std::int64_t>(source) * bytes), slots_[source]->input.data,
                   bytes);
      }
      return;
    case OpKind::kBroadcast:
      return copy_bytes(operation.output.data, slots_[static_cast<std::size_t>(operation.peer)]->input.data,
                        operation.output.bytes());
    case OpKind::kAllToAll:
      return move_all_to_all(rank, slots_, copy_bytes);
    case OpKind::kBarrier:
    case OpKind::kSend:
    case OpKind::kRecv:
      return;
  }
}

void LocalExchange::send(int rank, const Operation& operation, Clock::time_point deadline) {
  const auto started = Clock::now();
  std::unique_lock lock(mutex_);
  auto& channel = channels_[{rank, operation.peer}];
  Message message{&operation};
  channel.push_back(&message);
  changed_.notify_all();
  while (!message.done) {
    if (!message.taken) {
      std::optional<BackendError> error;
      if (gone_[static_cast<std::size_t>(rank)]) error.emplace(FaultKind::kAborted, -1, "aborted here");
      if (gone_[static_cast<std::size_t>(operation.peer)]) {
        error.emplace(FaultKind::kPeerLost, operation.peer, "left the group");
      }
      if (!error && Clock::now() >= deadline) error = late(operation.peer, started);
      if (error) {
        channel.erase(std::find(channel.begin(), channel.end(), &message));
        throw BackendError(*error);
      }
      changed_.wait_until(lock, deadline);
    } else {
      changed_.wait(lock);  // bounded: the receiver is copying
    }
  }
  lock.unlock();
  if (message.copied) device_->wait(operation.stream, message.copied);
}

void LocalExchange::receive(int rank, const Operation& operation, Clock::time_point deadline) {
  const auto started = Clock::now();
  std::unique_lock lock(mutex_);
  auto& channel = channels_[{operation.peer, rank}];
  while (channel.empty()) {
    if (gone_[static_cast<std::size_t>(rank)]) throw BackendError(FaultKind::kAborted, -1, "aborted here");
    if (gone_[static_cast<std::size_t>(operation.peer)]) {
      throw BackendError(FaultKind::kPeerLost, operation.peer, "left the group");
    }
    if (Clock::now() >= deadline) throw late(operation.peer, started);
    changed_.wait_until(lock, deadline);
  }
  Message& message = *channel.front();
  channel.pop_front();
  message.taken = true;
  const Operation& sent = *message.operation;
  const bool fits = sent.input.count == operation.output.count && sent.input.dtype == operation.output.dtype &&
                    sent.device == operation.device;
  const std::string what =
      fmt::format("sent {} {} where {} {} were expected", sent.input.count, to_string(sent.input.dtype),
                  operation.output.count, to_string(operation.output.dtype));
  lock.unlock();
  DeviceQueues::Mark copied;
  std::exception_ptr failed;
  try {
    if (fits && operation.on_device()) copied = queue_copy(*device_, sent, operation);
    if (fits && !operation.on_device()) {
      copy_bytes(operation.output.data, sent.input.data, operation.output.bytes());
    }
  } catch (...) {
    failed = std::current_exception();
  }
  lock.lock();
  message.copied = std::move(copied);
  message.done = true;
  changed_.notify_all();
  if (failed) std::rethrow_exception(failed);
  if (!fits) throw BackendError(FaultKind::kAborted, operation.peer, what);
}

void LocalExchange::leave(int rank) {
  const std::lock_guard lock(mutex_);
  gone_[static_cast<std::size_t>(rank)] = true;
  changed_.notify_all();
}

std::shared_ptr<LocalExchange> LocalExchange::child(const std::string& key, int size) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<LocalExchange> exchange = children_[key].lock();
  if (!exchange) children_[key] = exchange = std::make_shared<LocalExchange>(size, device_);
  return exchange;
}

namespace {

class LocalBackend final : public Backend {
 public:
  LocalBackend(std::shared_ptr<LocalExchange> exchange, int rank) : exchange_(std::move(exchange)), rank_(rank) {}
  ~LocalBackend() override { exchange_->leave(rank_); }

  const char* name() const override { return "local"; }
  int rank() const override { return rank_; }
  int size() const override { return exchange_->size(); }

  void* prepare(const Operation& operation) override {
    if (!operation.on_device()) return nullptr;
    DeviceQueues* const queues = exchange_->device();
    if (queues == nullptr || queues->device() != operation.device) {
      throw BackendError(FaultKind::kAborted, -1, "this world of threads was created without that device");
    }
    auto mark = std::make_unique<DeviceQueues::Mark>(queues->mark(operation.stream));
    const std::lock_guard lock(mutex_);
    void* const ticket = mark.get();
    marks_[ticket] = std::move(mark);
    return ticket;
  }

  void run(const Operation& operation, Clock::time_point deadline) override {
    const auto mark = take_mark(operation.ticket);  // the peers read it until this rank has departed
    if (operation.kind == OpKind::kSend) return exchange_->send(rank_, operation, deadline);
    if (operation.kind == OpKind::kRecv) return exchange_->receive(rank_, operation, deadline);
    exchange_->collective(rank_, operation, deadline);
  }

  std::unique_ptr<Backend> subgroup(const std::vector<int>& ranks, const std::string& name,
                                    Clock::time_point deadline) override {
    std::string key = name;
    for (const int rank : ranks) key += fmt::format(":{}", rank);
    key += fmt::format("#{}", ++made_[key]);  // the same key for the n-th such group on every member
    const auto self = std::find(ranks.begin(), ranks.end(), rank_) - ranks.begin();
    auto made =
        std::make_unique<LocalBackend>(exchange_->child(key, static_cast<int>(ranks.size())), static_cast<int>(self));
    // Meet there: a member that leaves before the others have come would take the shared memory with it.
    made->run({.kind = OpKind::kBarrier}, deadline);
    return made;
  }

  void abort() noexcept override { exchange_->leave(rank_); }

 private:
  std::unique_ptr<DeviceQueues::Mark> take_mark(void* ticket) {
    const std::lock_guard lock(mutex_);
    const auto found = marks_.find(ticket);
    if (found == marks_.end()) return nullptr;
    auto mark = std::move(found->second);
    marks_.erase(found);
    return mark;
  }

  std::shared_ptr<LocalExchange> exchange_;
  int rank_;
  std::map<std::string, int> made_;
  std::mutex mutex_;
  std::map<void*, std::unique_ptr<DeviceQueues::Mark>> marks_;  // of operations that have not begun
};

}  // namespace

LocalWorld::LocalWorld(int size, milliseconds timeout, std::shared_ptr<DeviceQueues> device)
    : size_(size), timeout_(timeout), exchange_(std::make_shared<LocalExchange>(size, std::move(device))) {
  if (size < 1) throw bad_input(fmt::format("[comm] a local world of {} ranks", size), "use 1 or more");
}

LocalWorld::~LocalWorld() = default;

Communicator LocalWorld::communicator(int rank, const std::string& name) {
  if (rank < 0 || rank >= size_) {
    throw bad_input(fmt::format("[comm] rank {} in a local world of {}", rank, size_),
                    fmt::format("use 0 to {}", size_ - 1));
  }
  return Communicator(std::make_unique<LocalBackend>(exchange_, rank), name, {}, timeout_);
}

}  // namespace lockstep::comm
