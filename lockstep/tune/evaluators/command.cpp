#include "lockstep/tune/evaluators/command.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/tune/evaluators/metric.h"
#include "lockstep/tune/evaluators/process.h"
#include "lockstep/tune/evaluators/template.h"
#include "lockstep/tune/objectives/objective.h"
#include "lockstep/tune/study/failure.h"

namespace lockstep::tune {
namespace {

constexpr double kGraceSeconds = 2;  // between SIGTERM and SIGKILL
constexpr double kMemoryLookSeconds = 0.2;

enum class Stop { kItself, kBudget, kHang, kMemory, kRacing, kUser };

// One program from start to end.
class Launch {
 public:
  Launch(const EvaluationRequest& request, const CommandOptions& options, const Stopwatch& watch)
      : request_(request), options_(options), watch_(watch), metric_(options.metric), tail_(log_file()) {
    for (const std::string& name : options.values) {
      if (name == kHostMemoryValue) {
        looks_at_memory_ = true;
      } else {
        value_readers_.emplace_back(name, MetricReader(name));
      }
    }
    looks_at_memory_ = looks_at_memory_ || options.memory_bytes > 0;
  }

  Measurement run(SpawnOptions spawn) {
    if (options_.own_folder) {
      folder_.emplace("lockstep-trial");
      for (std::string& argument : spawn.argv) make_absolute(argument);
      spawn.directory = folder_->path().string();
    }
    TrialProgram program = TrialProgram::start(std::move(spawn));
    out_ = LineReader(std::move(program.process().stdout_fd()));
    error_ = LineReader(std::move(program.process().stderr_fd()));
    last_output_ = watch_.seconds();
    const Stop stop = watch(program);
    const bool at_once = stop == Stop::kItself || stop == Stop::kMemory;
    const ExitStatus status = program.end(at_once ? 0.0 : grace());
    if (stop == Stop::kItself || stop == Stop::kBudget) read_output();  // what was printed on the way out
    return judge(stop, status);
  }

  const MetricReader& metric() const { return metric_; }

 private:
  std::filesystem::path log_file() const {
    return options_.logs.empty() ? "" : options_.logs / fmt::format("trial-{:04}.log", request_.trial);
  }

  // `train.py` must be found from another folder, too; `python3` is looked up in PATH.
  void make_absolute(std::string& argument) const {
    namespace fs = std::filesystem;
    const fs::path base = options_.directory.empty() ? fs::current_path() : fs::path(options_.directory);
    std::error_code ignored;
    if (!argument.empty() && fs::is_regular_file(base / argument, ignored)) argument = (base / argument).string();
  }

  double grace() const {
    if (request_.stop != nullptr && *request_.stop) return 1.0;
    if (request_.hard_seconds <= 0) return kGraceSeconds;
    return std::clamp(request_.hard_seconds - watch_.seconds(), 0.0, kGraceSeconds);
  }

  // Until the program ends or has to.
  Stop watch(TrialProgram& program) {
    double next_look = kMemoryLookSeconds;
    while (true) {
      const bool racing_says_go = read_output();
      if (program.process().poll() || (out_.fd() < 0 && error_.fd() < 0)) return await_end(program);
      if (request_.stop != nullptr && *request_.stop) return Stop::kUser;
      if (!racing_says_go) return Stop::kRacing;
      const double now = watch_.seconds();
      if (now >= request_.budget_seconds) return Stop::kBudget;
      if (options_.hang_seconds > 0 && now - last_output_ > options_.hang_seconds) return Stop::kHang;
      if (looks_at_memory_ && now >= next_look) {
        held_bytes_ = std::max(held_bytes_, program.memory_bytes());
        if (options_.memory_bytes > 0 && held_bytes_ > options_.memory_bytes) return Stop::kMemory;
        next_look = watch_.seconds() + kMemoryLookSeconds;
      }
      pollfd entries[2] = {{out_.fd(), POLLIN, 0}, {error_.fd(), POLLIN, 0}};
      const int wait = static_cast<int>(1000 * (request_.budget_seconds - now)) + 1;
      ::poll(entries, 2, std::clamp(wait, 1, 50));
    }
  }

  // It has closed its output, or is gone: the rest of what it printed, and its status, within the budget.
  Stop await_end(TrialProgram& program) {
    while (!program.process().wait(0.05)) {
      read_output();
      if (request_.stop != nullptr && *request_.stop) return Stop::kUser;
      if (watch_.seconds() >= request_.budget_seconds) return Stop::kBudget;
    }
    read_output();
    return Stop::kItself;
  }

  // False when racing wants to end it.
  bool read_output() {
    std::vector<std::string> lines;
    out_.read(lines);
    error_.read(lines);
    if (!lines.empty()) last_output_ = watch_.seconds();
    const std::int64_t before = samples_.seen();
    for (const std::string& line : lines) {
      tail_.add(line);
      for (const double value : metric_.read(line)) samples_.add(value);
      read_values(line);
    }
    if (samples_.seen() == before || !request_.keep_going) return true;
    return request_.keep_going(samples_.values());
  }

