#include "lockstep/report/export/trace_steps.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "lockstep/base/text.h"
#include "lockstep/report/median.h"

namespace lockstep::report {
namespace {

using nlohmann::json;
using telemetry::Span;
using telemetry::SpanBatch;

std::string to_text(const json& value) { return value.dump(-1, ' ', false, json::error_handler_t::replace); }

// More than an event takes, its flows included.
std::int64_t most_bytes_of(const SpanBatch& batch) {
  constexpr std::size_t kEventBytes = 700, kEscaped = 6;
  std::size_t bytes = 0;
  for (const Span& span : batch.spans)
    bytes += kEventBytes + 2 * kEscaped * (batch.text(span.name).size() + batch.text(span.group).size());
  return static_cast<std::int64_t>(bytes);
}

}  // namespace

void choose_steps(const telemetry::RunStore& store, const std::string& run, const ExportSelection& selection,
                  std::int64_t most_bytes, TraceResult& result) {
  std::map<int, telemetry::Overlap> overlaps;
  std::int64_t bytes = 0;
  for (const std::int64_t step : store.span_steps(run)) {
    if (!selection.has_step(step)) continue;
    const auto batches = batches_of(store, run, step, selection);
    for (const SpanBatch& batch : batches) bytes += most_bytes_of(batch);
    if (bytes > most_bytes) {
      result.cut = true;
      break;
    }
    if (batches.empty()) continue;
    result.steps.push_back(step);
    for (const SpanBatch& batch : batches) overlaps[batch.rank] += telemetry::overlap_of(batch);
  }
  for (const auto& [rank, overlap] : overlaps) result.overlaps.push_back({rank, overlap});
}

std::vector<SpanBatch> batches_of(const telemetry::RunStore& store, const std::string& run, std::int64_t step,
                                  const ExportSelection& selection) {
  const int only = selection.ranks.size() == 1 ? selection.ranks.front() : -1;
  std::vector<SpanBatch> batches = store.spans(run, step, step, only);
  std::erase_if(batches, [&](const SpanBatch& batch) { return !selection.has_rank(batch.rank); });
  return batches;
}

Message message_kind(std::string_view name) {
  if (name == "send" || name.starts_with("send (")) return Message::kSend;
  if (name == "recv" || name.starts_with("recv (")) return Message::kReceive;
  return Message::kNone;
}

std::map<int, double> clock_offsets(const std::vector<std::vector<SpanBatch>>& steps) {
  std::map<int, std::vector<double>> ahead;
  for (const auto& batches : steps) {
    std::map<std::pair<std::string_view, std::int64_t>, std::vector<std::pair<int, double>>> ends;
    for (const SpanBatch& batch : batches) {
      for (const Span& span : batch.spans) {
        if (!telemetry::is_communication(span) || span.sequence < 0) continue;
        if (message_kind(batch.text(span.name)) != Message::kNone) continue;  // a sender need not wait
        ends[{batch.text(span.group), span.sequence}].emplace_back(
            batch.rank, batch.time + static_cast<double>(span.begin) + static_cast<double>(span.seconds));
      }
    }
    for (const auto& [key, members] : ends) {
      if (members.size() < 2) continue;
      std::vector<double> times;
      for (const auto& [rank, end] : members) times.push_back(end);
      const double middle = median(times);
      for (const auto& [rank, end] : members) ahead[rank].push_back(end - middle);
    }
  }
  // Ranks of one node share a clock: what is less is how late a rank was woken.
  constexpr double kOtherClock = 2e-3;
  std::map<int, double> offsets;
  for (const auto& [rank, values] : ahead) {
    if (const double offset = median(values); std::abs(offset) >= kOtherClock) offsets[rank] = offset;
  }
  return offsets;
}

TraceWriter::TraceWriter(std::ostream& out, const json& head) : out_(out) {
  std::string text = head.dump(1, ' ', false, json::error_handler_t::replace);  // readers look for `"rank": 3`
  text.erase(text.rfind('}'));
  out_ << text << (head.empty() ? "" : ",") << "\"traceEvents\":[";
}

void TraceWriter::event(const json& event) {
  out_ << (first_ ? "\n" : ",\n") << to_text(event);
  first_ = false;
}

void TraceWriter::name_process(int pid, const std::string& name) {
  event({{"ph", "M"}, {"name", "process_name"}, {"pid", pid}, {"tid", 0}, {"args", {{"name", name}}}});
  event({{"ph", "M"}, {"name", "process_sort_index"}, {"pid", pid}, {"tid", 0}, {"args", {{"sort_index", pid}}}});
}

void TraceWriter::name_thread(int pid, int tid, const std::string& name) {
  event({{"ph", "M"}, {"name", "thread_name"}, {"pid", pid}, {"tid", tid}, {"args", {{"name", name}}}});
  event({{"ph", "M"}, {"name", "thread_sort_index"}, {"pid", pid}, {"tid", tid}, {"args", {{"sort_index", tid}}}});
}

void TraceWriter::end() { out_ << "\n]}\n"; }

double to_microseconds(double seconds) { return std::round(seconds * 1e9) / 1e3; }

std::string utf8_text(std::string_view text) {
  if (is_utf8(text)) return std::string(text);
  return json::parse(to_text(json(std::string(text)))).get<std::string>();
}

}  // namespace lockstep::report
