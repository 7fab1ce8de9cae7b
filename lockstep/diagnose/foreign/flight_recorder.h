// Dumps of torch's flight recorder (TORCH_NCCL_TRACE_BUFFER_SIZE): which collectives were under way on each rank when
// the job hung, and so which ranks the others wait for.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/diagnose/diagnosis.h"

namespace lockstep::diagnose {

struct RecordedOp {
  std::string group;           // unique name of the process group
  std::string description;     // "TENSOR_MODEL_PARALLEL_GROUP"
  int group_id = -1;           // the rank's own number for it, of pg_status
  std::int64_t sequence = -1;  // among the collectives of the group, or among its sends and receives
  bool point_to_point = false;
  std::string op;     // "all_to_all", "send 0->1"
  std::string shape;  // "[2048, 5120] BFloat16"
  bool done = false;
  std::int64_t record = 0;       // order on the rank
  std::int64_t created_ns = -1;  // -1: not told
};

struct RankDump {
  int rank = -1;
  std::string file;
  std::vector<RecordedOp> ops;                     // by record
  std::map<std::string, std::vector<int>> groups;  // members
  std::map<int, std::int64_t> last_enqueued;       // by the rank's own number of the group
};

// What a dump says; `document` comes from read_pickle or from JSON. The rank is told by the document, or else by the
// number at the end of the file's name. Throws UserError (exit 2).
RankDump read_flight_recorder(const nlohmann::json& document, const std::string& file);

// Whether the document is one.
bool is_flight_recorder(const nlohmann::json& document);

// The ranks that are waited for. No finding when every collective under way has all its members.
std::vector<Finding> hang_findings(const std::vector<RankDump>& dumps);

}  // namespace lockstep::diagnose
