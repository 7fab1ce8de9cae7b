// The JSON-lines files of one run, read as they grow: what is known is kept, and only what was appended is read again.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/telemetry/lines_file.h"
#include "lockstep/telemetry/run_store.h"

namespace lockstep::telemetry {

// The files of a run in its folder: rank-*.jsonl, run.jsonl, run.spans.jsonl.
std::vector<std::filesystem::path> lines_files_in(const std::filesystem::path& run_folder);
// Of a line of spans, without taking it apart; false when it is none that we wrote.
bool find_span_step(const std::string& line, std::int64_t& step, int& rank);

class RunLines {
 public:
  RunLines(std::filesystem::path folder, std::string id) : folder_(std::move(folder)), id_(std::move(id)) {}

  enum class Part { kRow, kAll };  // kRow: without metrics and spans, which are nearly all of a file
  // UserError (bad input, file:line) for a line that is not a record of this run; it is met again the next time.
  void refresh(Part part);

  RunRow row() const;
  const nlohmann::json& plan() const { return plan_; }
  const std::vector<Event>& events();  // by time
  std::vector<std::string> metric_names() const;
  std::vector<int> ranks(const std::string& metric) const;
  const std::vector<Point>& points(const std::string& metric, int rank);  // by step
  std::vector<std::int64_t> span_steps(int rank) const;
  std::vector<SpanBatch> spans(std::int64_t first, std::int64_t last, int rank) const;

 private:
  struct File {
    std::uint64_t inode = 0;
    LinesPosition position;
  };
  struct Series {
    std::vector<Point> points;
    bool settled = true;  // by step, each once
  };
  struct SpanPlace {  // spans are most of what is written and seldom asked for: they stay in the file
    const std::filesystem::path* file = nullptr;
    std::int64_t offset = 0;
    std::size_t bytes = 0;
  };

  void forget();
  bool replaced() const;  // a file is another or shorter than what was read
  void take_line(const std::filesystem::path& file, std::int64_t offset, const std::string& line,
                 const SourcePlace& place);
  void add(const RunInfo& info);
  void add(const PlanRecord& record) { plan_ = record.plan; }
  void add(const MetricBatch& batch);
  void add(const Event& event);
  void add(const RunEnd& end);
  void add(const SpanBatch& batch) { began_by(batch.time); }
  void began_by(double time);

  std::filesystem::path folder_;
  std::string id_;
  Part part_ = Part::kRow;
  std::map<std::filesystem::path, File> files_;
  RunRow row_;
  nlohmann::json plan_;
  std::map<std::string, std::map<int, Series>> metrics_;  // by name and rank
  std::vector<Event> events_;
  bool events_settled_ = true;
  std::map<std::pair<std::int64_t, int>, SpanPlace> spans_;  // by step and rank; the last one counts
};

}  // namespace lockstep::telemetry
