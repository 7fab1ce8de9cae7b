#include "lockstep/telemetry/import_lines.h"

#include <algorithm>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/telemetry/lines_file.h"

namespace lockstep::telemetry {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> files_in(const fs::path& path) {
  std::error_code missing;
  if (!fs::is_directory(path, missing)) return {path};
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(path, missing)) {
    if (entry.path().extension() == ".jsonl") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  // The run itself first, so that its world is known when the ranks' records are packed.
  std::stable_partition(files.begin(), files.end(),
                        [](const fs::path& file) { return file.filename() == "run.jsonl"; });
  if (files.empty()) throw bad_input("no *.jsonl file is in this folder", "name a run's folder", {path.string()});
  return files;
}

}  // namespace

std::map<std::string, std::int64_t> import_lines(const fs::path& path, RunStore& store) {
  constexpr std::size_t kAtOnce = 1024;
  std::map<std::string, std::int64_t> counts;
  std::string run;
  std::vector<Record> batch;
  const auto write = [&] {
    if (batch.empty()) return;
    store.write(run, batch);
    counts[run] += static_cast<std::int64_t>(batch.size());
    batch.clear();
  };
  for (const fs::path& file : files_in(path)) {
    read_lines(file, [&](const std::string& line, const SourcePlace& place) {
      try {
        ParsedLine parsed = parse_json_line(line);
        if (parsed.run != run || batch.size() >= kAtOnce) write();
        run = parsed.run;
        batch.push_back(std::move(parsed.record));
      } catch (const UserError& error) {
        if (error.code() != ExitCode::kUsage) throw;
        throw bad_input(error.what(), "only JSON lines of runs can be imported", place);
      }
    });
    write();
  }
  return counts;
}

}  // namespace lockstep::telemetry
