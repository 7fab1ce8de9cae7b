#include "lockstep/cli/launch_follow.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <optional>
#include <thread>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/cli/show.h"
#include "lockstep/cli/signals.h"
#include "lockstep/telemetry/progress.h"
#include "lockstep/telemetry/recorder.h"
#include "lockstep/telemetry/run_store.h"

namespace lockstep::cli {
namespace {

using nlohmann::json;
using schedulers::Phase;
using schedulers::State;

constexpr auto kLookEvery = std::chrono::milliseconds(150);  // at the log
constexpr double kAskEvery = 1.0;         // the scheduler, at least; ten times as long as it takes to answer
constexpr double kPatienceSeconds = 2.0;  // for the last lines of a log, once the run is over
constexpr const char* kResultSchema = "lockstep.run/1";

std::filesystem::path file_of(const std::filesystem::path& folder) { return folder / "submission.json"; }

const char* name_of(Phase phase) {
  switch (phase) {
    case Phase::kQueued:
      return "queued";
    case Phase::kRunning:
      return "running";
    case Phase::kDone:
      return "done";
    case Phase::kFailed:
      return "failed";
    case Phase::kCancelled:
      return "cancelled";
  }
  return "";
}

int exit_code_of(const State& state) {
  if (state.exit_code) return *state.exit_code;
  if (state.phase == Phase::kDone) return 0;
  return static_cast<int>(state.phase == Phase::kCancelled ? ExitCode::kInterrupted : ExitCode::kRunFailed);
}

// The log above, one line of status below it that is rewritten in place on a terminal.
class Screen {
 public:
  explicit Screen(std::FILE* out) : out_(out), style_(telemetry::detect_style(out)) {}

  void print(const std::string& text) {
    erase();
    fmt::print(out_, "{}", text);
    draw();
  }

  void status(const std::string& text) {
    if (text == text_) return;
    text_ = text;
    if (!style_.live) fmt::print(out_, "lockstep: {}\n", text_);
    erase();
    draw();
    std::fflush(out_);
  }

  // The line as it last stood stays.
  void finish() {
    if (style_.live && on_line_) fmt::print(out_, "\n");
    on_line_ = false;
    std::fflush(out_);
  }

 private:
  void erase() {
    if (on_line_) fmt::print(out_, "\r\x1b[K");
    on_line_ = false;
  }
  void draw() {
    if (!style_.live || text_.empty()) return std::fflush(out_), void();
    fmt::print(out_, "{}", text_.substr(0, static_cast<std::size_t>(std::max(20, style_.width - 1))));
    on_line_ = true;
    std::fflush(out_);
  }

  std::FILE* out_;
  const telemetry::TerminalStyle style_;
  std::string text_;
  bool on_line_ = false;
};

// Whole lines of the log; the run's own result among them is kept back.
class Lines {
 public:
  std::string take(const std::string& text) {
    partial_ += text;
    std::string shown;
    for (std::size_t end; (end = partial_.find('\n')) != std::string::npos; partial_.erase(0, end + 1)) {
      const std::string line = partial_.substr(0, end + 1);
      if (!is_result(line)) shown += line;
    }
    return shown;
  }
  std::string rest() { return partial_.empty() ? "" : take("\n"); }
  json result;

 private:
  bool is_result(const std::string& line) {
    const std::size_t begin = line.find(std::string("{"));
    if (begin == std::string::npos || line.find(kResultSchema) == std::string::npos) return false;
    json parsed = json::parse(line.substr(begin), nullptr, false);
    if (!parsed.is_object() || parsed.value("schema", "") != kResultSchema) return false;
    result = std::move(parsed);
    return true;
  }
  std::string partial_;
};

class Follower {
 public:
  Follower(schedulers::Scheduler& scheduler, const Followed& followed, const FollowOptions& options)
      : scheduler_(scheduler),
        followed_(followed),
        options_(options),
        screen_(options.json && !options.only_log ? stderr : stdout),
        log_(scheduler.open_log(followed.submitted)) {}

  int run() {
    survive_closed_pipes();
    count_stop_signals(SecondSignal::kCounts);
    while (true) {
      look();
      if (state_.is_over()) return finish();
      if (stop_signals() > asked_ && obey(stop_signals())) {
        screen_.finish();
        return static_cast<int>(ExitCode::kInterrupted);
      }
      std::this_thread::sleep_for(kLookEvery);
    }
  }

 private:
  void look() {
    show_log();
    const double now = monotonic_seconds();
    if (now < next_ask_) return;
    state_ = scheduler_.state(followed_.submitted);
    next_ask_ = now + std::max(kAskEvery, 10.0 * (monotonic_seconds() - now));
    std::string line = fmt::format("{} {}: {}", followed_.on, followed_.submitted.id, name_of(state_.phase));
    if (!state_.detail.empty()) line += ", " + printable(state_.detail, 200);
    if (state_.starts > 0)
      line += fmt::format(", started again {} {}", state_.starts, state_.starts == 1 ? "time" : "times");
    if (!options_.only_log) screen_.status(line);
  }

  void show_log() {
    const std::string shown = lines_.take(log_->read());
    if (!shown.empty()) screen_.print(shown);
  }

