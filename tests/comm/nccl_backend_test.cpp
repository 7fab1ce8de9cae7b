// The nccl backend over a fake of NCCL and CUDA: what it calls, in which order, on which stream; how it times out,
// aborts and begins again. Needs neither library. That data arrives is the GPU machine's to show (nccl_test.cpp).
#include "lockstep/comm/plugins/nccl/nccl_backend.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/comm/group_settings.h"

namespace lockstep::comm {
namespace {

// A store for threads of one process, in plugin.h's form.
class MapStore {
 public:
  MapStore() {
    face_.self = this;
    face_.set = [](void* self, const char* key, const char* value, std::int64_t length) {
      auto& store = *static_cast<MapStore*>(self);
      const std::lock_guard lock(store.mutex_);
      store.values_[key] = std::string(value, static_cast<std::size_t>(length));
      return std::int32_t{0};
    };
    face_.get = [](void* self, const char* key, std::int64_t timeout_ms, char* value, std::int64_t capacity,
                   std::int64_t* length) {
      auto& store = *static_cast<MapStore*>(self);
      for (std::int64_t waited = 0;; ++waited) {
        {
          const std::lock_guard lock(store.mutex_);
          const auto found = store.values_.find(key);
          if (found != store.values_.end()) {
            *length = static_cast<std::int64_t>(found->second.size());
            std::copy_n(found->second.begin(), std::min(*length, capacity), value);
            return std::int32_t{0};
          }
        }
        if (waited >= timeout_ms) return static_cast<std::int32_t>(LOCKSTEP_COMM_TIMEOUT);
        std::this_thread::sleep_for(milliseconds(1));
      }
    };
    face_.add = [](void* self, const char* key, std::int64_t delta, std::int64_t* result) {
      auto& store = *static_cast<MapStore*>(self);
      const std::lock_guard lock(store.mutex_);
      *result = store.numbers_[key] += delta;
      return std::int32_t{0};
    };
    face_.remove = [](void*, const char*) { return std::int32_t{0}; };
  }
  const lockstep_comm_store* face() const { return &face_; }

 private:
  std::mutex mutex_;
  std::map<std::string, std::string> values_;
  std::map<std::string, std::int64_t> numbers_;
  lockstep_comm_store face_{};
};

// Records every call as text. Handles are small numbers. Events are reached at once unless `stuck`.
class FakeCalls final : public NcclCalls {
 public:
  std::vector<std::string> log() const {
    const std::lock_guard lock(mutex_);
    return log_;
  }
  // How often a call that begins with `text` was made.
  int count(const std::string& text) const {
    int found = 0;
    for (const std::string& line : log()) found += line.starts_with(text) ? 1 : 0;
    return found;
  }
  int position(const std::string& text) const {
    const auto lines = log();
    for (std::size_t i = 0; i < lines.size(); ++i) {
      if (lines[i].starts_with(text)) return static_cast<int>(i);
    }
    return -1;
  }

  std::atomic<bool> stuck{false};
  std::atomic<int> failure{0};              // what async_error says
  std::atomic<int> looks_until_settled{0};  // answers "in progress" that often

