#include <array>

#include "lockstep/base/text.h"
#include "lockstep/diagnose/foreign/files.h"
#include "lockstep/diagnose/foreign/pickle.h"
#include "lockstep/diagnose/foreign/source.h"

namespace lockstep::diagnose {
namespace {

bool has(std::string_view text, std::string_view piece) { return text.find(piece) != std::string_view::npos; }

template <std::size_t kCount>
bool has_one(std::string_view text, const std::array<std::string_view, kCount>& pieces) {
  for (const std::string_view piece : pieces) {
    if (has(text, piece)) return true;
  }
  return false;
}

FileKind kind_of_json(std::string_view text) {
  constexpr std::array<std::string_view, 5> kTrace = {"\"traceEvents\"", "\"deviceProperties\"", "\"schemaVersion\"",
                                                      "\"distributedInfo\"", "\"ph\""};
  constexpr std::array<std::string_view, 4> kDump = {"\"pg_config\"", "\"pg_status\"", "\"collective_seq_id\"",
                                                     "\"nccl_version\""};
  const bool dump = has_one(text, kDump), trace = has_one(text, kTrace);
  if (trace && (!dump || has(text, "\"traceEvents\"") || has(text, "\"schemaVersion\""))) return FileKind::kKineto;
  return dump ? FileKind::kFlightRecorder : FileKind::kUnknown;
}

FileKind kind_of_text(std::string_view text) {
  const std::string_view first = text.substr(0, text.find('\n'));
  if (has(first, "optype") && has(first, "start_ts") && has(first, ",")) return FileKind::kOperations;
  constexpr std::array<std::string_view, 3> kNccl = {"NCCL INFO", "NCCL WARN", "NCCL version"};
  if (has_one(text, kNccl)) return FileKind::kNcclLog;
  constexpr std::array<std::string_view, 6> kKernel = {"NVRM: ",          "SXid (PCI", "Linux version ",
                                                       "nvidia-nvswitch", " kernel: ", "Out of memory: Killed process"};
  if (has_one(text, kKernel)) return FileKind::kKernelLog;
  // Records of /dev/kmsg ("6,3964,206764307,-;text"), lines of dmesg ("[  206.764307] text"), fabric manager's.
  const bool record = !first.empty() && first[0] >= '0' && first[0] <= '7' && has(first, ",-;");
  const bool manager = first.starts_with("[") && has(first, "] [tid ");
  const std::size_t bracket = first.find("] ");
  const bool dmesg = first.starts_with("[") && bracket != std::string_view::npos && bracket < 30 &&
                     first.find_first_not_of(" .0123456789", 1) == bracket;
  return record || manager || dmesg ? FileKind::kKernelLog : FileKind::kUnknown;
}

}  // namespace

FileKind kind_of(const std::filesystem::path& path) {
  constexpr std::size_t kLooked = std::size_t{256} << 10;
  const std::string beginning = read_beginning(path, kLooked);
  const std::string_view text(beginning);
  if (text.starts_with("SQLite format 3")) return FileKind::kNsight;
  if (looks_like_pickle(text)) return FileKind::kFlightRecorder;
  const std::string_view plain = trim(text.substr(0, 4096));
  if (plain.starts_with("{") || (plain.starts_with("[") && has(plain.substr(0, 64), "{"))) return kind_of_json(text);
  if (has(text.substr(0, 4096), std::string_view("\0", 1))) return FileKind::kUnknown;
  return kind_of_text(text);
}

}  // namespace lockstep::diagnose