  // Whether to leave now.
  bool obey(int asked) {
    asked_ = asked;
    const bool cancels = options_.cancel_on_interrupt || scheduler_.ends_with_submitter();
    if (cancels && asked == 1) {
      screen_.print("lockstep: cancelling; the run saves first. Once more to not wait for it\n");
      scheduler_.cancel(followed_.submitted);
      return false;
    }
    if (!cancels) {
      const std::string& run = followed_.submitted.run;
      screen_.print(
          fmt::format("lockstep: the run goes on. Follow it: lockstep launch --attach {0}; end it: lockstep "
                      "launch --cancel {0}\n",
                      run));
    }
    return true;
  }

  int finish() {
    const double until = monotonic_seconds() + kPatienceSeconds;
    while (lines_.result.is_null() && monotonic_seconds() < until) {
      show_log();
      std::this_thread::sleep_for(kLookEvery);
    }
    show_log();
    const std::string rest = lines_.rest();
    if (!rest.empty()) screen_.print(rest);
    screen_.finish();
    const int code = exit_code_of(state_);
    if (options_.only_log) return code;
    record_end(code);
    json last = lines_.result;
    if (last.is_null()) {
      last = {{"schema", kResultSchema}, {"run", followed_.submitted.run}, {"status", name_of(state_.phase)}};
    }
    last["submission"] = {{"on", followed_.on}, {"id", followed_.submitted.id}};
    last["exit_code"] = code;
    if (options_.json) {
      fmt::print("{}\n", last.dump(-1, ' ', false, json::error_handler_t::replace));
    } else {
      if (lines_.result.contains("steps")) show_run_summary(stdout, lines_.result);
      const bool stopped =
          code == static_cast<int>(ExitCode::kInterrupted) || code == static_cast<int>(ExitCode::kRetry);
      if (stopped && lines_.result.contains("steps")) {
        fmt::print("\nNext: the same command with --resume goes on from the checkpoint\n");
      } else if (followed_.recorded) {
        fmt::print("\nNext: lockstep report {}\n", followed_.submitted.run);
      }
    }
    return code;
  }

  // Where the nodes write to another store than this one, nobody else ends the run here.
  void record_end(int code) {
    if (!followed_.recorded) return;
    const std::filesystem::path home = telemetry::home_directory();
    const auto row = telemetry::open_run_store(home)->find(followed_.submitted.run);
    if (row && row->status != telemetry::RunStatus::kRunning && row->status != telemetry::RunStatus::kLost) return;
    const auto recorder = telemetry::open_recorder(home, followed_.submitted.run, -1);
    const bool stopped = code == static_cast<int>(ExitCode::kInterrupted) || code == static_cast<int>(ExitCode::kRetry);
    recorder->end_run(
        code == 0 ? telemetry::RunStatus::kDone
        : stopped ? telemetry::RunStatus::kInterrupted
                  : telemetry::RunStatus::kFailed,
        code == 0 ? ""
                  : std::string(trim(fmt::format("{}: {} {}", followed_.on, name_of(state_.phase), state_.detail))),
        lines_.result.is_null() ? json::object() : lines_.result);
    recorder->flush(10.0);
  }

  schedulers::Scheduler& scheduler_;
  const Followed& followed_;
  const FollowOptions options_;
  Screen screen_;
  const std::unique_ptr<schedulers::LogSource> log_;
  Lines lines_;
  State state_;
  double next_ask_ = 0.0;
  int asked_ = 0;
};

}  // namespace

void save(const Followed& followed) {
  write_file_atomically(file_of(followed.submitted.folder), json{{"schema", "lockstep.submitted/1"},
                                                                 {"on", followed.on},
                                                                 {"id", followed.submitted.id},
                                                                 {"run", followed.submitted.run},
                                                                 {"name", followed.name},
                                                                 {"recorded", followed.recorded},
                                                                 {"place", followed.submitted.place}}
                                                                .dump(1));
}

Followed load_followed(const std::string& run) {
  const std::filesystem::path home = telemetry::home_directory();
  const auto row = telemetry::open_run_store(home)->find(run);
  const std::filesystem::path folder = telemetry::run_folder(home, row ? row->info.id : run);
  if (run.find('/') != std::string::npos || !std::filesystem::exists(file_of(folder))) {
    throw bad_input(fmt::format("{} was not submitted from here", printable(run)),
                    "`lockstep launch --on ...` prints the run's id");
  }
  const json value = json::parse(read_file(file_of(folder)), nullptr, false);
  if (!value.is_object() || value.value("schema", "") != "lockstep.submitted/1") {
    throw bad_input(printable_path(file_of(folder)) + " cannot be read", "remove the folder; the run itself goes on");
  }
  return {value.value("on", ""),
          {value.value("id", ""), value.value("run", ""), folder, value.value("place", json::object())},
          value.value("name", ""),
          value.value("recorded", true)};
}

int follow(schedulers::Scheduler& scheduler, const Followed& followed, const FollowOptions& options) {
  return Follower(scheduler, followed, options).run();
}

}  // namespace lockstep::cli