  int get_unique_id(NcclId* id) override {
    const std::string text = fmt::format("id {}", ++ids_);
    std::copy(text.begin(), text.end(), id->begin());
    return note("get_unique_id");
  }
  int init_rank(void** comm, int size, const NcclId& id, int rank, const NcclConfig& config) override {
    *comm = handle();
    const char* const algorithm = std::getenv("NCCL_ALGO");
    const char* const protocol = std::getenv("NCCL_PROTO");
    note(fmt::format("init {}/{} {} channels {}-{} {} {}", rank, size, id.data(), config.min_channels,
                     config.max_channels, algorithm == nullptr ? "-" : algorithm,
                     protocol == nullptr ? "-" : protocol));
    return kNcclInProgress;
  }
  int async_error(void*, int* state) override {
    *state = failure != 0 ? failure.load() : looks_until_settled-- > 0 ? kNcclInProgress : 0;
    return 0;
  }
  int abort(void*) override { return note("abort"); }
  int finalize(void*) override { return note("finalize"); }
  int destroy(void*) override { return note("destroy"); }
  int all_reduce(const void* in, void* out, std::size_t count, DType type, ReduceOp op, void*, void* stream) override {
    return note(fmt::format("all_reduce {} {} {}{} on {}", count, to_string(type), to_string(op),
                            in == out ? " in place" : "", number(stream)));
  }
  int reduce_scatter(const void*, void*, std::size_t count, DType type, ReduceOp, void*, void* stream) override {
    return note(fmt::format("reduce_scatter {} {} on {}", count, to_string(type), number(stream)));
  }
  int all_gather(const void*, void*, std::size_t count, DType type, void*, void* stream) override {
    return note(fmt::format("all_gather {} {} on {}", count, to_string(type), number(stream)));
  }
  int broadcast(const void*, void*, std::size_t count, DType type, int root, void*, void* stream) override {
    return note(fmt::format("broadcast {} {} from {} on {}", count, to_string(type), root, number(stream)));
  }
  int send(const void*, std::size_t count, DType type, int peer, void*, void*) override {
    return note(fmt::format("send {} {} to {}", count, to_string(type), peer));
  }
  int recv(void*, std::size_t count, DType type, int peer, void*, void*) override {
    return note(fmt::format("recv {} {} from {}", count, to_string(type), peer));
  }
  int group_start() override { return note("group_start"); }
  int group_end() override { return note("group_end"); }
  std::string nccl_error(int result) override { return fmt::format("nccl error {}", result); }

  int set_device(int) override { return 0; }
  int stream_create(void** stream) override { return made(stream, "stream_create"); }
  int stream_destroy(void*) override { return note("stream_destroy"); }
  int stream_wait(void* stream, void* event) override {
    return note(fmt::format("stream {} waits for {}", number(stream), number(event)));
  }
  int event_create(void** event) override { return made(event, "event_create"); }
  int event_destroy(void*) override { return note("event_destroy"); }
  int event_record(void* event, void* stream) override {
    return note(fmt::format("record {} on {}", number(event), number(stream)));
  }
  int event_query(void*) override { return stuck ? kCudaNotReady : 0; }
  int allocate(void** memory, std::size_t bytes) override {
    *memory = std::malloc(bytes);
    return note("allocate");
  }
  int release(void* memory) override {
    std::free(memory);
    return note("release");
  }
  int copy_in(void* out, const void* in, std::size_t bytes, void*) override {
    std::memcpy(out, in, bytes);
    return note(fmt::format("copy_in {}", bytes));
  }
  int copy_out(void* out, const void* in, std::size_t bytes, void*) override {
    std::memcpy(out, in, bytes);
    return note(fmt::format("copy_out {}", bytes));
  }
  std::string cuda_error(int result) override { return fmt::format("cuda error {}", result); }

  static std::uintptr_t number(void* handle) { return reinterpret_cast<std::uintptr_t>(handle); }

 private:
  int note(const std::string& line) {
    const std::lock_guard lock(mutex_);
    log_.push_back(line);
    return 0;
  }
  void* handle() { return reinterpret_cast<void*>(++handles_); }
  int made(void** out, const char* what) {
    *out = handle();
    return note(fmt::format("{} {}", what, number(*out)));
  }

  mutable std::mutex mutex_;
  std::vector<std::string> log_;
  std::atomic<std::uintptr_t> handles_{100};
  std::atomic<int> ids_{0};
};

constexpr std::uintptr_t kCallersStream = 7;

class NcclBackendTest : public ::testing::Test {
 protected:
  Communicator open(int rank = 0, int size = 1, std::vector<GroupSettings> groups = {},
                    milliseconds timeout = milliseconds{5000}) {
    const NcclWorld world{calls_, HostStore(store_.face(), "test"), 0, std::move(groups)};
    return Communicator(open_nccl_group(world, "nccl", "world", rank, size, Clock::now() + milliseconds(5000)), "world",
                        {}, timeout);
  }
  Buffer on_device(std::int64_t count, DType dtype = DType::kF32) {
    return {memory_.data(), count, dtype, 0, reinterpret_cast<void*>(kCallersStream)};
  }

