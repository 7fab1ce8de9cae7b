// Event files that TensorBoard reads: written after the fact, or while a run goes on.
#pragma once

#include <filesystem>
#include <fstream>
#include <map>
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
  TensorBoardExport(std::filesystem::path folder, const telemetry::RunRow& run, ExportSelection selection);

  // Writes what the store has and was not written yet; returns how many points that were.
  std::size_t update(const telemetry::RunStore& store);
  const std::filesystem::path& folder() const { return folder_; }

 private:
  EventFile& file_of(int rank);

  std::filesystem::path folder_;
  std::string run_;
  double started_at_;
  ExportSelection selection_;
  std::map<int, EventFile> files_;                            // by rank
  std::map<std::pair<std::string, int>, std::int64_t> last_;  // step that was written, by metric and rank
};

}  // namespace lockstep::report
