// The nccl backend on one GPU: NCCL refuses two ranks on one device, so the world has one rank. What this shows: the
// plugin opens, every call is made with the right arguments, streams are ordered, groups end. What it cannot show: that
// ranks exchange data, lost peers, timeouts.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/communicator.h"

namespace lockstep::comm {
namespace {

class DeviceArray {
 public:
  DeviceArray(std::int64_t count, DType dtype) : count_(count), dtype_(dtype) {
    EXPECT_EQ(cudaMalloc(&data_, static_cast<std::size_t>(std::max<std::int64_t>(1, buffer().bytes()))), cudaSuccess);
  }
  ~DeviceArray() { cudaFree(data_); }
  void write(const std::vector<std::uint8_t>& bytes) {
    EXPECT_EQ(cudaMemcpy(data_, bytes.data(), bytes.size(), cudaMemcpyHostToDevice), cudaSuccess);
  }
  std::vector<std::uint8_t> read() {
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(buffer().bytes()));
    EXPECT_EQ(cudaMemcpy(bytes.data(), data_, bytes.size(), cudaMemcpyDeviceToHost), cudaSuccess);  // in stream order
    return bytes;
  }
  Buffer buffer(cudaStream_t stream = nullptr) { return {data_, count_, dtype_, /*device=*/0, stream}; }

 private:
  void* data_ = nullptr;
  std::int64_t count_;
  DType dtype_;
};

class Nccl : public ::testing::Test {
 protected:
  void SetUp() override {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) GTEST_SKIP() << "no GPU on this machine";
    comm_ = open_communicator({.backend = "nccl", .plugin_folders = {LOCKSTEP_BUILD_DIR}});
  }
  // Calls visit(input, output) for each size and dtype with a filled input; both must be equal afterwards.
  template <typename Visit>
  void expect_copies(Visit visit) {
    for (const std::int64_t count : {0, 1, 1023, 1 << 20}) {
      for (const DType dtype : kAllDTypes) {
        DeviceArray input(count, dtype), output(count, dtype);
        std::vector<std::uint8_t> bytes(static_cast<std::size_t>(input.buffer().bytes()));
        for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(i * 31 % 120);
        input.write(bytes);
        output.write(std::vector<std::uint8_t>(bytes.size(), 0xff));
        visit(input.buffer(), output.buffer());
        ASSERT_EQ(output.read(), bytes) << count << " " << to_string(dtype);
      }
    }
  }
  // What one rank exchanges with itself is as it was.
  template <typename Visit>
  void expect_kept(Visit visit) {
    DeviceArray data(1 << 20, DType::kF32);
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(data.buffer().bytes()));
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(i * 31 % 120);
    data.write(bytes);
    visit(data.buffer());
    EXPECT_EQ(data.read(), bytes);
  }
  Communicator comm_;
};

TEST_F(Nccl, all_reduce_of_one_rank_changes_nothing) {
  for (const ReduceOp op : kAllReduceOps) {
    expect_copies([&](Buffer in, Buffer out) {
      if (in.count > 0) cudaMemcpy(out.data, in.data, static_cast<std::size_t>(in.bytes()), cudaMemcpyDeviceToDevice);
      comm_.all_reduce(out, op).wait();
    });
  }
}
TEST_F(Nccl, reduce_scatter_copies) {
  expect_copies([&](Buffer in, Buffer out) { comm_.reduce_scatter(in, out).wait(); });
}
TEST_F(Nccl, all_gather_copies) {
  expect_copies([&](Buffer in, Buffer out) { comm_.all_gather(in, out).wait(); });
}
TEST_F(Nccl, all_to_all_copies) {
  expect_copies([&](Buffer in, Buffer out) { comm_.all_to_all(in, out).wait(); });
}
TEST_F(Nccl, broadcast_and_barrier_change_nothing) {
  expect_kept([&](Buffer data) {
    comm_.broadcast(data, 0).wait();
    comm_.barrier().wait();
  });
}
TEST_F(Nccl, an_operation_waits_for_the_callers_stream) {
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  constexpr std::int64_t kCount = 64 << 20;
  DeviceArray input(kCount, DType::kU8), output(kCount, DType::kU8);
  for (int round = 0; round < 20; ++round) {
    // The last of several writes must be what the operation reads.
    for (int i = 0; i < 8; ++i) cudaMemsetAsync(input.buffer().data, i == 7 ? round : 200, kCount, stream);
    comm_.all_gather(input.buffer(stream), output.buffer(stream)).wait();
    cudaStreamSynchronize(stream);  // wait() has ordered the stream, not waited for it
    const auto bytes = output.read();
    ASSERT_EQ(bytes.front(), round);
    ASSERT_EQ(bytes.back(), round);
  }
  cudaStreamDestroy(stream);
}
TEST_F(Nccl, host_memory_goes_through_the_device) {
  std::vector<double> values = {1.5, -2.0, 3.25};
  comm_.all_reduce({values.data(), 3, DType::kF64}).wait();
  EXPECT_EQ(values, (std::vector<double>{1.5, -2.0, 3.25}));
  std::int64_t number = 41;
  comm_.broadcast({&number, 1, DType::kI64}, 0).wait();
  EXPECT_EQ(number, 41);
}
TEST_F(Nccl, an_aborted_group_fails_and_a_new_one_works) {
  comm_.abort("for a test");
  DeviceArray data(10, DType::kF32);
  EXPECT_THROW(comm_.all_reduce(data.buffer()).wait(), Fault);
  comm_ = open_communicator({.backend = "nccl", .plugin_folders = {LOCKSTEP_BUILD_DIR}});
  expect_kept([&](Buffer kept) { comm_.all_reduce(kept).wait(); });
}
TEST_F(Nccl, settings_of_a_group_are_accepted) {
  Communicator ring = open_communicator(
      {.backend = "nccl", .groups = {{"world", "Ring", "Simple", 1, 2}}, .plugin_folders = {LOCKSTEP_BUILD_DIR}});
  expect_kept([&](Buffer data) { ring.all_reduce(data).wait(); });
}
TEST_F(Nccl, a_subgroup_of_one_works) {
  Communicator self = comm_.subgroup({0}, "self");
  EXPECT_EQ(self.size(), 1);
  expect_kept([&](Buffer data) { self.all_reduce(data).wait(); });
}

}  // namespace
}  // namespace lockstep::comm
