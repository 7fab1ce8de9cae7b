// The local backend on device memory, with a device of threads: every stream is a thread that works off its queue after
// a pause of random length. So an operation that forgets to order two streams reads or writes too early here, on any
// machine.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <numeric>
#include <random>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/comm/local.h"
#include "lockstep/comm/reduce.h"

namespace lockstep::comm {
namespace {

class Stream {
 public:
  explicit Stream(unsigned seed) : random_(seed), thread_([this] { work(); }) {}
  ~Stream() {
    queue(nullptr);
    thread_.join();
  }
  void queue(std::function<void()> task) {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
    changed_.notify_one();
  }
  // The host waits until everything queued so far is done.
  void synchronize() {
    std::promise<void> reached;
    queue([&] { reached.set_value(); });
    reached.get_future().wait();
  }

 private:
  void work() {
    while (true) {
      std::function<void()> task;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return !tasks_.empty(); });
        task = std::move(tasks_.front());
        tasks_.pop_front();
      }
      if (!task) return;
      std::this_thread::sleep_for(std::chrono::microseconds(random_() % 300));
      task();
    }
  }

  std::minstd_rand random_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  std::thread thread_;
};

Stream& stream_of(void* stream) { return *static_cast<Stream*>(stream); }

class ThreadDevice final : public DeviceQueues {
 public:
  int device() const override { return 0; }
  Mark mark(void* stream) override {
    auto reached = std::make_shared<std::promise<void>>();
    auto mark = std::make_shared<std::shared_future<void>>(reached->get_future().share());
    stream_of(stream).queue([reached] { reached->set_value(); });
    return mark;
  }
  void wait(void* stream, const Mark& mark) override {
    const auto reached = std::static_pointer_cast<std::shared_future<void>>(mark);
    if (lazy) return;
    stream_of(stream).queue([reached] { reached->wait(); });
  }
  void copy(void* stream, void* out, const void* in, std::int64_t bytes) override {
    stream_of(stream).queue([=] { std::memmove(out, in, static_cast<std::size_t>(bytes)); });
  }
  void reduce(void* stream, const std::vector<void*>& outputs, const std::vector<const void*>& inputs,
              std::int64_t count, DType dtype, ReduceOp op) override {
    if (refuses) throw std::runtime_error("out of order");
    stream_of(stream).queue([=] {
      std::vector<std::byte> result(static_cast<std::size_t>(count * size_of(dtype)));
      reduce_in_order(result.data(), inputs, count, dtype, op);
      for (void* output : outputs) std::memcpy(output, result.data(), result.size());
    });
  }

  bool lazy = false;     // forgets to wait: the mutant
  bool refuses = false;  // fails
};

constexpr int kRanks = 4;
constexpr std::int64_t kCount = 1003;

// Rank r's view of the device: a stream, and memory that only streams touch.
struct Rank {
  Communicator comm;
  Stream& stream;
  std::vector<double>& memory;  // kCount elements that outlive every stream, also those of a device that runs ahead
  int rank;

  Buffer buffer(std::vector<double>& values) const {
    return {values.data(), static_cast<std::int64_t>(values.size()), DType::kF64, 0, &stream};
  }
  void fill(std::vector<double>& values, double first) const {
    stream.queue([&values, first] { std::iota(values.begin(), values.end(), first); });
  }
  double sum(const std::vector<double>& values) const {
    double total = 0;
    stream.queue([&] { total = std::accumulate(values.begin(), values.end(), 0.0); });
    stream.synchronize();
    return total;
  }
};

// Returns whether every rank's body found what it expected.
bool run(const std::shared_ptr<ThreadDevice>& device, const std::function<bool(Rank&)>& body) {
  LocalWorld world(kRanks, milliseconds{20'000}, device);
  std::array<std::vector<double>, kRanks> memory;
  memory.fill(std::vector<double>(kCount));
  std::vector<std::unique_ptr<Stream>> streams;
  for (int rank = 0; rank < kRanks; ++rank) streams.push_back(std::make_unique<Stream>(rank + 1));
  std::vector<std::thread> threads;
  std::array<bool, kRanks> right{};
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      Rank own{world.communicator(rank), *streams[static_cast<std::size_t>(rank)],
               memory[static_cast<std::size_t>(rank)], rank};
      right[static_cast<std::size_t>(rank)] = body(own);
      own.stream.synchronize();
      own.comm.barrier().wait();
    });
  }
  for (auto& thread : threads) thread.join();
  return std::all_of(right.begin(), right.end(), [](bool ok) { return ok; });
}

// Sum of first, first + 1, ... over kCount elements.
double sum_from(double first) { return kCount * first + kCount * (kCount - 1) / 2.0; }

