#include "lockstep/elastic/node_records.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/telemetry/last_lines.h"
#include "lockstep/telemetry/lines_file.h"
#include "lockstep/telemetry/recorder.h"
#include "lockstep/telemetry/run_lines.h"
#include "lockstep/telemetry/schema.h"

namespace lockstep::elastic {
namespace {

constexpr std::int64_t kMostBytes = 256 << 20, kMostBytesOfRank = 4 << 20;  // of the run; of a file of a rank
constexpr std::size_t kPieceBytes = 256 << 10;
constexpr const char* kRank = "rank-";

bool is_of_run(const std::string& line, const std::string& run) {
  try {
    return telemetry::parse_json_line(line).run == run;
  } catch (const UserError&) {
    return false;
  }
}

}  // namespace

NodeRecords::NodeRecords(const std::filesystem::path& folder, int world)
    : most_bytes_(std::min(kMostBytesOfRank, kMostBytes / std::max(1, world))) {
  for (const std::filesystem::path& file : telemetry::lines_files_in(folder)) {
    const std::string name = file.filename().string();
    // Those of other nodes came from there.
    if (name.starts_with(kRank) && name.find(".node-") == std::string::npos) files_.push_back(file);
  }
}

std::optional<nlohmann::json> NodeRecords::next() {
  while (text_.empty()) {
    if (files_.empty()) return std::nullopt;
    const std::filesystem::path file = std::move(files_.back());
    files_.pop_back();
    rank_ = std::atoi(file.filename().c_str() + std::string_view(kRank).size());
    text_ = telemetry::last_lines(file, most_bytes_).text;
    text_.erase(text_.rfind('\n') + 1);  // what a kill cut short
  }
  std::size_t end = std::min(text_.size(), kPieceBytes);
  end = text_.rfind('\n', end - 1) + 1;
  if (end == 0) end = text_.find('\n') + 1;  // one long line
  nlohmann::json piece = {{"rank", rank_}, {"text", text_.substr(0, end)}};
  text_.erase(0, end);
  return piece;
}

void keep_records(const std::filesystem::path& home, const std::string& run, int node, const nlohmann::json& piece) {
  const int rank = piece.value("rank", -1);
  if (rank < 0) return;
  std::string kept;
  for (const std::string& line : split(piece.value("text", ""), '\n')) {
    if (!line.empty() && is_of_run(line, run)) kept += line + "\n";
  }
  if (kept.empty()) return;
  const std::filesystem::path folder = telemetry::run_folder(home, run);
  make_folders(folder);
  telemetry::LinesFile file(folder / fmt::format("{}{:05}.node-{}.jsonl", kRank, rank, node),
                            telemetry::LinesFile::Open::kEither);
  file.drop_torn_end();
  file.append(kept, false);
}

}  // namespace lockstep::elastic
