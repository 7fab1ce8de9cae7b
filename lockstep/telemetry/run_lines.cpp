#include "lockstep/telemetry/run_lines.h"

#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <limits>
#include <optional>
#include <tuple>

#include "lockstep/base/error.h"
#include "lockstep/telemetry/recorder.h"

namespace lockstep::telemetry {
namespace {

namespace fs = std::filesystem;

// The number behind the last `key`. Quotes inside of texts are escaped, so what is found is a key of the record.
std::optional<std::int64_t> number_after(std::string_view line, std::string_view key) {
  const std::size_t found = line.rfind(key);
  if (found == std::string_view::npos) return std::nullopt;
  const char* begin = line.data() + found + key.size();
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(begin, line.data() + line.size(), value);
  return error == std::errc() && end != begin ? std::optional(value) : std::nullopt;
}

bool is_of_type(const std::string& line, std::string_view quoted) { return line.find(quoted) != std::string::npos; }

}  // namespace

std::vector<fs::path> lines_files_in(const fs::path& run_folder) {
  std::vector<fs::path> files;
  std::error_code missing;
  for (const auto& entry : fs::directory_iterator(run_folder, missing)) {
    const std::string name = entry.path().filename().string();
    if (entry.path().extension() == ".jsonl" && (name.starts_with("rank-") || name.starts_with("run.")))
      files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

bool find_span_step(const std::string& line, std::int64_t& step, int& rank) {
  if (!line.ends_with(R"("type":"spans"})")) return false;
  const auto found_step = number_after(line, R"(,"step":)"), found_rank = number_after(line, R"(,"rank":)");
  if (!found_step || !found_rank) return false;
  step = *found_step;
  rank = static_cast<int>(*found_rank);
  return true;
}

void RunLines::forget() { *this = RunLines(std::move(folder_), std::move(id_)); }

bool RunLines::replaced() const {
  return std::any_of(files_.begin(), files_.end(), [](const auto& known) {
    struct stat now {};
    return ::stat(known.first.c_str(), &now) != 0 || now.st_ino != known.second.inode ||
           now.st_size < known.second.position.bytes;
  });
}

void RunLines::refresh(Part part) {
  if (replaced() || (part == Part::kAll && part_ == Part::kRow)) {
    forget();
    part_ = part;
  }
  try {
    for (const fs::path& path : lines_files_in(folder_)) {
      struct stat now {};
      if (::stat(path.c_str(), &now) != 0) continue;
      const auto file = files_.try_emplace(path, File{now.st_ino, {}}).first;
      LinesPosition& position = file->second.position;
      if (now.st_size <= position.bytes) continue;
      read_lines(path, position, [&](const std::string& line, const SourcePlace& place) {
        take_line(file->first, position.bytes, line, place);
      });
    }
  } catch (...) {
    forget();
    throw;
  }
}

void RunLines::take_line(const fs::path& file, std::int64_t offset, const std::string& line, const SourcePlace& place) {
  // Steps are nearly all of a file and say nothing that a list shows, but when the first one was.
  const bool first = place.line == 1;
  if (part_ == Part::kRow && !first &&
      (is_of_type(line, R"("type":"metrics")") || is_of_type(line, R"("type":"spans")"))) {
    return;
  }
  try {
    std::int64_t step = 0;
    int rank = 0;
    if (!first && find_span_step(line, step, rank)) {
      spans_[{step, rank}] = {&file, offset, line.size()};
      return;
    }
    const ParsedLine parsed = parse_json_line(line);
    if (parsed.run != id_) throw bad_input("a record of another run");
    std::visit([&](const auto& record) { add(record); }, parsed.record);
    if (const auto* batch = std::get_if<SpanBatch>(&parsed.record))
      spans_[{batch->step, batch->rank}] = {&file, offset, line.size()};
  } catch (const UserError& error) {
    throw bad_input(error.what(), "remove the line or the file", place);
  }
}

void RunLines::add(const RunInfo& info) {
  // The first one of a process stays, until the run has ended and is started again.
  const bool again = row_.ended_at > 0 && info.pid != 0 && info.started_at >= row_.ended_at;
  if (row_.info.pid != 0 && !again) return;
  const double began = row_.info.pid != 0 ? row_.info.started_at : info.started_at;
  row_.info = info;
  row_.info.started_at = began;
  if (!again) return;
  row_.status = RunStatus::kRunning;
  row_.ended_at = 0.0;
  row_.exit_reason.clear();
}

void RunLines::add(const MetricBatch& batch) {
  began_by(batch.time);
  for (const Metric& metric : batch.metrics) {
    Series& series = metrics_[metric.name][batch.rank];
    series.settled = series.settled && (series.points.empty() || series.points.back().step < batch.step);
    series.points.push_back({batch.step, batch.time, metric.value});
  }
}

void RunLines::add(const Event& event) {
  began_by(event.time);
  events_settled_ = events_settled_ && (events_.empty() || events_.back().time <= event.time);
  events_.push_back(event);
}

void RunLines::add(const RunEnd& end) {
  if (end.time < row_.ended_at) return;
  row_.status = end.status;
  row_.ended_at = end.time;
  row_.exit_reason = end.exit_reason;
  row_.summary = end.summary;
}

// Of a run whose own line is not here, the first record is all there is.
void RunLines::began_by(double time) {
  if (row_.info.pid == 0 && (row_.info.started_at == 0 || time < row_.info.started_at)) row_.info.started_at = time;
}

RunRow RunLines::row() const {
  RunRow row = row_;
  row.info.id = id_;
  row.status = status_now(row.status, row.info);
  return row;
}

const std::vector<Event>& RunLines::events() {
  if (!std::exchange(events_settled_, true)) {
    std::stable_sort(events_.begin(), events_.end(), [](const Event& a, const Event& b) { return a.time < b.time; });
  }
  return events_;
}

std::vector<std::string> RunLines::metric_names() const {
  std::vector<std::string> names;
  for (const auto& [name, ranks] : metrics_) names.push_back(name);
  return names;
}

std::vector<int> RunLines::ranks(const std::string& metric) const {
  std::vector<int> ranks;
  if (const auto found = metrics_.find(metric); found != metrics_.end())
    for (const auto& [rank, series] : found->second) ranks.push_back(rank);
  return ranks;
}

const std::vector<Point>& RunLines::points(const std::string& metric, int rank) {
  static const std::vector<Point> kNone;
  const auto found = metrics_.find(metric);
  if (found == metrics_.end() || !found->second.contains(rank)) return kNone;
  Series& series = found->second.at(rank);
  if (!std::exchange(series.settled, true)) {
    std::vector<Point>& points = series.points;
    std::stable_sort(points.begin(), points.end(), [](const Point& a, const Point& b) {
      return std::tie(a.step, a.time) < std::tie(b.step, b.time);
    });
    // A step that was done again keeps its last value.
    const auto same = [](const Point& a, const Point& b) { return a.step == b.step; };
    points.erase(points.begin(), std::unique(points.rbegin(), points.rend(), same).base());
  }
  return series.points;
}

std::vector<std::int64_t> RunLines::span_steps(int rank) const {
  std::vector<std::int64_t> steps;
  for (const auto& [key, place] : spans_) {
    if ((rank < 0 || key.second == rank) && (steps.empty() || steps.back() != key.first)) steps.push_back(key.first);
  }
  return steps;
}

std::vector<SpanBatch> RunLines::spans(std::int64_t first, std::int64_t last, int rank) const {
  std::vector<SpanBatch> batches;
  std::map<const fs::path*, std::ifstream> open;
  for (auto it = spans_.lower_bound({first, std::numeric_limits<int>::min()});
       it != spans_.end() && it->first.first <= last; ++it) {
    if (rank >= 0 && it->first.second != rank) continue;
    const SpanPlace& place = it->second;
    std::ifstream& file = open.try_emplace(place.file, *place.file, std::ios::binary).first->second;
    std::string line(place.bytes, '\0');
    if (!file.seekg(place.offset) || !file.read(line.data(), static_cast<std::streamsize>(line.size()))) continue;
    ParsedLine parsed = parse_json_line(line);
    if (auto* batch = std::get_if<SpanBatch>(&parsed.record); batch && parsed.run == id_)
      batches.push_back(std::move(*batch));
  }
  return batches;
}

}  // namespace lockstep::telemetry
