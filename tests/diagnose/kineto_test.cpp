// Traces of one rank: each fault is found, health is left alone, and a file that is not whole is refused.
#include <gtest/gtest.h>

#include <fstream>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/diagnose/foreign/files.h"
#include "lockstep/diagnose/foreign/kineto.h"
#include "lockstep/diagnose/foreign/trace_findings.h"
#include "tests/diagnose/trace_builder.h"

namespace lockstep::diagnose::test {
namespace {

Trace trace_of(const std::string& json) { return read_kineto(*memory_source(json), "test.json"); }

std::vector<std::string> causes(const std::vector<Trace>& traces) {
  Diagnosis diagnosis;
  diagnosis.findings = trace_findings(traces);
  settle(diagnosis);
  std::vector<std::string> names;
  for (const Finding& finding : diagnosis.findings) names.emplace_back(to_string(finding.cause));
  return names;
}

std::vector<std::string> causes(const StepShape& shape) {
  return causes(std::vector<Trace>{trace_of(job(shape).json())});
}

std::string first_of(const std::vector<std::string>& names) { return names.empty() ? "nothing" : names.front(); }

std::string problem_of(const std::string& json) {
  try {
    trace_of(json);
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::kUsage);
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    return error.what();
  }
  return "";
}

TEST(Kineto, a_healthy_job_gets_no_finding) {
  EXPECT_EQ(causes(StepShape{}), std::vector<std::string>{});
  EXPECT_EQ(causes(StepShape{.buckets = 0}), std::vector<std::string>{});
  EXPECT_EQ(causes(StepShape{.synchronize = true}), std::vector<std::string>{});
}

TEST(Kineto, a_starved_loader_is_named_with_the_workers_it_needs) {
  const StepShape shape{.loader_us = 40'000.0, .synchronize = true};
  const std::vector<Finding> found = trace_findings({trace_of(job(shape, 20).json())});
  ASSERT_FALSE(found.empty());
  EXPECT_EQ(found.front().cause, Cause::kLoader);
  // 40 ms of waiting beside 38.7 ms of computing.
  EXPECT_NEAR(found.front().cost_percent, 50.0, 2.0);
  EXPECT_NE(found.front().fix.find("num_workers=4"), std::string::npos) << found.front().fix;
  EXPECT_NEAR(found.front().gain_percent, 81.0, 10.0);
}

TEST(Kineto, loading_behind_the_device_is_no_fault) {
  // The program waits 20 ms for data, but the device still has work from the step before.
  EXPECT_EQ(causes(StepShape{.loader_us = 20'000.0}), std::vector<std::string>{});
}

TEST(Kineto, communication_that_nothing_hides_is_named) {
  EXPECT_EQ(first_of(causes(StepShape{.bucket_us = 2'000.0, .overlap = false})), "exposed_communication");
}

TEST(Kineto, communication_that_is_hidden_is_not) {
  EXPECT_EQ(causes(StepShape{.bucket_us = 2'500.0}), std::vector<std::string>{});
}

TEST(Kineto, many_tiny_collectives_are_small_messages) {
  EXPECT_EQ(first_of(causes(StepShape{.buckets = 240, .bucket_us = 60.0, .overlap = false})), "small_messages");
}

TEST(Kineto, many_large_collectives_are_not_small_messages) {
  const StepShape shape{.layers = 96, .buckets = 96, .bucket_us = 700.0, .overlap = false};
  EXPECT_EQ(first_of(causes(shape)), "exposed_communication");
}

TEST(Kineto, short_kernels_that_are_asked_for_too_late_are_launch_bound) {
  const StepShape shape{.kernel_us = 5.0, .kernels_per_layer = 40, .buckets = 0, .host_us_per_kernel = 3.0};
  EXPECT_EQ(first_of(causes(shape)), "launch_bound");
}

TEST(Kineto, a_program_that_is_elsewhere_makes_it_host_bound) {
  const StepShape shape{.buckets = 0, .pause_us = 60'000.0, .synchronize = true};
  EXPECT_EQ(first_of(causes(shape)), "host_bound");
}

TEST(Kineto, memory_taken_from_the_driver_in_every_step_is_memory_pressure) {
  TraceBuilder trace;
  for (int i = 0; i < 5; ++i) {
    trace.synchronize();
    for (int k = 0; k < 8; ++k) trace.call("cudaMalloc", 700.0);
    trace.call("cudaFree", 2'000.0);
    add_step(trace, i, StepShape{.buckets = 0, .synchronize = true});
  }
  EXPECT_EQ(first_of(causes(std::vector<Trace>{trace_of(trace.json())})), "memory_pressure");
}

TEST(Kineto, a_checkpoint_that_stops_the_device_is_named) {
  TraceBuilder trace;
  for (int i = 0; i < 5; ++i) {
    add_step(trace, i, StepShape{.buckets = 0, .synchronize = true});
    trace.range("save_checkpoint", trace.now, trace.now + 15'000.0);
    trace.now += 15'000.0;
  }
  EXPECT_EQ(first_of(causes(std::vector<Trace>{trace_of(trace.json())})), "checkpoint_stall");
}

TEST(Kineto, idle_time_of_a_thinned_trace_is_not_judged) {
  const StepShape shape{.buckets = 0, .pause_us = 60'000.0, .synchronize = true};
  TraceBuilder trace;
  trace.correlation_stride = 100;
  for (int i = 0; i < 5; ++i) add_step(trace, i, shape);
  EXPECT_EQ(causes(std::vector<Trace>{trace_of(trace.json())}), std::vector<std::string>{});
}

TEST(Kineto, reads_rocm_and_traces_without_distributed_info) {
  TraceBuilder trace;
  trace.rocm = true;
  trace.with_distributed_info = false;
  for (int i = 0; i < 4; ++i) add_step(trace, i, StepShape{.buckets = 0, .pause_us = 60'000.0, .synchronize = true});
  const Trace read = trace_of(trace.json());
  EXPECT_EQ(read.rank, -1);
  EXPECT_EQ(first_of(causes(std::vector<Trace>{read})), "host_bound");
}

TEST(Kineto, keeps_nanoseconds) {
  const Trace trace = trace_of(
      R"({"traceEvents": [{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":1712195495505543.217,"dur":1.5,
    "args":{"stream":7}}, {"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":1.7e3,"dur":"2"}]})");
  ASSERT_EQ(trace.work.size(), 2U);
  EXPECT_EQ(trace.work[1].time, (Interval{1712195495505543217, 1712195495505544717}));
  EXPECT_EQ(trace.work[0].time, (Interval{1'700'000, 1'702'000}));
}

// Nanoseconds between two of them must fit.
TEST(Kineto, drops_times_that_no_clock_has) {
  const Trace trace = trace_of(
      R"([{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":-3100000000000000,"dur":1},
          {"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":7800000000000000,"dur":1},
          {"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":1,"dur":8e15},
          {"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":3900000000000000,"dur":1}])");
  ASSERT_EQ(trace.work.size(), 2U);
  EXPECT_GT(trace.work[1].time.end - trace.work[0].time.begin, 0);
  EXPECT_LE(causes(std::vector<Trace>{trace}).size(), kMostFindings);
}

TEST(Kineto, takes_what_the_profiler_tells_of_collectives) {
  const Trace trace = trace_of(
      R"j([{"ph":"X","cat":"kernel","name":"ncclDevKernel_AllGather_RING_LL(x)","pid":0,"tid":7,"ts":1,"dur":2,"args":
    {
  "Collective name" : "_allgather_base",
                      "In msg nelems" : 1000,
                      "dtype" : "BFloat16",
                                "Group size" : 8,
                                "Process Group Name" : "fsdp",
                                                       "Seq" : 12}},
    {"ph":"X","cat":"user_annotation","name":"nccl:all_to_all","pid":1,"tid":1,"ts":1,"dur":2,"args":{"Input Dims": [[2, 1024], []], "Input type": ["long", ""]}}])j");
  ASSERT_EQ(trace.collectives.size(), 2U);
  EXPECT_EQ(trace.collectives[0].group, "fsdp");
  EXPECT_EQ(trace.collectives[0].sequence, 12);
  EXPECT_EQ(trace.collectives[0].bytes, 2000.0);
  EXPECT_EQ(trace.collectives[0].members, 8);
  EXPECT_EQ(trace.collectives[1].bytes, 16384.0);
}

TEST(Kineto, a_trace_that_ends_anywhere_is_refused_with_the_offset) {
  const std::string whole = job(StepShape{.layers = 1, .kernels_per_layer = 1, .buckets = 1}, 1).json();
  ASSERT_EQ(problem_of(whole), "");
  const std::size_t last = whole.rfind('}');
  for (std::size_t size = 0; size < last; ++size) {
    const std::string problem = problem_of(whole.substr(0, size));
    ASSERT_NE(problem, "") << size;
    ASSERT_EQ(problem.rfind("test.json", 0), 0U) << problem;
  }
  EXPECT_EQ(problem_of(whole.substr(0, 500)), "test.json:500: the trace ends in the middle; record or copy it again");
}

TEST(Kineto, a_damaged_trace_is_refused_or_read_but_never_breaks) {
  const std::string whole = job(StepShape{.layers = 1, .kernels_per_layer = 1, .buckets = 1}, 1).json();
  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (const char byte : {'\0', '"', '{', ']', '\\', '9'}) {
      std::string bad = whole;
      bad[at] = byte;
      problem_of(bad);
    }
  }
  std::string bad = whole;
  bad[whole.find("\"traceEvents\"") + 13] = ';';
  EXPECT_EQ(problem_of(bad), "test.json:" + std::to_string(whole.find("\"traceEvents\"") + 13) +
                                 ": not JSON: a colon was expected; record or copy it again");
}

TEST(Kineto, json_that_is_no_trace_is_refused) {
  EXPECT_EQ(problem_of(R"({"schemaVersion": 1})"),
            "test.json is JSON without `traceEvents`; give a trace of torch.profiler (export_chrome_trace)");
  EXPECT_NE(problem_of(std::string(1000, '[')), "");
  EXPECT_NE(problem_of("{\"traceEvents\": [" + std::string(1000, '[') + std::string(1000, ']') + "]}"), "");
}

TEST(Kineto, without_a_device_the_loader_of_the_program_is_judged) {
  TraceBuilder trace;
  for (int i = 0; i < 4; ++i) {
    const double begin = trace.now;
    trace.range("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", trace.now, trace.now + 30'000);
    trace.range("aten::linear", trace.now + 30'000, trace.now + 70'000, "cpu_op");
    trace.now += 70'000;
    trace.range("ProfilerStep#" + std::to_string(i), begin, trace.now - 1);
  }
  EXPECT_EQ(causes(std::vector<Trace>{trace_of(trace.json())}), std::vector<std::string>{"loader"});
}

TEST(Files, are_recognised_by_content) {
  const TemporaryFolder folder;
  std::ofstream(folder.path() / "notes.txt") << "nothing\n";
  std::ofstream(folder.path() / "a.bin") << job(StepShape{.bucket_us = 2'000.0, .overlap = false}).json();
  const Diagnosis diagnosis = diagnose_files({folder.path()});
  ASSERT_EQ(diagnosis.read.size(), 1U);
  EXPECT_EQ(diagnosis.read[0].kind, "kineto");
  ASSERT_FALSE(diagnosis.findings.empty());
  EXPECT_THROW(diagnose_files({folder.path() / "notes.txt"}), UserError);
  EXPECT_THROW(diagnose_files({folder.path() / "absent"}), UserError);
}

}  // namespace
}  // namespace lockstep::diagnose::test
