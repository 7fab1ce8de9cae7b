#include "lockstep/diagnose/foreign/nsight.h"

#include <fmt/format.h>
#include <sqlite3.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <unordered_map>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/diagnose/foreign/source.h"

namespace lockstep::diagnose {
namespace {

namespace fs = std::filesystem;

// A SQLite file that somebody else wrote: read only, never a journal beside it.
class Export {
 public:
  Export(const fs::path& path, std::string name) : name_(std::move(name)) {
    std::string uri = "file:";
    for (const char c : fs::absolute(path).string()) {
      if (c == '?' || c == '#' || c == '%') {
        uri += fmt::format("%{:02x}", static_cast<unsigned char>(c));
      } else {
        uri += c;
      }
    }
    sqlite3* handle = nullptr;
    const int code =
        sqlite3_open_v2((uri + "?immutable=1").c_str(), &handle, SQLITE_OPEN_READONLY | SQLITE_OPEN_URI, nullptr);
    handle_.reset(handle);
    check(code);
  }

  void check(int code) const {
    if (code == SQLITE_OK || code == SQLITE_ROW || code == SQLITE_DONE) return;
    const std::string reason = handle_ ? sqlite3_errmsg(handle_.get()) : sqlite3_errstr(code);
    throw bad_input(printable(name_) + ": not a whole Nsight Systems export: " + printable(reason, 200),
                    "export it again: nsys export --type sqlite");
  }

  // Calls row(statement) for every row.
  template <class Row>
  void each(const std::string& sql, Row&& row) const {
    sqlite3_stmt* raw = nullptr;
    check(sqlite3_prepare_v2(handle_.get(), sql.c_str(), -1, &raw, nullptr));
    const std::unique_ptr<sqlite3_stmt, int (*)(sqlite3_stmt*)> statement(raw, sqlite3_finalize);
    int code = SQLITE_OK;
    while ((code = sqlite3_step(raw)) == SQLITE_ROW) row(raw);
    check(code);
  }

  // Names of the columns of a table; none: it is not there.
  std::set<std::string> columns(const std::string& table) const {
    std::set<std::string> found;
    each("PRAGMA table_info(" + table + ")",
         [&](sqlite3_stmt* row) { found.insert(reinterpret_cast<const char*>(sqlite3_column_text(row, 1))); });
    return found;
  }

 private:
  struct Close {
    void operator()(sqlite3* handle) const { sqlite3_close_v2(handle); }
  };
  std::string name_;
  std::unique_ptr<sqlite3, Close> handle_;
};

std::string text_at(sqlite3_stmt* row, int column) {
  const auto* text = reinterpret_cast<const char*>(sqlite3_column_text(row, column));
  return text == nullptr ? "" : text;
}

// "step 12", "iteration_3", "train_step#7".
bool is_step(std::string_view name) {
  const std::string lower = to_lower(name);
  const std::size_t digit = lower.find_first_of("0123456789");
  if (digit == std::string::npos || lower.find_first_not_of("0123456789", digit) != std::string::npos) return false;
  const std::string_view word = trim(std::string_view(lower).substr(0, digit));
  for (const std::string_view known : {"step", "iter", "iteration", "train_step", "training_step", "profilerstep"}) {
    if (word.substr(0, word.find_last_not_of(" _#:") + 1) == known) return true;
  }
  return false;
}

constexpr std::int64_t kProcessMask = ~std::int64_t{0xffffff};  // of a global thread: the process

class NsightReader {
 public:
  NsightReader(const fs::path& path, const std::string& name) : export_(path, name), name_(name) {}

  std::vector<Trace> read() {
    read_strings();
    read_calls();
    const bool any = read_work("CUPTI_ACTIVITY_KIND_KERNEL", WorkTable::kKernel) |
                     read_work("CUPTI_ACTIVITY_KIND_MEMCPY", WorkTable::kCopy) |
                     read_work("CUPTI_ACTIVITY_KIND_MEMSET", WorkTable::kFill);
    if (!any) {
      throw bad_input(printable(name_) + " holds no work of a GPU", "record with nsys profile --trace=cuda,nvtx");
    }
    read_ranges();
    read_device_names();
    return finish();
  }

