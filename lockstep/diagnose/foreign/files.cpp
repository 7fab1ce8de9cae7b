#include "lockstep/diagnose/foreign/files.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/json.h"
#include "lockstep/diagnose/foreign/diff.h"
#include "lockstep/diagnose/foreign/flight_recorder.h"
#include "lockstep/diagnose/foreign/kernel_logs.h"
#include "lockstep/diagnose/foreign/kineto.h"
#include "lockstep/diagnose/foreign/nccl_log.h"
#include "lockstep/diagnose/foreign/nsight.h"
#include "lockstep/diagnose/foreign/operations_csv.h"
#include "lockstep/diagnose/foreign/pickle.h"
#include "lockstep/diagnose/foreign/source.h"
#include "lockstep/diagnose/foreign/trace_findings.h"

namespace lockstep::diagnose {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostFiles = 100'000;
constexpr std::uint64_t kLargestText = std::uint64_t{4} << 30;
constexpr std::uint64_t kLargestDump = std::uint64_t{512} << 20;
constexpr const char* kKnownKinds =
    "read are: PyTorch profiler traces, Nsight Systems sqlite exports, NCCL_DEBUG=INFO logs, flight-recorder dumps, "
    "kernel "
    "logs, operation traces (CSV)";

struct Input {
  fs::path path;
  FileKind kind = FileKind::kUnknown;
};

void add_folder(const fs::path& folder, std::vector<Input>& inputs) {
  std::vector<fs::path> inside;
  std::error_code error;
  for (fs::recursive_directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    if (at->is_regular_file(error) && at->path().filename().string().front() != '.') inside.push_back(at->path());
    if (inside.size() > kMostFiles) {
      throw bad_input(fmt::format("{} holds more than {} files", printable_path(folder), kMostFiles),
                      "give a smaller folder");
    }
  }
  if (error) throw environment_error(fmt::format("{} cannot be read: {}", printable_path(folder), error.message()));
  std::ranges::sort(inside);
  bool any = false;
  for (const fs::path& path : inside) {
    const FileKind kind = kind_of(path);
    if (kind == FileKind::kUnknown) continue;  // notes, scripts
    inputs.push_back({path, kind});
    any = true;
  }
  if (!any) throw bad_input(printable_path(folder) + " holds no file of a known kind", kKnownKinds);
}

std::vector<Input> inputs_of(const std::vector<fs::path>& paths) {
  std::vector<Input> inputs;
  for (const fs::path& path : paths) {
    std::error_code error;
    const fs::file_status status = fs::status(path, error);
    if (!fs::exists(status)) throw environment_error(printable_path(path) + " is not there");
    if (fs::is_directory(status)) {
      add_folder(path, inputs);
      continue;
    }
    const FileKind kind = kind_of(path);
    if (kind == FileKind::kUnknown) throw bad_input(printable_path(path) + " is not of a known kind", kKnownKinds);
    inputs.push_back({path, kind});
  }
  return inputs;
}

RankDump read_dump(const fs::path& path) {
  const std::string name = path.string();
  const std::string bytes = read_all(*open_source(path), name, kLargestDump);
  const bool pickled = looks_like_pickle(bytes);
  return read_flight_recorder(pickled ? read_pickle(bytes, name) : parse_json(bytes, name), name);
}

class Reading {
 public:
  Diagnosis diagnose(const std::vector<Input>& inputs) {
    for (const Input& input : inputs) read(input);
    append(trace_findings(traces_));
    for (const auto& [folder, dumps] : dumps_) append(hang_findings(dumps));
    settle(diagnosis_);
    return std::move(diagnosis_);
  }

 private:
  void read(const Input& input) {
    const std::string name = input.path.string();
    int ranks = 1;
    switch (input.kind) {
      case FileKind::kKineto:
        traces_.push_back(read_kineto(*open_source(input.path), name));
        break;
      case FileKind::kFlightRecorder:
        dumps_[input.path.parent_path().string()].push_back(read_dump(input.path));
        break;
      case FileKind::kNsight:
        ranks = add_devices(read_nsight(input.path));
        break;
      case FileKind::kOperations:
        ranks = read_stragglers(input.path);
        break;
      case FileKind::kNcclLog: {
        const NcclLog log = read_nccl_log(read_all(*open_source(input.path), name, kLargestText));
        append(nccl_findings(log));
        ranks = std::max(1, static_cast<int>(log.hosts.size()));
        break;
      }
      case FileKind::kKernelLog:
        append(kernel_log_findings(read_all(*open_source(input.path), name, kLargestText)));
        break;
      case FileKind::kUnknown:
        break;
    }
    diagnosis_.read.push_back({name, to_string(input.kind), ranks});
  }

  int add_devices(std::vector<Trace> traces) {
    const auto count = static_cast<int>(traces.size());
    std::ranges::move(traces, std::back_inserter(traces_));
    return count;
  }

  // How many ranks it tells of.
  int read_stragglers(const fs::path& path) {
    const std::string name = path.string();
    const StragglerFigures figures =
        straggler_figures(read_operations(read_all(*open_source(path), name, kLargestText), name));
    append(straggler_findings(figures));
    return static_cast<int>(figures.workers.size());
  }

  void append(std::vector<Finding> found) {
    diagnosis_.findings.insert(diagnosis_.findings.end(), std::make_move_iterator(found.begin()),
                               std::make_move_iterator(found.end()));
  }

  Diagnosis diagnosis_;
  std::vector<Trace> traces_;
  std::map<std::string, std::vector<RankDump>> dumps_;  // by folder
};

}  // namespace

DiagnosisDiff diff_files(const fs::path& before, const fs::path& after) {
  std::vector<Trace> sides[2];
  const fs::path* const paths[2] = {&before, &after};
  for (int side = 0; side < 2; ++side) {
    for (const Input& input : inputs_of({*paths[side]})) {
      if (input.kind == FileKind::kKineto) {
        sides[side].push_back(read_kineto(*open_source(input.path), input.path.string()));
      } else if (input.kind == FileKind::kNsight) {
        std::ranges::move(read_nsight(input.path), std::back_inserter(sides[side]));
      }
    }
    if (sides[side].empty()) {
      throw bad_input(printable_path(*paths[side]) + " holds no profile to compare",
                      "give traces of the PyTorch profiler or exports of Nsight Systems");
    }
  }
  DiagnosisDiff diff = diff_traces(sides[0], sides[1]);
  diff.before = before.string();
  diff.after = after.string();
  return diff;
}

Diagnosis diagnose_files(const std::vector<fs::path>& paths) { return Reading().diagnose(inputs_of(paths)); }

}  // namespace lockstep::diagnose
