// Records of a node on their way to the one that leads, for a run that ended before its ranks could bring them together
// themselves (engine/gather_records.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::elastic {

// On the node that has them: what its ranks wrote, newest lines first to be kept where there is too much.
class NodeRecords {
 public:
  // `folder`: of the run, on this node. `world`: ranks, which share what may travel.
  NodeRecords(const std::filesystem::path& folder, int world);

  // {"rank", "text"}, whole lines; nothing: that was all.
  std::optional<nlohmann::json> next();

 private:
  std::vector<std::filesystem::path> files_;  // that are left
  std::int64_t most_bytes_;                   // of one
  int rank_ = 0;
  std::string text_;  // of it, what is left
};

// On the node that leads: adds such a piece to runs/<run>/rank-00003.node-1.jsonl of `home`, where readers find it.
// Lines that are no records of this run are left out. Throws UserError (environment) when it cannot be written.
void keep_records(const std::filesystem::path& home, const std::string& run, int node, const nlohmann::json& piece);

}  // namespace lockstep::elastic
