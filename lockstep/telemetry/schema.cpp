#include "lockstep/telemetry/schema.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <cmath>
#include <ctime>
#include <fstream>
#include <limits>
#include <random>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/telemetry/lines_file.h"
#include "lockstep/telemetry/span_codec.h"

namespace lockstep::telemetry {
namespace {

using nlohmann::json;

constexpr const char* kLevels[] = {"debug", "info", "warning", "error"};
constexpr const char* kStatuses[] = {"running", "done", "failed", "interrupted", "lost"};
constexpr std::size_t kMaxIdName = 32;

template <class Enum, std::size_t N>
Enum parse_word(std::string_view text, const char* const (&words)[N], const char* what) {
  for (std::size_t i = 0; i < N; ++i) {
    if (text == words[i]) return static_cast<Enum>(i);
  }
  throw bad_input(std::string("unknown ") + what + " '" + printable(text) + "'",
                  did_you_mean(text, {std::begin(words), std::end(words)}));
}

// JSON has no NaN and no infinity; a loss may well be one.
json number(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

double to_number(const json& value) {
  if (value.is_number()) return value.get<double>();
  const auto& word = value.get_ref<const std::string&>();
  if (word == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (word == "inf") return std::numeric_limits<double>::infinity();
  if (word == "-inf") return -std::numeric_limits<double>::infinity();
  throw bad_input("'" + printable(word) + "' is not a number");
}

struct ToJson {
  json operator()(const RunInfo& info) const {
    return {{"type", "run"},
            {"name", info.name},
            {"started_at", info.started_at},
            {"world", info.world},
            {"backend", info.backend},
            {"host", info.host},
            {"pid", info.pid},
            {"pid_started", info.pid_started},
            {"job", info.job_yaml},
            {"versions", info.versions}};
  }
  json operator()(const PlanRecord& record) const { return {{"type", "plan"}, {"plan", record.plan}}; }
  json operator()(const MetricBatch& batch) const {
    json values = json::object();
    for (const Metric& metric : batch.metrics) values[metric.name] = number(metric.value);
    return {{"type", "metrics"}, {"rank", batch.rank}, {"step", batch.step}, {"time", batch.time}, {"values", values}};
  }
  json operator()(const SpanBatch& batch) const {
    json line = spans_to_json(batch);
    line.update({{"type", "spans"}, {"rank", batch.rank}, {"step", batch.step}, {"time", batch.time}});
    return line;
  }
  json operator()(const Event& event) const {
    return {{"type", "event"},    {"time", event.time}, {"level", to_string(event.level)}, {"kind", event.kind},
            {"rank", event.rank}, {"step", event.step}, {"message", event.message},        {"data", event.data}};
  }
  json operator()(const RunEnd& end) const {
    return {{"type", "end"},
            {"time", end.time},
            {"status", to_string(end.status)},
            {"exit_reason", end.exit_reason},
            {"summary", end.summary}};
  }
};

RunInfo run_info_from(const json& line) {
  return {line.at("run"),  line.at("name"), line.at("started_at"),  line.at("world"), line.at("backend"),
          line.at("host"), line.at("pid"),  line.at("pid_started"), line.at("job"),   line.at("versions")};
}

Record record_from(const json& line) {
  const auto type = line.at("type").get<std::string>();
  if (type == "run") return run_info_from(line);
  if (type == "plan") return PlanRecord{line.at("plan")};
  if (type == "metrics") {
    MetricBatch batch{line.at("rank"), line.at("step"), line.at("time"), {}};
    for (const auto& [name, value] : line.at("values").items()) batch.metrics.push_back({name, to_number(value)});
    return batch;
  }
  if (type == "spans") {
    SpanBatch batch{line.at("rank"), line.at("step"), line.at("time"), nullptr, {}};
    spans_from_json(line, batch);
    return batch;
  }
  if (type == "event") {
    return Event{line.at("time"), parse_level(line.at("level").get<std::string>()),
                 line.at("kind"), line.at("rank"),
                 line.at("step"), line.at("message"),
                 line.at("data")};
  }
  if (type == "end") {
    return RunEnd{line.at("time"), parse_status(line.at("status").get<std::string>()), line.at("exit_reason"),
                  line.at("summary")};
  }
  throw bad_input("unknown type of record '" + printable(type) + "'");
}

// Deep nesting would cost the stack when the value is copied.
bool nested_too_deeply(std::string_view text) {
  constexpr int kMaxNesting = 100;
  int depth = 0;
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && quoted) {
      ++i;
    } else if (text[i] == '"') {
      quoted = !quoted;
    } else if (!quoted && (text[i] == '{' || text[i] == '[')) {
      if (++depth > kMaxNesting) return true;
    } else if (!quoted && (text[i] == '}' || text[i] == ']')) {
      --depth;
    }
  }
  return false;
}

// Field 22 of /proc/PID/stat; 0 when there is no such process. The command in field 2 may hold spaces and ')'.
std::int64_t start_of_process(std::int64_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  if (!std::getline(file, text)) return 0;
  const std::size_t end = text.rfind(')');
  if (end == std::string::npos) return 0;
  const auto fields = split(std::string_view(text).substr(end + 1), ' ');  // "", state, ppid, ...
  constexpr std::size_t kStart = 20;
  return fields.size() > kStart ? std::atoll(fields[kStart].c_str()) : 0;
}

}  // namespace

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof(name) - 1) == 0 ? name : "unknown";
}

