// What both kinds of traces share: which steps go in, aligned clocks, and writing events.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <vector>

#include "lockstep/report/export/export.h"

namespace lockstep::report {

// The selected steps whose spans are kept, as many as fit into `most_bytes`; says in `result` which, and how much
// overlapped on each rank.
void choose_steps(const telemetry::RunStore& store, const std::string& run, const ExportSelection& selection,
                  std::int64_t most_bytes, TraceResult& result);

// Batches of the selected ranks, by rank.
std::vector<telemetry::SpanBatch> batches_of(const telemetry::RunStore& store, const std::string& run,
                                             std::int64_t step, const ExportSelection& selection);

// Of a span that is a message: who sends and who receives.
enum class Message { kNone, kSend, kReceive };
Message message_kind(std::string_view name);

// How much each rank's clock is ahead, in seconds, judged by the ends of collectives in these steps: they are nearly
// simultaneous. Ranks that share none, or whose clock is right, are missing.
std::map<int, double> clock_offsets(const std::vector<std::vector<telemetry::SpanBatch>>& steps);

// {"traceEvents": [...]} piece by piece.
class TraceWriter {
 public:
  // `head` are the other members of the document.
  TraceWriter(std::ostream& out, const nlohmann::json& head);
  void event(const nlohmann::json& event);
  void name_process(int pid, const std::string& name);
  void name_thread(int pid, int tid, const std::string& name);
  void end();

 private:
  std::ostream& out_;
  bool first_ = true;
};

// Microseconds with three digits: what these formats count in.
double to_microseconds(double seconds);
// Sound UTF-8, bytes that are not replaced.
std::string utf8_text(std::string_view text);

}  // namespace lockstep::report
