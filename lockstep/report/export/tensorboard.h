// Event files that TensorBoard reads: written after the fact, or while a run goes on.
#pragma once

#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "lockstep/report/export/export.h"

namespace lockstep::report {

// One event file (records of TensorFlow: length, masked CRC-32C, protobuf). Throws UserError (environment).
class EventFile {
 public:
  // A new file in `folder`, which is made; `time` names it.
  EventFile(const std::filesystem::path& folder, double time);

  void scalar(const std::string& tag, const telemetry::Point& point);
  // TensorBoard forgets what this file said of `step` and later ones.
  void start_again(double time, std::int64_t step);
  void flush();
  const std::filesystem::path& path() const { return path_; }

 private:
  void record(const std::string& event);

  std::filesystem::path path_;
  std::ofstream file_;
};

// A run in `folder`: rank 0 in folder/<id>, rank 3 in folder/<id>/rank-00003, so that TensorBoard shows each rank as a
// run of its own. Characters that no id of ours has become '_'.
class TensorBoardExport {
 public:
  TensorBoardExport(const std::filesystem::path& folder, const telemetry::RunRow& run, ExportSelection selection);

  // Writes what the store has and was not written yet; returns how many points that were. Steps that were done again
  // (after a recovery, a rollback) are written again once the run is as far as it was before.
  std::size_t update(const telemetry::RunStore& store);
  const std::filesystem::path& folder() const { return folder_; }

 private:
  struct Written {
    std::int64_t step = 0;       // the last one
    std::optional<double> time;  // of its point
  };

  EventFile& file_of(int rank);
  void forget_repeated(const telemetry::RunStore& store);

  std::filesystem::path folder_;
  std::string run_;
  double started_at_;
  ExportSelection selection_;
  std::map<int, EventFile> files_;                       // by rank
  std::map<std::pair<int, std::string>, Written> last_;  // by rank and metric
};

}  // namespace lockstep::report