  std::shared_ptr<FakeCalls> calls_ = std::make_shared<FakeCalls>();
  MapStore store_;
  std::vector<double> memory_ = std::vector<double>(64);
};

TEST_F(NcclBackendTest, orders_both_streams_around_the_operation) {
  Communicator comm = open();
  calls_->stuck = true;  // the device has not come there when the caller goes on
  Work work = comm.all_reduce(on_device(10));
  work.wait();
  calls_->stuck = false;
  const auto lines = calls_->log();
  const int marked = calls_->position("record"), waits = calls_->position("stream ");
  const int reduced = calls_->position("all_reduce 10 f32 sum in place");
  ASSERT_GE(marked, 0);
  EXPECT_TRUE(lines[static_cast<std::size_t>(marked)].ends_with("on 7"));  // the caller's stream is marked first
  EXPECT_LT(marked, waits);
  EXPECT_LT(waits, reduced);  // our stream waits for the mark, and only then is the operation queued
  EXPECT_EQ(calls_->count("stream 7 waits for"), 1);  // and the caller's for the end, without the host waiting for it
  EXPECT_GT(calls_->position("stream 7 waits for"), reduced);
}

TEST_F(NcclBackendTest, calls_every_operation_with_its_arguments) {
  Communicator comm = open();
  comm.reduce_scatter(on_device(6), on_device(6)).wait();
  comm.all_gather(on_device(5, DType::kBF16), on_device(5, DType::kBF16)).wait();
  comm.broadcast(on_device(4, DType::kI64), 0).wait();
  comm.all_reduce(on_device(3), ReduceOp::kMax).wait();
  comm.all_to_all(on_device(8), on_device(8)).wait();
  comm.barrier().wait();
  for (const char* line :
       {"reduce_scatter 6 f32", "all_gather 5 bf16", "broadcast 4 i64 from 0", "all_reduce 3 f32 max", "group_start",
        "send 8 f32 to 0", "recv 8 f32 from 0", "group_end", "all_reduce 1 f32 sum"}) {
    EXPECT_EQ(calls_->count(line), 1) << line;
  }
}

TEST_F(NcclBackendTest, host_memory_goes_through_the_device) {
  Communicator comm = open();
  std::vector<double> values = {1, 2, 3};
  comm.all_reduce({values.data(), 3, DType::kF64}).wait();
  EXPECT_LT(calls_->position("copy_in 24"), calls_->position("all_reduce 3 f64"));
  EXPECT_LT(calls_->position("all_reduce 3 f64"), calls_->position("copy_out 24"));
  EXPECT_EQ(values, (std::vector<double>{1, 2, 3}));
}

TEST_F(NcclBackendTest, ranks_meet_under_one_id_and_subgroups_under_others) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      Communicator comm = open(rank, 3);
      if (rank > 0) comm.subgroup({1, 2}, "tp");
    });
  }
  for (auto& thread : threads) thread.join();
  for (const char* line : {"init 0/3 id 1", "init 1/3 id 1", "init 2/3 id 1", "init 0/2 id 2", "init 1/2 id 2"}) {
    EXPECT_EQ(calls_->count(line), 1) << line;
  }
}

TEST_F(NcclBackendTest, each_group_gets_its_settings_and_the_environment_comes_back) {
  setenv("NCCL_ALGO", "Tree", 1);
  Communicator comm = open(0, 1, {{"*", "", "LL128", 0, 0}, {"dp", "Ring", "Simple", 4, 8}});
  comm.subgroup({0}, "dp");
  EXPECT_EQ(calls_->count("init 0/1 id 1 channels 0-0 Tree LL128"), 1);
  EXPECT_EQ(calls_->count("init 0/1 id 2 channels 4-8 Ring Simple"), 1);
  EXPECT_STREQ(std::getenv("NCCL_ALGO"), "Tree");
  EXPECT_EQ(std::getenv("NCCL_PROTO"), nullptr);
  unsetenv("NCCL_ALGO");
}

TEST_F(NcclBackendTest, a_plan_sets_groups_where_the_environment_does_not) {
  const std::string planned = "dp:algorithm=Ring,protocol=Simple,channels=8;*:protocol=LL128";
  Communicator comm = open(0, 1, choose_group_settings(nullptr, planned));
  comm.subgroup({0}, "dp");
  comm.subgroup({0}, "tp");
  EXPECT_EQ(calls_->count("init 0/1 id 2 channels 8-8 Ring Simple"), 1);
  EXPECT_EQ(choose_group_settings("", planned).size(), 2u);
  const auto from_environment = choose_group_settings("tp:channels=2", planned);
  ASSERT_EQ(from_environment.size(), 1u);
  EXPECT_EQ(from_environment[0].group, "tp");
}

