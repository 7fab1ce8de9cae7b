// Writes traces as the PyTorch profiler does, of jobs whose fault is known: the detectors' own test cases.
#pragma once

#include <fmt/format.h>

#include <map>
#include <string>
#include <vector>

namespace lockstep::diagnose::test {

// Times in microseconds. The program runs ahead of the device: a kernel starts when it has been launched and the stream
// is free.
class TraceBuilder {
 public:
  int rank = 0, world = 1;
  bool with_distributed_info = true;
  bool rocm = false;
  double clock_offset = 0.0;   // this node's clock
  double call_us = 6.0;        // what a launch costs the program
  int correlation_stride = 1;  // more: the trace was thinned out

  double now = 1000.0;  // of the program

  void event(const std::string& category, const std::string& name, const std::string& pid, const std::string& tid,
             double begin, double length, const std::string& args = "") {
    events_.push_back(fmt::format(
        R"({{"ph": "X", "cat": "{}", "name": "{}", "pid": {}, "tid": {}, "ts": {:.3f}, "dur": {:.3f}, "args": {{{}}}}})",
        category, name, pid, tid, begin + clock_offset, length, args));
  }

  void range(const std::string& name, double begin, double end, const std::string& category = "user_annotation",
             const std::string& args = "") {
    event(category, name, "100", "100", begin, end - begin, args);
  }

  // Launches on a stream; `not_before` is what it depends on. Returns when it ends.
  double kernel(const std::string& name, double length, int stream = 7, double not_before = 0.0,
                const std::string& args = "") {
    const int id = correlation_ += correlation_stride;
    event(rocm ? "hip_runtime" : "cuda_runtime", rocm ? "hipLaunchKernel" : "cudaLaunchKernel", "100", "100", now,
          call_us, fmt::format(R"("correlation": {})", id));
    now += call_us;
    const double begin = std::max({now + 2.0, free_[stream], not_before});
    free_[stream] = begin + length;
    event(
        "kernel", name, "0", std::to_string(stream), begin, length,
        fmt::format(R"("device": 0, "stream": {}, "correlation": {}{}{})", stream, id, args.empty() ? "" : ", ", args));
    return begin + length;
  }

  void call(const std::string& name, double length) {
    event("cuda_runtime", name, "100", "100", now, length,
          fmt::format(R"("correlation": {})", correlation_ += correlation_stride));
    now += length;
  }

  // The program waits for the device.
  void synchronize() {
    const double begin = now;
    for (const auto& [stream, until] : free_) now = std::max(now, until);
    now += 3.0;
    event("cuda_runtime", "cudaDeviceSynchronize", "100", "100", begin, now - begin,
          fmt::format(R"("correlation": {})", correlation_ += correlation_stride));
  }

  double free_at(int stream) { return free_[stream]; }

  std::string json() const {
    std::string text =
        R"({"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "Test GPU", "totalGlobalMem": 1000}],)";
    if (with_distributed_info) {
      text += fmt::format(R"("distributedInfo": {{"backend": "nccl", "rank": {}, "world_size": {}}},)", rank, world);
    }
    text += "\"traceEvents\": [\n";
    for (std::size_t i = 0; i < events_.size(); ++i) text += (i > 0 ? ",\n" : "") + events_[i];
    return text + "\n], \"displayTimeUnit\": \"ms\", \"baseTimeNanoseconds\": 0}\n";
  }

 private:
  std::vector<std::string> events_;
  std::map<int, double> free_;
  int correlation_ = 1000;
};

// A data-parallel step of `layers` layers forward and backward with gradients reduced in buckets.
struct StepShape {
  int layers = 12;
  double kernel_us = 400.0;
  int kernels_per_layer = 4;
  int buckets = 6;  // 0: one rank, nothing is reduced
  double bucket_us = 900.0;
  bool overlap = true;  // buckets run on their own stream
  double loader_us = 20.0;
  double host_us_per_kernel = 0.0;  // what the program does between launches
  double pause_us = 0.0;            // one pause of the program before backward
  bool synchronize = false;         // after every step
};

inline void add_step(TraceBuilder& trace, int number, const StepShape& shape) {
  const double begin = trace.now;
  const double loaded = trace.now + shape.loader_us;
  trace.range("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", trace.now, loaded);
  trace.now = loaded;
  const auto layer = [&] {
    double end = 0.0;
    for (int k = 0; k < shape.kernels_per_layer; ++k) {
      trace.now += shape.host_us_per_kernel;
      end = trace.kernel(k % 2 == 0 ? "ampere_gemm_128x128" : "elementwise_kernel", shape.kernel_us);
    }
    return end;
  };
  for (int i = 0; i < shape.layers; ++i) layer();
  trace.now += shape.pause_us;
  double last = 0.0;
  for (int i = 0; i < shape.layers; ++i) {
    const double end = layer();
    if (shape.buckets == 0 || (i + 1) % std::max(1, shape.layers / shape.buckets) != 0) continue;
    const int repeats = std::max(1, shape.buckets / shape.layers);
    for (int r = 0; r < repeats; ++r) {
      last = trace.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage)", shape.bucket_us,
                          shape.overlap ? 20 : 7, end);
      if (!shape.overlap) trace.now = std::max(trace.now, last);
    }
  }
  trace.kernel("multi_tensor_apply_kernel", 300.0, 7, last);
  if (shape.synchronize) trace.synchronize();
  // A loop that never waits would run away from the device: a queue of two steps is usual.
  trace.now = std::max(trace.now, trace.free_at(7) - 2 * shape.layers * shape.kernels_per_layer * shape.kernel_us);
  trace.range(fmt::format("ProfilerStep#{}", number), begin, trace.now - 0.5);
}

inline TraceBuilder job(const StepShape& shape, int steps = 5, int rank = 0, int world = 1) {
  TraceBuilder trace;
  trace.rank = rank;
  trace.world = world;
  for (int i = 0; i < steps; ++i) add_step(trace, i + 10, shape);
  return trace;
}

}  // namespace lockstep::diagnose::test