  void read_values(const std::string& line) {
    for (auto& [name, reader] : value_readers_) {
      for (const double value : reader.read(line)) {
        double& kept = values_[name];
        kept = name == kDeviceMemoryValue ? std::max(kept, value) : value;
      }
    }
  }

  Measurement judge(Stop stop, const ExitStatus& status) {
    Measurement measurement;
    measurement.samples = samples_.values();
    measurement.values = values_;
    if (held_bytes_ > 0) measurement.values[kHostMemoryValue] = held_bytes_;
    measurement.stopped_early = stop == Stop::kRacing;
    const bool enough = stop == Stop::kRacing || stop == Stop::kBudget || (stop == Stop::kItself && status.ok());
    if (enough && !measurement.samples.empty()) return measurement;
    measurement.samples.clear();
    const Failure failure = failure_of(stop, status);
    measurement.outcome = failure.outcome;
    measurement.message = failure.message;
    return measurement;
  }

  Failure failure_of(Stop stop, const ExitStatus& status) const {
    const std::string last = tail_.last().empty() ? "nothing was printed" : fmt::format("last line: {}", tail_.last());
    if (stop == Stop::kUser) return {Outcome::kCrash, "stopped"};
    if (stop == Stop::kMemory) {
      return {Outcome::kOutOfMemory, fmt::format("held more than {}", format_bytes(options_.memory_bytes))};
    }
    const double silent = watch_.seconds() - last_output_;
    if (stop == Stop::kHang) return {Outcome::kHang, fmt::format("no output for {}; {}", format_seconds(silent), last)};
    if (stop == Stop::kBudget) {
      const bool silence = silent > std::max(5.0, 0.5 * request_.budget_seconds);
      return {silence ? Outcome::kHang : Outcome::kTimeout,
              fmt::format("no {} within {}; {}", metric_.wanted(), format_seconds(request_.budget_seconds), last)};
    }
    if (!status.ok()) return classify_failure(status, tail_.lines());
    const char* value = metric_.refused() > 0 ? "no usable value of" : "no";
    return {Outcome::kCrash,
            fmt::format("ended without a failure but printed {} {}; {}", value, metric_.wanted(), last)};
  }

  const EvaluationRequest& request_;
  const CommandOptions& options_;
  const Stopwatch& watch_;
  MetricReader metric_;
  OutputTail tail_;
  std::optional<TemporaryFolder> folder_;
  LineReader out_, error_;
  SampleList samples_;
  std::vector<std::pair<std::string, MetricReader>> value_readers_;
  std::map<std::string, double> values_;
  bool looks_at_memory_ = false;
  double held_bytes_ = 0;  // by all processes together, the most that was seen
  double last_output_ = 0;
};

class CommandEvaluator : public Evaluator {
 public:
  CommandEvaluator(FillProgram fill, std::function<double(const Config&)> devices, CommandOptions options)
      : options_(std::move(options)),
        fill_(std::move(fill)),
        devices_(std::move(devices)),
        unit_(MetricReader(options_.metric).unit()) {}

  double devices(const Config& config) const override { return devices_(config); }
  std::string unit() const override { return unit_; }

  Measurement evaluate(const EvaluationRequest& request) override {
    const Stopwatch watch;
    CommandTemplate::Filled filled = fill_(request);
    SpawnOptions spawn;
    spawn.argv = std::move(filled.argv);
    spawn.environment = std::move(filled.environment);
    spawn.environment.insert(options_.environment.begin(), options_.environment.end());
    spawn.unset = std::move(filled.unset);
    spawn.directory = options_.directory;
    Launch launch(request, options_, watch);
    Measurement measurement = launch.run(std::move(spawn));
    if (!launch.metric().metric().empty()) unit_ = launch.metric().unit();
    measurement.seconds = watch.seconds();
    return measurement;
  }

 private:
  CommandOptions options_;
  FillProgram fill_;
  std::function<double(const Config&)> devices_;
  std::string unit_;
};

}  // namespace

std::unique_ptr<Evaluator> make_command_evaluator(const Space& space, CommandOptions options) {
  FillProgram fill = [line = CommandTemplate(options.command, space)](const EvaluationRequest& request) {
    return line.fill(request.config, request.trial, request.budget_seconds);
  };
  const DeviceCount devices(options.devices, space);  // before the options are moved from
  return make_program_evaluator(std::move(fill), devices, std::move(options));
}

std::unique_ptr<Evaluator> make_program_evaluator(FillProgram fill, std::function<double(const Config&)> devices,
                                                  CommandOptions options) {
  return std::make_unique<CommandEvaluator>(std::move(fill), std::move(devices), std::move(options));
}

}  // namespace lockstep::tune
