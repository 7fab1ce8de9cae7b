// Runs as JSON-lines files: one per writing process in the folder of the run.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "lockstep/base/clock.h"
#include "lockstep/telemetry/find_row.h"
#include "lockstep/telemetry/lines_file.h"
#include "lockstep/telemetry/recorder.h"
#include "lockstep/telemetry/run_store.h"

namespace lockstep::telemetry {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// What the files of a run add up to.
struct Run {
  RunRow row;
  json plan;
  std::map<std::string, std::map<int, std::vector<Point>>> metrics;  // by name and rank
  std::vector<Event> events;
  std::map<std::pair<std::int64_t, int>, SpanBatch> spans;  // by step and rank; the last one counts

  void add(const SpanBatch& batch) {
    began_by(batch.time);
    spans[{batch.step, batch.rank}] = batch;
  }
  void add(const RunInfo& info) {
    // The first one of a process stays, until the run has ended and is started again.
    const bool again = row.ended_at > 0 && info.pid != 0 && info.started_at >= row.ended_at;
    if (row.info.pid != 0 && !again) return;
    const double began = row.info.pid != 0 ? row.info.started_at : info.started_at;
    row.info = info;
    row.info.started_at = began;
    if (!again) return;
    row.status = RunStatus::kRunning;
    row.ended_at = 0.0;
    row.exit_reason.clear();
  }
  void add(const PlanRecord& record) { plan = record.plan; }
  void add(const MetricBatch& batch) {
    began_by(batch.time);
    for (const Metric& metric : batch.metrics)
      metrics[metric.name][batch.rank].push_back({batch.step, batch.time, metric.value});
  }
  void add(const Event& event) {
    began_by(event.time);
    events.push_back(event);
  }
  void add(const RunEnd& end) {
    if (end.time < row.ended_at) return;
    row.status = end.status;
    row.ended_at = end.time;
    row.exit_reason = end.exit_reason;
    row.summary = end.summary;
  }
  // Of a run whose own line is not here, the first record is all there is.
  void began_by(double time) {
    if (row.info.pid == 0 && (row.info.started_at == 0 || time < row.info.started_at)) row.info.started_at = time;
  }

  void finish() {
    for (auto& [name, ranks] : metrics) {
      for (auto& [rank, points] : ranks) {
        std::stable_sort(points.begin(), points.end(), [](const Point& a, const Point& b) {
          return std::tie(a.step, a.time) < std::tie(b.step, b.time);
        });
        // A step that was done again keeps its last value.
        const auto same = [](const Point& a, const Point& b) { return a.step == b.step; };
        points.erase(points.begin(), std::unique(points.rbegin(), points.rend(), same).base());
      }
    }
    std::stable_sort(events.begin(), events.end(), [](const Event& a, const Event& b) { return a.time < b.time; });
    row.status = status_now(row.status, row.info);
  }
};

class RunFiles : public RunStore {
 public:
  RunFiles(fs::path home, int rank) : home_(std::move(home)), rank_(rank) {}

  void write(const std::string& run, std::span<const Record> batch) override {
    auto file = writing_.find(run);
    if (file == writing_.end()) {
      const fs::path path = lines_file(home_, run, rank_);
      make_folders(path.parent_path());
      file = writing_.try_emplace(run, path, LinesFile::Open::kEither).first;
      file->second.drop_torn_end();
    }
    std::string text;
    for (const Record& record : batch) text += to_json_line(run, record) + "\n";
    file->second.append(text, false);
  }

  std::vector<RunRow> runs(std::size_t limit, const std::string& beginning) const override {
    std::vector<RunRow> rows;
    std::error_code missing;
    for (const auto& entry : fs::directory_iterator(home_ / "runs", missing)) {
      const std::string id = entry.path().filename().string();
      if (!id.starts_with(beginning) || files_of(id).empty()) continue;
      try {
        rows.push_back(load(id, Part::kRow).row);
      } catch (const UserError&) {  // a file that cannot be read must not hide the other runs; reading it says why
      }
    }
    keep_newest(rows, &RunInfo::started_at, limit);
    return rows;
  }

  json plan(const std::string& run) const override { return load(run, Part::kAll).plan; }

