#include "lockstep/diagnose/foreign/flight_recorder.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::diagnose {
namespace {

using nlohmann::json;

constexpr int kMostRanks = 1 << 22;

std::int64_t integer_of(const json& object, const char* key, std::int64_t fallback) {
  const auto found = object.find(key);
  if (found == object.end()) return fallback;
  if (found->is_number_integer()) return found->get<std::int64_t>();
  if (found->is_number_float()) {
    const double value = found->get<double>();
    return value > -9e18 && value < 9e18 ? static_cast<std::int64_t>(value) : fallback;
  }
  return fallback;
}

std::string text_of(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

// "[0, 1, 2]" as text, or an array.
std::vector<int> ranks_of(const json& value) {
  std::vector<int> ranks;
  if (value.is_array()) {
    for (const json& one : value) {
      if (one.is_number_integer() && one.get<std::int64_t>() >= 0 && one.get<std::int64_t>() < kMostRanks) {
        ranks.push_back(one.get<int>());
      }
    }
  } else if (value.is_string()) {
    const std::string text = value.get<std::string>();
    for (std::size_t at = 0; at < text.size();) {
      int rank = 0;
      const auto [stop, error] = std::from_chars(text.data() + at, text.data() + text.size(), rank);
      if (error == std::errc() && rank >= 0 && rank < kMostRanks) {
        ranks.push_back(rank);
        at = static_cast<std::size_t>(stop - text.data());
      } else {
        ++at;
      }
    }
  }
  return ranks;
}

std::string shape_of(const json& entry) {
  const auto sizes = entry.find("input_sizes");
  const auto types = entry.find("input_dtypes");
  if (sizes == entry.end() || !sizes->is_array() || sizes->empty()) return "";
  std::string text = sizes->front().dump(-1, ' ', false, json::error_handler_t::replace);
  if (types != entry.end() && types->is_array() && !types->empty() && types->front().is_string()) {
    text += " " + types->front().get<std::string>();
  }
  return printable(text, 80);
}

RecordedOp op_of(const json& entry) {
  RecordedOp op;
  if (const auto group = entry.find("process_group"); group != entry.end() && group->is_array() && !group->empty()) {
    const json& name = group->front();
    op.group = name.is_string() ? name.get<std::string>() : name.dump();
    if (group->size() > 1 && (*group)[1].is_string()) op.description = (*group)[1].get<std::string>();
  }
  op.group_id = static_cast<int>(integer_of(entry, "pg_id", -1));
  if (op.group.empty()) op.group = std::to_string(op.group_id);
  const auto flag = entry.find("is_p2p");
  op.point_to_point = flag != entry.end() && flag->is_boolean() && flag->get<bool>();
  const std::int64_t collective = integer_of(entry, "collective_seq_id", integer_of(entry, "seq_id", -1));
  op.sequence = op.point_to_point ? integer_of(entry, "p2p_seq_id", collective) : collective;
  op.op = text_of(entry, "profiling_name");
  if (const std::size_t colon = op.op.find(':'); colon != std::string::npos && colon < 8) op.op.erase(0, colon + 1);
  op.shape = shape_of(entry);
  op.done = text_of(entry, "state") == "completed";
  op.record = integer_of(entry, "record_id", integer_of(entry, "id", 0));
  op.created_ns = integer_of(entry, "time_created_ns", -1);
  return op;
}

// The last number in the name of a file: "_dump_14", "nccl_trace_rank_3.json".
int rank_in_name(const std::string& file) {
  const std::string name = file.substr(file.find_last_of('/') + 1);
  const std::size_t end = name.find_last_of("0123456789");
  if (end == std::string::npos) return -1;
  std::size_t begin = end;
  while (begin > 0 && name[begin - 1] >= '0' && name[begin - 1] <= '9') --begin;
  int rank = -1;
  std::from_chars(name.data() + begin, name.data() + end + 1, rank);
  return rank < kMostRanks ? rank : -1;
}

}  // namespace

bool is_flight_recorder(const json& document) {
  return document.is_object() && document.contains("entries") && document["entries"].is_array() &&
         (document.contains("version") || document.contains("pg_config") || document.contains("pg_status"));
}

RankDump read_flight_recorder(const json& document, const std::string& file) {
  if (!is_flight_recorder(document)) {
    throw bad_input(printable(file) + " is not a dump of torch's flight recorder", "it needs `version` and `entries`");
  }
  RankDump dump;
  dump.file = file;
  dump.rank = static_cast<int>(integer_of(document, "rank", rank_in_name(file)));
  if (dump.rank < 0) {
    throw bad_input(printable(file) + ": which rank wrote it is told neither inside nor by its name",
                    "name it like dump_RANK");
  }
  for (const json& entry : document["entries"]) {
    if (entry.is_object()) dump.ops.push_back(op_of(entry));
  }
  std::ranges::stable_sort(dump.ops, {}, &RecordedOp::record);
  if (const auto groups = document.find("pg_config"); groups != document.end() && groups->is_object()) {
    for (const auto& [name, config] : groups->items()) {
      if (config.is_object() && config.contains("ranks")) dump.groups[name] = ranks_of(config["ranks"]);
    }
  }
  if (const auto status = document.find("pg_status"); status != document.end() && status->is_object()) {
    for (const auto& [id, state] : status->items()) {
      int number = -1;
      std::from_chars(id.data(), id.data() + id.size(), number);
      if (state.is_object()) dump.last_enqueued[number] = integer_of(state, "last_enqueued_collective", -1);
    }
  }
  return dump;
}

}  // namespace lockstep::diagnose