const char* to_string(Level level) { return kLevels[static_cast<int>(level)]; }
const char* to_string(RunStatus status) { return kStatuses[static_cast<int>(status)]; }
Level parse_level(std::string_view text) { return parse_word<Level>(text, kLevels, "level"); }
RunStatus parse_status(std::string_view text) { return parse_word<RunStatus>(text, kStatuses, "status"); }

std::string to_json_line(const std::string& run, const Record& record) {
  json line = std::visit(ToJson(), record);
  line["run"] = run;
  return one_line(line);
}

ParsedLine parse_json_line(std::string_view text) {
  if (nested_too_deeply(text)) throw bad_input("JSON nested too deeply");
  const json line = json::parse(text, nullptr, false);
  if (!line.is_object()) throw bad_input("not a JSON object");
  try {
    return {line.at("run"), record_from(line)};
  } catch (const json::exception& error) {
    throw bad_input(std::string("not a record of a run: ") + printable(error.what(), 200));
  }
}

std::string make_run_id(const std::string& name) {
  const auto now = static_cast<std::time_t>(unix_seconds());
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  std::string safe;
  for (const char c : name.substr(0, kMaxIdName)) {
    safe += std::isalnum(static_cast<unsigned char>(c)) || c == '_' ? c : '-';
  }
  std::random_device random;
  return fmt::format("{:04}{:02}{:02}-{:02}{:02}{:02}-{:06x}{}{}", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday,
                     utc.tm_hour, utc.tm_min, utc.tm_sec, random() & 0xffffffu, safe.empty() ? "" : "-", safe);
}

RunInfo describe_this_process(RunInfo info) {
  if (info.id.empty()) info.id = make_run_id(info.name);
  info.started_at = unix_seconds();
  info.host = host_name();
  info.pid = ::getpid();
  info.pid_started = start_of_process(info.pid);
  return info;
}

bool process_is_alive(const RunInfo& info) {
  if (info.pid <= 0 || info.host != host_name()) return true;
  if (::kill(static_cast<pid_t>(info.pid), 0) != 0 && errno == ESRCH) return false;
  return info.pid_started == 0 || start_of_process(info.pid) == info.pid_started;
}

RunStatus status_now(RunStatus written, const RunInfo& info) {
  return written == RunStatus::kRunning && !process_is_alive(info) ? RunStatus::kLost : written;
}

}  // namespace lockstep::telemetry
