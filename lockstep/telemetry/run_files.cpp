// Runs as JSON-lines files: one per writing process in the folder of the run.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/telemetry/find_row.h"
#include "lockstep/telemetry/lines_file.h"
#include "lockstep/telemetry/recorder.h"
#include "lockstep/telemetry/run_lines.h"
#include "lockstep/telemetry/run_store.h"
#include "lockstep/telemetry/span_budget.h"
#include "lockstep/telemetry/tags.h"

namespace lockstep::telemetry {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// Of one run, open to append.
struct Writing {
  LinesFile records;
  std::optional<LinesFile> spans;  // once there are some
  SpanBudget budget;
  int world = 1;
};

LinesFile opened(const fs::path& path) {
  make_folders(path.parent_path());
  LinesFile file(path, LinesFile::Open::kEither);
  file.drop_torn_end();
  return file;
}

class RunFiles : public RunStore {
 public:
  RunFiles(fs::path home, int rank) : home_(std::move(home)), rank_(rank) {}

  void write(const std::string& run, std::span<const Record> batch) override {
    auto found = writing_.find(run);
    if (found == writing_.end()) {
      found = writing_.try_emplace(run, Writing{opened(lines_file(home_, run, rank_)), {}, {}, 1}).first;
    }
    Writing& writing = found->second;
    std::string text, spans;
    for (const Record& record : batch) {
      std::string line = to_json_line(run, record) + "\n";
      if (const auto* info = std::get_if<RunInfo>(&record)) writing.world = info->world;
      if (const auto* own = std::get_if<SpanBatch>(&record)) {
        writing.budget.add(own->step, static_cast<std::int64_t>(line.size()));
        spans += line;
      } else {
        text += line;
      }
    }
    if (!text.empty()) writing.records.append(text, false);
    if (!spans.empty()) write_spans(run, writing, spans);
  }

  std::vector<RunRow> runs(std::size_t limit, const std::string& beginning) const override {
    std::vector<RunRow> rows;
    std::error_code missing;
    for (const auto& entry : fs::directory_iterator(home_ / "runs", missing)) {
      const std::string id = entry.path().filename().string();
      if (!id.starts_with(beginning) || lines_files_in(entry.path()).empty()) continue;
      try {
        rows.push_back(load(id, RunLines::Part::kRow).row());
      } catch (const UserError&) {  // a file that cannot be read must not hide the other runs; reading it says why
      }
    }
    keep_newest(rows, &RunInfo::started_at, limit);
    for (RunRow& row : rows) row.tags = read_tags(row.info.id);
    return rows;
  }

  void set_tags(const std::string& run, const std::vector<std::string>& tags) override {
    const std::vector<std::string> sound = checked_tags(tags);
    if (!is_run_id(run) || lines_files_in(run_folder(home_, run)).empty())
      throw bad_input("the run store has no run '" + printable(run) + "'");
    write_file_atomically(tags_file(run), one_line({{"tags", sound}}) + "\n");
  }

  json plan(const std::string& run) const override { return load(run).plan(); }
  std::vector<int> ranks(const std::string& run, const std::string& metric) const override {
    return load(run).ranks(metric);
  }
  std::vector<Point> points(const std::string& run, const std::string& metric, int rank) const override {
    return load(run).points(metric, rank);
  }
  std::vector<std::string> metric_names(const std::string& run) const override { return load(run).metric_names(); }

  std::optional<std::int64_t> last_step(const std::string& run, const std::string& metric, int rank) const override {
    const std::vector<Point>& all = load(run).points(metric, rank);
    return all.empty() ? std::nullopt : std::optional(all.back().step);
  }

  std::vector<Point> points_after(const std::string& run, const std::string& metric, int rank, std::int64_t after_step,
                                  std::size_t limit) const override {
    const std::vector<Point>& all = load(run).points(metric, rank);
    const auto first = std::upper_bound(all.begin(), all.end(), after_step,
                                        [](std::int64_t step, const Point& point) { return step < point.step; });
    const auto left = static_cast<std::size_t>(all.end() - first);
    return {first, first + static_cast<std::ptrdiff_t>(std::min(left, limit))};
  }

  std::vector<Event> events(const std::string& run, Level at_least) const override {
    std::vector<Event> events = load(run).events();
    std::erase_if(events, [at_least](const Event& event) { return event.level < at_least; });
    return events;
  }

  std::vector<std::int64_t> span_steps(const std::string& run, int rank) const override {
    return load(run).span_steps(rank);
  }
  std::vector<SpanBatch> spans(const std::string& run, std::int64_t first, std::int64_t last, int rank) const override {
    return load(run).spans(first, last, rank);
  }

 private:
  fs::path tags_file(const std::string& run) const { return run_folder(home_, run) / "tags.json"; }

  std::vector<std::string> read_tags(const std::string& run) const {
    std::error_code missing;
    if (!fs::exists(tags_file(run), missing)) return {};
    try {
      return checked_tags(json::parse(read_file(tags_file(run), 1 << 20)).at("tags").get<std::vector<std::string>>());
    } catch (const std::exception&) {  // somebody's edit does not hide the run
      return {};
    }
  }

  void write_spans(const std::string& run, Writing& writing, const std::string& text) {
    const fs::path path = spans_file(home_, run, rank_);
    if (!writing.spans) {
      writing.spans = opened(path);
      count_spans(path, writing.budget);
    }
    writing.spans->append(text, false);
    const auto surplus = writing.budget.take_surplus(span_budget_bytes(writing.world));
    if (surplus.empty()) return;
    // Written anew beside it and exchanged: readers notice.
    std::string kept;
    for_each_span_line(path, [&](std::int64_t step, const std::string& line) {
      if (!std::binary_search(surplus.begin(), surplus.end(), step)) kept += line + "\n";
    });
    replace_file(path, kept);
    writing.spans = opened(path);
  }

  template <class Take>
  static void for_each_span_line(const fs::path& path, const Take& take) {
    read_lines(path, [&](const std::string& line, const SourcePlace&) {
      std::int64_t step = 0;
      int rank = 0;
      if (find_span_step(line, step, rank)) take(step, line);
    });
  }

  // Of an earlier process of this rank.
  static void count_spans(const fs::path& path, SpanBudget& budget) {
    for_each_span_line(path, [&](std::int64_t step, const std::string& line) {
      budget.add(step, static_cast<std::int64_t>(line.size()) + 1);
    });
  }

  // An id is the name of a folder, never a way out of it.
  static bool is_run_id(const std::string& run) {
    return !run.empty() && run != "." && run != ".." && run.find('/') == std::string::npos &&
           run.find('\0') == std::string::npos;
  }

  RunLines& load(const std::string& id, RunLines::Part part = RunLines::Part::kAll) const {
    const auto known = loaded_.try_emplace(id, run_folder(home_, is_run_id(id) ? id : "no such run"), id).first;
    known->second.refresh(part);
    return known->second;
  }

  fs::path home_;
  int rank_;
  std::map<std::string, Writing> writing_;
  mutable std::map<std::string, RunLines> loaded_;
};

}  // namespace

fs::path lines_file(const fs::path& home, const std::string& run, int rank) {
  return run_folder(home, run) / (rank < 0 ? std::string("run.jsonl") : fmt::format("rank-{:05}.jsonl", rank));
}

fs::path spans_file(const fs::path& home, const std::string& run, int rank) {
  return lines_file(home, run, rank).replace_extension(".spans.jsonl");
}

std::unique_ptr<RunStore> make_json_lines_run_store(const fs::path& home, int rank) {
  return std::make_unique<RunFiles>(home, rank);
}

}  // namespace lockstep::telemetry