  std::vector<int> ranks(const std::string& run, const std::string& metric) const override {
    const Run& loaded = load(run, Part::kAll);
    std::vector<int> ranks;
    if (const auto found = loaded.metrics.find(metric); found != loaded.metrics.end())
      for (const auto& [rank, points] : found->second) ranks.push_back(rank);
    return ranks;
  }

  std::vector<Point> points(const std::string& run, const std::string& metric, int rank) const override {
    const Run& loaded = load(run, Part::kAll);
    const auto found = loaded.metrics.find(metric);
    if (found == loaded.metrics.end() || !found->second.contains(rank)) return {};
    return found->second.at(rank);
  }

  std::vector<Event> events(const std::string& run, Level at_least) const override {
    std::vector<Event> events = load(run, Part::kAll).events;
    std::erase_if(events, [at_least](const Event& event) { return event.level < at_least; });
    return events;
  }

  std::vector<std::string> metric_names(const std::string& run) const override {
    std::vector<std::string> names;
    for (const auto& [name, ranks] : load(run, Part::kAll).metrics) names.push_back(name);
    return names;
  }

  std::vector<std::int64_t> span_steps(const std::string& run, int rank) const override {
    std::vector<std::int64_t> steps;
    for (const auto& [key, batch] : load(run, Part::kAll).spans) {
      if ((rank < 0 || key.second == rank) && (steps.empty() || steps.back() != key.first)) steps.push_back(key.first);
    }
    return steps;
  }

  std::vector<SpanBatch> spans(const std::string& run, std::int64_t first, std::int64_t last, int rank) const override {
    const auto& all = load(run, Part::kAll).spans;
    std::vector<SpanBatch> batches;
    for (auto it = all.lower_bound({first, 0}); it != all.end() && it->first.first <= last; ++it) {
      if (rank < 0 || it->first.second == rank) batches.push_back(it->second);
    }
    return batches;
  }

 private:
  enum class Part { kRow, kAll };
  using Files = std::map<fs::path, std::uintmax_t>;  // and their sizes: a file that grew is read again
  struct Loaded {
    Files files;
    Part part = Part::kRow;
    Run run;
  };

  Files files_of(const std::string& id) const {
    Files files;
    std::error_code missing;
    for (const auto& entry : fs::directory_iterator(run_folder(home_, id), missing)) {
      const std::string name = entry.path().filename().string();
      if (entry.path().extension() == ".jsonl" && (name.starts_with("rank-") || name == "run.jsonl"))
        files[entry.path()] = entry.file_size(missing);
    }
    return files;
  }

  const Run& load(const std::string& id, Part part) const {
    Loaded& known = loaded_[id];
    Files files = files_of(id);
    if (known.files == files && (known.part == Part::kAll || part == Part::kRow)) return known.run;
    known = {};
    Run run;
    for (const auto& [path, size] : files) {
      read_lines(path, [&](const std::string& line, const SourcePlace& place) {
        // Steps are nearly all of a file and say nothing that a list shows.
        if (part == Part::kRow && place.line > 1 &&
            (line.find(R"("type":"metrics")") != std::string::npos ||
             line.find(R"("type":"spans")") != std::string::npos)) {
          return;
        }
        add_line(run, id, line, place);
      });
    }
    run.finish();
    run.row.info.id = id;
    known = {std::move(files), part, std::move(run)};
    return known.run;
  }

  static void add_line(Run& run, const std::string& id, const std::string& line, const SourcePlace& place) {
    try {
      const ParsedLine parsed = parse_json_line(line);
      if (parsed.run != id) throw bad_input("a record of another run");
      std::visit([&](const auto& record) { run.add(record); }, parsed.record);
    } catch (const UserError& error) {
      throw bad_input(error.what(), "remove the line or the file", place);
    }
  }

  fs::path home_;
  int rank_;
  std::map<std::string, LinesFile> writing_;
  mutable std::map<std::string, Loaded> loaded_;
};

}  // namespace

fs::path lines_file(const fs::path& home, const std::string& run, int rank) {
  return run_folder(home, run) / (rank < 0 ? std::string("run.jsonl") : fmt::format("rank-{:05}.jsonl", rank));
}

std::unique_ptr<RunStore> make_json_lines_run_store(const fs::path& home, int rank) {
  return std::make_unique<RunFiles>(home, rank);
}

}  // namespace lockstep::telemetry
