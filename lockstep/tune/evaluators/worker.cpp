#include "lockstep/tune/evaluators/worker.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <ctime>
#include <thread>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/json.h"
#include "lockstep/base/text.h"
#include "lockstep/tune/evaluators/metric.h"
#include "lockstep/tune/evaluators/process.h"
#include "lockstep/tune/study/failure.h"

namespace lockstep::tune {
namespace {

constexpr int kStarts = 3;                    // times without reading anything before it is given up
constexpr std::size_t kMostSamples = 10'000;  // of one answer
constexpr int kDeaths = 6;                    // trials in a row without an answer, likewise
constexpr double kStartSeconds = 30;          // beyond the budget, for imports of a fresh worker
constexpr double kLookSeconds = 1;            // garbage came: is it waiting for the next trial?

// Seconds beyond the budget that an answer is waited for.
double grace_of(double budget_seconds) { return 2 + 0.25 * budget_seconds; }

Measurement failed(Outcome outcome, std::string message) {
  Measurement measurement;
  measurement.outcome = outcome;
  measurement.message = std::move(message);
  measurement.seconds = -1;
  return measurement;
}

Outcome outcome_of(const std::string& word) {
  for (const Outcome outcome : {Outcome::kOutOfMemory, Outcome::kInvalid, Outcome::kTimeout, Outcome::kHang})
    if (word == to_string(outcome)) return outcome;
  return Outcome::kCrash;
}

Measurement read_failure(const nlohmann::json& answer) {
  const nlohmann::json& word = answer.at("failed");
  if (!word.is_string()) return failed(Outcome::kCrash, "answered with a `failed` that is not a word");
  const auto told = answer.find("message");
  const Outcome outcome = outcome_of(word.get<std::string>());
  if (told != answer.end() && told->is_string()) return failed(outcome, printable(told->get<std::string>(), 200));
  return failed(outcome, outcome == Outcome::kCrash ? printable(word.get<std::string>(), 200) : "");
}

Measurement read_samples(const nlohmann::json& answer) {
  const nlohmann::json& samples = answer.at("samples");
  if (samples.is_array() && samples.size() > kMostSamples) {
    return failed(Outcome::kCrash,
                  fmt::format("answered with {} samples, {} are read at most", samples.size(), kMostSamples));
  }
  if (!samples.is_array() || samples.empty()) {
    return failed(Outcome::kCrash, "answered with `samples` that is not a list of at least one throughput");
  }
  Measurement measurement;
  measurement.seconds = -1;
  for (const nlohmann::json& sample : samples) {
    const double value = sample.is_number() ? sample.get<double>() : NAN;
    if (!is_throughput(value)) {
      return failed(Outcome::kCrash, fmt::format("answered with the sample `{}`; throughputs are numbers above 0",
                                                 printable(sample.dump())));
    }
    measurement.samples.push_back(value);
  }
  const auto values = answer.find("values");
  if (values == answer.end() || !values->is_object()) return measurement;
  for (const auto& [name, value] : values->items()) {
    if (!value.is_number() || !is_throughput(value.get<double>())) {
      return failed(Outcome::kCrash, fmt::format("answered with `{}` of {}; values are numbers above 0",
                                                 printable(name, 60), printable(value.dump())));
    }
    measurement.values[name] = value.get<double>();
  }
  return measurement;
}

// Writing to a worker that is gone must not end this process: SIGPIPE is blocked in this thread and consumed.
bool write_all(int fd, const std::string& text, const Deadline& deadline) {
  sigset_t broken_pipe, before;
  sigemptyset(&broken_pipe);
  sigaddset(&broken_pipe, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &broken_pipe, &before);
  std::size_t written = 0;
  bool alive = true;
  while (alive && written < text.size() && !deadline.expired()) {
    const ssize_t got = ::write(fd, text.data() + written, text.size() - written);
    if (got > 0) {
      written += static_cast<std::size_t>(got);
    } else if (errno == EAGAIN) {
      pollfd entry{fd, POLLOUT, 0};
      ::poll(&entry, 1, deadline.remaining_milliseconds(100));
    } else if (errno != EINTR) {
      alive = false;
    }
  }
  const timespec now{0, 0};
  if (!alive) sigtimedwait(&broken_pipe, nullptr, &now);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return written == text.size();
}

// Is this process waiting in read() of its standard input? False when that is unknown.
bool waits_for_input(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/syscall", pid));
  std::string number, descriptor;
  if (!(file >> number >> descriptor)) return false;
  return number == std::to_string(SYS_read) && descriptor == "0x0";
}

// The state of an evaluation.
enum class Step { kAnswered, kDied, kUnread, kSilent, kStopped };

class WorkerEvaluator : public Evaluator {
 public:
  WorkerEvaluator(Space space, WorkerOptions options)
      : space_(std::move(space)),
        options_(std::move(options)),
        command_(split_command(options_.command)),
        devices_(options_.devices, space_),
        tail_(options_.log) {}