// Writes, reduces, overwrites at once, reduces again: the second write must not reach a peer's first reduction.
bool reduces_twice(Rank& own) {
  std::vector<double>& values = own.memory;
  bool right = true;
  for (int round = 0; round < 20; ++round) {
    own.fill(values, 100 * round + own.rank);
    own.comm.all_reduce(own.buffer(values)).wait();
    double first_sum = 0, want = 0;
    own.stream.queue([&] { first_sum = std::accumulate(values.begin(), values.end(), 0.0); });
    own.fill(values, -round);
    own.comm.all_reduce(own.buffer(values)).wait();
    for (int rank = 0; rank < kRanks; ++rank) want += sum_from(100 * round + rank);
    const double second_sum = own.sum(values);
    right = right && first_sum == want && second_sum == kRanks * sum_from(-round);
  }
  return right;
}

TEST(LocalDevice, all_reduce_is_ordered_with_everybodys_stream) {
  EXPECT_TRUE(run(std::make_shared<ThreadDevice>(), reduces_twice));
}

TEST(LocalDevice, a_device_that_does_not_wait_is_found_out) {
  auto lazy = std::make_shared<ThreadDevice>();
  lazy->lazy = true;
  EXPECT_FALSE(run(lazy, reduces_twice));
}

TEST(LocalDevice, gather_scatter_and_exchange_see_what_was_queued_before) {
  EXPECT_TRUE(run(std::make_shared<ThreadDevice>(), [](Rank& own) {
    bool right = true;
    std::vector<double> values(kCount), all(kCount * kRanks), part(kCount), swapped(kCount * kRanks);
    for (int round = 0; round < 10; ++round) {
      own.fill(values, round + 10 * own.rank);
      own.comm.all_gather(own.buffer(values), own.buffer(all)).wait();
      own.comm.reduce_scatter(own.buffer(all), own.buffer(part)).wait();
      own.comm.all_to_all(own.buffer(all), own.buffer(swapped)).wait();
      own.comm.broadcast(own.buffer(values), 2).wait();
      const double reduced = own.sum(part), exchanged = own.sum(swapped), sent = own.sum(values);
      right = right && reduced == kRanks * sum_from(round + 10 * own.rank) &&
              exchanged == kRanks * sum_from(round + 10 * own.rank) && sent == sum_from(round + 20);
    }
    return right;
  }));
}

TEST(LocalDevice, messages_in_a_ring_are_ordered) {
  EXPECT_TRUE(run(std::make_shared<ThreadDevice>(), [](Rank& own) {
    bool right = true;
    const int next = (own.rank + 1) % kRanks, previous = (own.rank + kRanks - 1) % kRanks;
    std::vector<double> out(kCount), in(kCount);
    for (int round = 0; round < 20; ++round) {
      own.fill(out, round + own.rank);
      Work sending = own.comm.send(own.buffer(out), next), receiving = own.comm.recv(own.buffer(in), previous);
      receiving.wait();
      sending.wait();
      own.fill(out, -1);  // reused at once
      right = right && own.sum(in) == sum_from(round + previous);
    }
    return right;
  }));
}

TEST(LocalDevice, host_and_device_memory_go_through_one_world) {
  EXPECT_TRUE(run(std::make_shared<ThreadDevice>(), [](Rank& own) {
    double number = own.rank;
    own.comm.all_reduce({&number, 1, DType::kF64}).wait();
    std::vector<double> values(kCount);
    own.fill(values, 1);
    own.comm.subgroup({0, 1, 2, 3}, "again").all_reduce(own.buffer(values)).wait();
    return number == 6 && own.sum(values) == kRanks * sum_from(1);
  }));
}

TEST(LocalDevice, a_failure_of_the_device_is_the_operations) {
  auto device = std::make_shared<ThreadDevice>();
  device->refuses = true;
  EXPECT_TRUE(run(device, [](Rank& own) {
    Communicator group = own.comm.subgroup({0, 1, 2, 3}, "fails");
    std::vector<double> values(kCount);
    try {
      group.all_reduce(own.buffer(values)).wait();
    } catch (const Fault& fault) {
      return std::string(fault.what()).find("out of order") != std::string::npos;
    }
    return false;
  }));
}

TEST(LocalDevice, a_world_without_a_device_says_so) {
  LocalWorld world(1);
  Communicator comm = world.communicator(0);
  double value = 0;
  EXPECT_THROW(comm.all_reduce({&value, 1, DType::kF64, 0, nullptr}).wait(), Fault);
}

}  // namespace
}  // namespace lockstep::comm