 private:
  enum class WorkTable { kKernel, kCopy, kFill };
  struct CallKey {
    std::int64_t process = 0;
    std::int64_t correlation = 0;
    bool operator==(const CallKey&) const = default;
  };
  struct CallHash {
    std::size_t operator()(const CallKey& key) const {
      return std::hash<std::int64_t>{}(key.process * 1'000'003 + key.correlation);
    }
  };

  void read_strings() {
    if (export_.columns("StringIds").empty()) return;
    export_.each("SELECT id, value FROM StringIds",
                 [&](sqlite3_stmt* row) { strings_[sqlite3_column_int64(row, 0)] = text_at(row, 1); });
  }

  const std::string& string_of(std::int64_t id) const {
    static const std::string kUnknown = "unknown";
    const auto found = strings_.find(id);
    return found == strings_.end() ? kUnknown : found->second;
  }

  // The first of the columns that is there, or `otherwise`.
  static std::string pick(const std::set<std::string>& columns, std::initializer_list<const char*> names,
                          const char* otherwise) {
    for (const char* const name : names) {
      if (columns.contains(name)) return name;
    }
    return otherwise;
  }

  void read_calls() {
    const std::set<std::string> columns = export_.columns("CUPTI_ACTIVITY_KIND_RUNTIME");
    if (!columns.contains("start") || !columns.contains("end") || !columns.contains("correlationId")) return;
    const std::string sql = fmt::format("SELECT start, \"end\", correlationId, {}, {} FROM CUPTI_ACTIVITY_KIND_RUNTIME",
                                        pick(columns, {"nameId"}, "-1"), pick(columns, {"globalTid"}, "0"));
    export_.each(sql, [&](sqlite3_stmt* row) {
      const Interval time{sqlite3_column_int64(row, 0), sqlite3_column_int64(row, 1)};
      const std::int64_t thread = sqlite3_column_int64(row, 4);
      calls_[{thread & kProcessMask, sqlite3_column_int64(row, 2)}] = time;
      const std::string& name = string_of(sqlite3_column_int64(row, 3));
      const HostWork work = meaning_of_call(name);
      if (work != HostWork::kNothing) host_.push_back({time, pool_.add(name), thread, kNone, work});
    });
  }

  bool read_work(const std::string& table, WorkTable kind) {
    const std::set<std::string> columns = export_.columns(table);
    if (!columns.contains("start") || !columns.contains("end")) return false;
    const std::string name = kind == WorkTable::kKernel ? pick(columns, {"shortName", "demangledName", "nameId"}, "-1")
                             : kind == WorkTable::kCopy ? pick(columns, {"copyKind"}, "0")
                                                        : std::string("0");
    const std::string sql =
        fmt::format("SELECT start, \"end\", {}, {}, {}, {}, {} FROM {}", pick(columns, {"deviceId"}, "0"),
                    pick(columns, {"streamId"}, "0"), pick(columns, {"correlationId"}, "-1"),
                    pick(columns, {"globalPid"}, "0"), name, table);
    bool any = false;
    export_.each(sql, [&](sqlite3_stmt* row) {
      any = true;
      DeviceSlice slice;
      slice.time = {sqlite3_column_int64(row, 0), sqlite3_column_int64(row, 1)};
      slice.device = sqlite3_column_int(row, 2);
      slice.stream = sqlite3_column_int(row, 3);
      const std::int64_t process = sqlite3_column_int64(row, 5) & kProcessMask;
      const auto call = calls_.find({process, sqlite3_column_int64(row, 4)});
      if (call != calls_.end()) slice.launch = call->second;
      describe(slice, kind, sqlite3_column_int64(row, 6));
      processes_[slice.device].insert(process);
      work_.push_back(slice);
    });
    return any;
  }

  // `detail`: the name of a kernel, or the kind of a copy as CUPTI counts them.
  void describe(DeviceSlice& slice, WorkTable kind, std::int64_t detail) {
    if (kind == WorkTable::kFill) {
      slice.work = Work::kFill;
      slice.name = pool_.add("Memset");
    } else if (kind == WorkTable::kCopy) {
      slice.work = detail == 1    ? Work::kCopyIn
                   : detail == 2  ? Work::kCopyOut
                   : detail == 10 ? Work::kCommunication
                                  : Work::kCopy;
      slice.name = pool_.add(std::string("Memcpy ") + to_string(slice.work));
    } else {
      const std::string& name = string_of(detail);
      slice.name = pool_.add(name);
      slice.work = is_communication(name) ? Work::kCommunication : Work::kCompute;
    }
  }