  ~WorkerEvaluator() override { close(); }
  void finish() override { close(); }

  double devices(const Config& config) const override { return devices_(config); }
  std::string unit() const override { return options_.unit; }
  bool adapts_to_budget() const override { return false; }

  Measurement evaluate(const EvaluationRequest& request) override {
    const Stopwatch watch;
    Measurement measurement;
    Step step = Step::kUnread;
    for (int starts = 0; step == Step::kUnread; ++starts) {
      if (starts == kStarts) give_up("it ended three times before it read a trial");
      wait_before_start(starts, request.stop);
      step = attempt(request, watch, measurement);
    }
    if (step != Step::kAnswered) measurement = end_unanswered(step, request.hard_seconds > 0 ? 0.0 : 1.0);
    unanswered_ = step == Step::kAnswered || step == Step::kStopped ? 0 : unanswered_ + 1;
    if (unanswered_ == kDeaths) give_up(fmt::format("it gave no answer on {} trials in a row", kDeaths));
    measurement.seconds = std::max(measurement.seconds, watch.seconds());
    return measurement;
  }

 private:
  void close() {
    if (!program_) return;
    program_->process().stdin_fd().reset();
    program_->process().wait(1.0);  // the end of its input asks it to exit
    program_->end(1.0);
    program_.reset();
  }

  [[noreturn]] void give_up(const std::string& why) {
    const std::string last = tail_.last();
    throw UserError(ExitCode::kRunFailed,
                    fmt::format("worker `{}`: {}{}", printable(options_.command, 120), why,
                                last.empty() ? "" : fmt::format("; it printed: {}", last)),
                    "run it by hand with one of the lines in docs/reference/tune.md as its input");
  }

  // A worker that ended twice gets time: a port or a GPU may not be free yet.
  static void wait_before_start(int starts, const std::atomic<bool>* stop) {
    const Deadline deadline = Deadline::after(starts < 1 ? 0.0 : 0.2 * std::pow(4.0, starts - 1));
    while (!deadline.expired() && (stop == nullptr || !*stop)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(deadline.remaining_milliseconds(50)));
    }
  }

  void start() {
    SpawnOptions spawn;
    spawn.argv = command_.argv;
    spawn.environment = command_.environment;
    spawn.environment.insert(options_.environment.begin(), options_.environment.end());
    spawn.directory = options_.directory;
    spawn.standard_input = StreamMode::kPipe;
    program_ = TrialProgram::start(spawn);
    Process& process = program_->process();
    const int in = process.stdin_fd().get();
    ::fcntl(in, F_SETFL, ::fcntl(in, F_GETFL) | O_NONBLOCK);
    out_ = LineReader(std::move(process.stdout_fd()));
    error_ = LineReader(std::move(process.stderr_fd()));
  }

  // Sends the trial to a worker that runs, or to a fresh one, and waits for what comes of it.
  Step attempt(const EvaluationRequest& request, const Stopwatch& watch, Measurement& measurement) {
    const bool fresh = !program_;
    if (fresh) start();
    tail_.clear();
    read_logs();  // late lines of the trial before
    double limit = request.budget_seconds + grace_of(request.budget_seconds) + (fresh ? kStartSeconds : 0);
    if (request.hard_seconds > 0) limit = std::min(limit, request.hard_seconds);
    const Deadline deadline = Deadline::after(limit - watch.seconds());
    nlohmann::json line{{"trial", request.trial},
                        {"config", space_.to_json(request.config)},
                        {"budget_seconds", request.budget_seconds}};
    samples_.clear();
    stop_sent_ = false;
    if (request.keep_going) {
      if (!folder_) folder_.emplace("lockstep-worker");
      stop_file_ = folder_->path() / fmt::format("stop-{}", request.trial);
      line["stop_file"] = stop_file_.string();
    }
    Step step = Step::kUnread;
    if (write_all(program_->process().stdin_fd().get(), line.dump() + "\n", deadline)) {
      step = await(request, deadline, measurement);
    }
    if (step == Step::kUnread) {
      program_->end(0.0);
      program_.reset();
    }
    return step;
  }

  Step await(const EvaluationRequest& request, const Deadline& deadline, Measurement& measurement) {
    double last_output = monotonic_seconds();
    bool garbage = false;
    while (true) {
      std::vector<std::string> lines;
      out_.read(lines);
      for (const std::string& line : lines) {
        auto answer = parse_worker_line(line, request.trial);
        if (answer) {
          measurement = std::move(*answer);
          measurement.stopped_early = stop_sent_ && measurement.outcome == Outcome::kMeasured;
          return Step::kAnswered;
        }
        if (const auto sample = parse_worker_sample(line, request.trial)) {
          race(request, *sample);
          continue;
        }
        tail_.add(line);
        garbage = true;
        last_output = monotonic_seconds();
      }
      read_errors();
      if (out_.fd() < 0 || program_->process().poll()) return ended(request.trial, measurement);
      if (request.stop != nullptr && *request.stop) return Step::kStopped;
      if (deadline.expired()) return Step::kSilent;
      if (garbage && monotonic_seconds() - last_output > kLookSeconds && waits_for_input(program_->process().pid())) {
        measurement = failed(Outcome::kCrash, fmt::format("printed no answer but: {}", tail_.last()));
        return Step::kAnswered;
      }
      pollfd entries[2] = {{out_.fd(), POLLIN, 0}, {error_.fd(), POLLIN, 0}};
      ::poll(entries, 2, deadline.remaining_milliseconds(50));
    }
  }