TEST(GroupSettingsText, is_read_and_what_is_wrong_is_named) {
  const auto groups = parse_group_settings("dp:algorithm=Ring,protocol=Simple,channels=8;*:min_channels=2");
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[0].group, "dp");
  EXPECT_EQ(groups[0].algorithm, "Ring");
  EXPECT_EQ(groups[0].protocol, "Simple");
  EXPECT_EQ(groups[0].min_channels, 8);
  EXPECT_EQ(groups[0].max_channels, 8);
  EXPECT_EQ(groups[1].group, "*");
  EXPECT_EQ(groups[1].min_channels, 2);
  EXPECT_TRUE(parse_group_settings("").empty());
  for (const char* wrong : {"dp", ":channels=8", "dp:channels=0", "dp:channels=x", "dp:color=red",
                            "dp:algorithm=", "dp:min_channels=9,max_channels=3"}) {
    EXPECT_THROW(parse_group_settings(wrong), UserError) << wrong;
  }
}

TEST_F(NcclBackendTest, waits_until_a_call_in_progress_has_settled) {
  calls_->looks_until_settled = 20;
  Communicator comm = open();
  EXPECT_LE(calls_->looks_until_settled, 0);
}

Fault failure_of(Communicator& comm, const Buffer& buffer) {
  try {
    comm.all_reduce(buffer).wait();  // may only have queued it
    comm.barrier().wait();           // the group has failed by now
  } catch (const Fault& fault) {
    return fault;
  }
  return Fault(FaultKind::kAborted, -2, "nothing was thrown");
}

TEST_F(NcclBackendTest, the_watchdog_aborts_what_does_not_end) {
  Communicator comm = open(0, 1, {}, milliseconds{100});
  calls_->stuck = true;
  const Fault fault = failure_of(comm, on_device(10));
  EXPECT_EQ(fault.kind(), FaultKind::kTimeout) << fault.what();
  EXPECT_EQ(calls_->count("abort"), 1);
  EXPECT_THROW(comm.all_reduce(on_device(1)).wait(), Fault);  // for good
}

TEST_F(NcclBackendTest, an_asynchronous_error_ends_the_group_as_a_lost_peer) {
  Communicator comm = open();
  calls_->stuck = true;
  calls_->failure = NcclCalls::kNcclRemoteError;
  const Fault fault = failure_of(comm, on_device(10));
  EXPECT_EQ(fault.kind(), FaultKind::kPeerLost) << fault.what();
  EXPECT_EQ(calls_->count("abort"), 1);
}

TEST_F(NcclBackendTest, an_aborted_world_is_followed_by_a_new_one) {
  Communicator comm = open();
  calls_->stuck = true;
  Work work = comm.all_reduce(on_device(10));
  comm.abort("for a test");
  EXPECT_THROW(comm.barrier().wait(), Fault);
  comm = {};
  EXPECT_EQ(calls_->count("abort"), 1);
  calls_->stuck = false;
  comm = open();
  comm.all_reduce(on_device(11)).wait();
  EXPECT_EQ(calls_->count("all_reduce 11"), 1);
  comm.barrier().wait();  // wait() of an operation on the device only orders streams; what is unfinished is aborted
  comm = {};
  EXPECT_EQ(calls_->count("finalize"), 1);
  EXPECT_EQ(calls_->count("destroy"), 1);
}

TEST_F(NcclBackendTest, leaves_no_event_and_no_stream_behind) {
  {
    Communicator comm = open();
    for (int i = 0; i < 5; ++i) comm.all_reduce(on_device(10)).wait();
    comm.barrier().wait();
  }
  EXPECT_EQ(calls_->count("event_create"), calls_->count("event_destroy"));
  EXPECT_EQ(calls_->count("stream_create"), calls_->count("stream_destroy"));
  EXPECT_EQ(calls_->count("allocate"), calls_->count("release"));
}

TEST_F(NcclBackendTest, refuses_memory_of_another_gpu) {
  Communicator comm = open();
  Buffer other = on_device(1);
  other.device = 1;
  EXPECT_THROW(comm.all_reduce(other).wait(), Fault);
}

}  // namespace
}  // namespace lockstep::comm