  void read_ranges() {
    const std::set<std::string> columns = export_.columns("NVTX_EVENTS");
    if (!columns.contains("start") || !columns.contains("end")) return;
    const std::string sql = fmt::format("SELECT start, \"end\", {}, {}, {} FROM NVTX_EVENTS WHERE \"end\" IS NOT NULL",
                                        pick(columns, {"text"}, "NULL"), pick(columns, {"textId"}, "NULL"),
                                        pick(columns, {"globalTid"}, "0"));
    std::vector<HostSlice> steps;
    export_.each(sql, [&](sqlite3_stmt* row) {
      const bool by_id = sqlite3_column_type(row, 2) == SQLITE_NULL;
      const std::string text = by_id ? string_of(sqlite3_column_int64(row, 3)) : text_at(row, 2);
      HostSlice slice{{sqlite3_column_int64(row, 0), sqlite3_column_int64(row, 1)},
                      0,
                      sqlite3_column_int64(row, 4),
                      kNone,
                      meaning_of_annotation(text)};
      if (slice.work == HostWork::kNothing && is_step(text)) slice.work = HostWork::kStep;
      if (slice.work == HostWork::kNothing || slice.work == HostWork::kCollective) return;
      slice.name = pool_.add(text);
      (slice.work == HostWork::kStep ? steps : host_).push_back(slice);
    });
    if (steps.size() > 1) host_.insert(host_.end(), steps.begin(), steps.end());
  }

  void read_device_names() {
    const std::set<std::string> columns = export_.columns("TARGET_INFO_GPU");
    if (!columns.contains("id") || !columns.contains("name")) return;
    export_.each("SELECT id, name FROM TARGET_INFO_GPU",
                 [&](sqlite3_stmt* row) { device_names_[sqlite3_column_int(row, 0)] = text_at(row, 1); });
  }

  std::vector<Trace> finish() {
    const std::vector<std::string> names = pool_.take();
    std::map<int, Trace> by_device;
    for (const DeviceSlice& slice : work_) by_device[slice.device].work.push_back(slice);
    std::vector<Trace> traces;
    for (auto& [device, trace] : by_device) {
      trace.file = name_;
      trace.kind = "nsight";
      trace.rank = device;
      trace.world = static_cast<int>(by_device.size());
      trace.names = names;
      if (device_names_.contains(device)) trace.device_names[device] = device_names_[device];
      const std::set<std::int64_t>& own = processes_[device];
      for (const HostSlice& slice : host_) {
        if (own.contains(slice.thread & kProcessMask) || own.contains(0)) trace.host.push_back(slice);
      }
      put_in_order(trace);
      traces.push_back(std::move(trace));
    }
    return traces;
  }

  Export export_;
  const std::string& name_;
  NamePool pool_;
  std::unordered_map<std::int64_t, std::string> strings_;
  std::unordered_map<CallKey, Interval, CallHash> calls_;
  std::vector<DeviceSlice> work_;
  std::vector<HostSlice> host_;
  std::map<int, std::set<std::int64_t>> processes_;  // that work on a device
  std::map<int, std::string> device_names_;
};

bool is_packed(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  char magic[2] = {0, 0};
  return file.read(magic, 2) && magic[0] == '\x1f' && magic[1] == '\x8b';
}

void unpack(const fs::path& from, const fs::path& to) {
  const auto source = open_source(from);
  std::ofstream file(to, std::ios::binary);
  std::vector<char> piece(std::size_t{1} << 20);
  while (const std::size_t got = source->read(piece.data(), piece.size())) {
    file.write(piece.data(), static_cast<std::streamsize>(got));
  }
  file.flush();
  if (!file)
    throw environment_error(printable_path(from) + " cannot be unpacked into " + printable_path(to.parent_path()),
                            "set TMPDIR to a folder with room");
}

}  // namespace

std::vector<Trace> read_nsight(const fs::path& path) {
  const std::string name = path.string();
  if (!is_packed(path)) return NsightReader(path, name).read();
  const TemporaryFolder folder("lockstep-nsight");
  unpack(path, folder.path() / "export.sqlite");
  return NsightReader(folder.path() / "export.sqlite", name).read();
}

}  // namespace lockstep::diagnose