  // A sample while it measures. A worker that looks for the file may be told that it need not go on.
  void race(const EvaluationRequest& request, double sample) {
    samples_.push_back(sample);
    if (stop_sent_ || !request.keep_going || samples_.size() > kMostSamples || request.keep_going(samples_)) return;
    stop_sent_ = true;
    write_file_atomically(stop_file_, "hopeless\n");
  }

  // It is gone, or at least its output is; an answer may be in the last lines.
  Step ended(std::int64_t trial, Measurement& measurement) {
    std::vector<std::string> lines;
    out_.read(lines);
    for (const std::string& line : lines) {
      if (auto answer = parse_worker_line(line, trial)) {
        measurement = std::move(*answer);
        return Step::kAnswered;
      }
      tail_.add(line);
    }
    program_->process().wait(1.0);
    read_errors();
    int unread = 0;
    ::ioctl(program_->process().stdin_fd().get(), FIONREAD, &unread);
    return unread > 0 ? Step::kUnread : Step::kDied;
  }

  void read_errors() {
    std::vector<std::string> lines;
    error_.read(lines);
    for (const std::string& line : lines) tail_.add(line);
  }

  void read_logs() {
    std::vector<std::string> lines;
    out_.read(lines);
    for (const std::string& line : lines) tail_.add(line);
    read_errors();
    tail_.clear();
  }

  Measurement end_unanswered(Step step, double grace_seconds) {
    const bool ended_itself = program_->process().poll().has_value();
    const ExitStatus status = program_->end(grace_seconds);
    program_.reset();
    if (step == Step::kStopped) return failed(Outcome::kCrash, "stopped");
    if (step == Step::kSilent) {
      const std::string last = tail_.last();
      return failed(Outcome::kHang,
                    last.empty() ? "no answer in time" : fmt::format("no answer in time; last line: {}", last));
    }
    if (!ended_itself) return failed(Outcome::kCrash, "closed its output without an answer");
    const Failure failure = classify_failure(status, tail_.lines());
    return failed(failure.outcome, fmt::format("the worker died: {}", failure.message));
  }

  Space space_;
  WorkerOptions options_;
  CommandLine command_;
  DeviceCount devices_;
  OutputTail tail_;
  std::optional<TrialProgram> program_;
  LineReader out_, error_;
  int unanswered_ = 0;                     // trials in a row
  std::vector<double> samples_;            // of the trial under way, where the worker reports them
  std::optional<TemporaryFolder> folder_;  // of stop files
  std::filesystem::path stop_file_;
  bool stop_sent_ = false;
};

}  // namespace

std::optional<Measurement> parse_worker_line(const std::string& line, std::int64_t trial) {
  if (!trim(line).starts_with('{')) return std::nullopt;
  nlohmann::json answer;
  try {
    answer = parse_json(line, "answer");
  } catch (const UserError& error) {
    return failed(Outcome::kCrash, fmt::format("{} ({})", error.what(), printable(line, 120)));
  }
  if (!answer.contains("samples") && !answer.contains("failed")) return std::nullopt;
  const auto number = answer.find("trial");
  if (number != answer.end() && number->is_number_integer() && *number != trial) return std::nullopt;  // an old one
  Measurement measurement = answer.contains("failed") ? read_failure(answer) : read_samples(answer);
  const auto seconds = answer.find("seconds");
  if (seconds == answer.end() || seconds->is_null()) return measurement;
  const double told = seconds->is_number() ? seconds->get<double>() : NAN;
  if (!std::isfinite(told) || told < 0) {
    return failed(Outcome::kCrash, fmt::format("answered with `seconds` of {}", printable(seconds->dump())));
  }
  measurement.seconds = told;
  return measurement;
}

std::optional<double> parse_worker_sample(const std::string& line, std::int64_t trial) {
  if (!trim(line).starts_with('{')) return std::nullopt;
  const nlohmann::json told = nlohmann::json::parse(line, nullptr, false);
  if (!told.is_object() || !told.contains("sample") || !told["sample"].is_number()) return std::nullopt;
  if (told.contains("trial") && told["trial"] != trial) return std::nullopt;
  const double sample = told["sample"].get<double>();
  return is_throughput(sample) ? std::optional(sample) : std::nullopt;
}

std::unique_ptr<Evaluator> make_worker_evaluator(Space space, WorkerOptions options) {
  return std::make_unique<WorkerEvaluator>(std::move(space), std::move(options));
}

}  // namespace lockstep::tune
