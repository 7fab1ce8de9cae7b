// A run as PyTorch's profiler would have written it, for what reads those files: one per rank; computing and
// communication as kernels on two streams, what the rank's thread did as operators.
#include <fmt/format.h>

#include <algorithm>
#include <fstream>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/report/export/trace_steps.h"

namespace lockstep::report {
namespace {

using nlohmann::json;
using telemetry::Interval;
using telemetry::Span;
using telemetry::SpanBatch;
using telemetry::SpanKind;
using telemetry::SpanLane;

constexpr int kThread = 1, kComputeStream = 7, kCommStream = 20;
constexpr double kLaunchSeconds = 1e-6;

// "all_reduce (dp: gradients)" as "ncclKernel_AllReduce": the names by which readers know communication.
std::string kernel_name(std::string_view name) {
  std::string words;
  bool capital = true;
  for (const char c : name.substr(0, name.find(' '))) {
    if (c == '_') {
      capital = true;
    } else if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9')) {
      words += capital && c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
      capital = false;
    }
  }
  return "ncclKernel_" + (words.empty() ? std::string("Exchange") : words);
}

// When the rank computed in this span itself: not while it waited, nor in a span inside.
std::vector<Interval> own_pieces(const SpanBatch& batch, std::size_t number) {
  const Span& span = batch.spans[number];
  const auto begin = static_cast<double>(span.begin), end = begin + static_cast<double>(span.seconds);
  std::vector<Interval> holes;
  for (std::size_t i = number + 1; i < batch.spans.size(); ++i) {
    const Span& other = batch.spans[i];
    const auto from = static_cast<double>(other.begin);
    if (from >= end) break;
    if (other.seconds > 0.0F &&
        (telemetry::is_blocked(other) || (telemetry::is_compute(other) && other.lane == span.lane)))
      holes.push_back({from, from + static_cast<double>(other.seconds)});
  }
  if (end <= begin) return {};
  return telemetry::without({{begin, end}}, telemetry::united(std::move(holes)));
}

class RankTrace {
 public:
  RankTrace(std::ostream& out, const json& head, int rank, double origin)
      : out_(out, head), rank_(rank), origin_(origin) {
    out_.name_process(rank, fmt::format("rank {}", rank));
    out_.name_thread(rank, kThread, "main");
    out_.name_thread(rank, kComputeStream, "stream 7: computing");
    out_.name_thread(rank, kCommStream, "stream 20: communication");
  }

  void step(const SpanBatch& batch) {
    for (std::size_t i = 0; i < batch.spans.size(); ++i) {
      const Span& span = batch.spans[i];
      if (telemetry::is_communication(span)) {
        kernel(batch, span, kernel_name(batch.text(span.name)), kCommStream, interval(span));
      } else if (telemetry::is_compute(span)) {
        for (const Interval& piece : own_pieces(batch, i))
          kernel(batch, span, to_string(span.kind), kComputeStream, piece);
      }
      if (span.lane == SpanLane::kMain) operation(batch, span);
    }
  }
  void end() { out_.end(); }

 private:
  static Interval interval(const Span& span) {
    const auto begin = static_cast<double>(span.begin);
    return {begin, begin + static_cast<double>(span.seconds)};
  }

  json event(const SpanBatch& batch, const std::string& name, const char* category, int thread,
             const Interval& when) const {
    return {{"ph", "X"},
            {"cat", category},
            {"name", name},
            {"pid", rank_},
            {"tid", thread},
            {"ts", to_microseconds(batch.time - origin_ + when.begin)},
            {"dur", to_microseconds(when.end - when.begin)}};
  }

  void kernel(const SpanBatch& batch, const Span& span, const std::string& name, int stream, const Interval& when) {
    json made = event(batch, name, "kernel", stream, when);
    made["args"] = {{"device", 0}, {"context", 1}, {"stream", stream}, {"correlation", ++correlation_}};
    if (span.bytes > 0) made["args"]["bytes"] = span.bytes;
    if (span.group >= 0) made["args"]["Process Group Name"] = batch.text(span.group);
    out_.event(made);
    // Readers know by its launch which step a kernel belongs to.
    json launch = event(batch, "launch", "cuda_runtime", kThread, {when.begin, when.begin + kLaunchSeconds});
    launch["args"] = {{"correlation", correlation_}};
    out_.event(launch);
  }

  void operation(const SpanBatch& batch, const Span& span) {
    const bool is_step = span.kind == SpanKind::kStep;
    std::string name(batch.text(span.name));
    if (is_step) name = fmt::format("ProfilerStep#{}", batch.step);
    if (name.empty()) name = to_string(span.kind);
    json made = event(batch, name, is_step ? "user_annotation" : "cpu_op", kThread, interval(span));
    made["args"] = {{"External id", ++operations_}};
    out_.event(made);
  }

  TraceWriter out_;
  int rank_;
  double origin_;
  std::int64_t correlation_ = 0, operations_ = 0;
};

}  // namespace

TraceResult export_kineto(const telemetry::RunStore& store, const telemetry::RunRow& run,
                          const ExportSelection& selection, const std::filesystem::path& folder,
                          std::int64_t most_bytes) {
  TraceResult result;
  choose_steps(store, run.info.id, selection, most_bytes, result);
  make_folders(folder);
  for (const auto& [rank, overlap] : result.overlaps) {
    const std::filesystem::path path = folder / fmt::format("rank-{:05}.json", rank);
    std::ofstream out(path, std::ios::binary);
    const json head = {
        {"schemaVersion", 1},
        {"distributedInfo", {{"backend", utf8_text(run.info.backend)}, {"rank", rank}, {"world_size", run.info.world}}},
        {"displayTimeUnit", "ms"},
        {"producer", "lockstep"}};
    ExportSelection only = selection;
    only.ranks = {rank};
    double origin = 0.0;
    std::optional<RankTrace> trace;
    for (const std::int64_t step : result.steps) {
      for (const SpanBatch& batch : batches_of(store, run.info.id, step, only)) {
        if (!trace) origin = batch.time;
        if (!trace) trace.emplace(out, head, rank, origin);
        trace->step(batch);
      }
    }
    if (trace) trace->end();
    out.flush();
    if (!out) throw environment_error("cannot be written", "check the folder and its disk", {path.string()});
  }
  return result;
}

}  // namespace lockstep::report
