#include "lockstep/tune/evaluators/remote.h"

#include <fmt/format.h>

#include <chrono>
#include <thread>
#include <utility>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/json.h"
#include "lockstep/base/text.h"
#include "lockstep/tune/evaluators/remote_files.h"

namespace lockstep::tune {
namespace {

using nlohmann::json;

constexpr double kStopSeconds = 10;      // that a worker gets to end a trial when the user stops the study
constexpr double kOverdueSeconds = 120;  // beyond twice the budget: the worker itself should have ended it

void sleep_for(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

// One request from its question to its answer.
class Exchange {
 public:
  Exchange(const EvaluationRequest& request, const RemoteOptions& options, LaneTasks& tasks, const Space& space,
           std::int64_t id)
      : request_(request), options_(options), tasks_(tasks), space_(space), id_(id) {}

  // `unit` is set where the worker tells one.
  Measurement run(std::string& unit) {
    ask();
    while (true) {
      if (auto answer = take_answer(unit)) return charged(std::move(*answer));
      if (request_.stop != nullptr && *request_.stop) return charged(stop(unit));
      look_at_worker();
      if (lost_ >= options_.attempts) {
        return charged(failed(Outcome::kCrash, fmt::format("its node was lost {} times: {}", lost_, why_lost_)));
      }
      if (held_now() > 2 * request_.budget_seconds + kOverdueSeconds) {
        tasks_.start_again(options_.lane);
        return charged(failed(Outcome::kHang, "no answer in time"));
      }
      sleep_for(kRemotePollSeconds);
    }
  }

 private:
  static Measurement failed(Outcome outcome, std::string message) {
    Measurement measurement;
    measurement.outcome = outcome;
    measurement.message = std::move(message);
    return measurement;
  }

  std::filesystem::path file(const char* what) const { return remote_file(options_.folder, options_.lane, what); }

  void ask() const {
    Trial trial;
    trial.number = request_.trial;
    trial.config = request_.config;
    trial.budget_seconds = request_.budget_seconds;
    const json request{{"id", id_}, {"trial", to_json(trial, space_)}, {"hard_seconds", request_.hard_seconds}};
    write_file_atomically(file("request"), request.dump());
  }

  // Seconds that the worker which has it now has had it.
  double held_now() const { return worker_.empty() ? 0 : monotonic_seconds() - taken_at_; }

  Measurement charged(Measurement measurement) const {
    const double held = held_before_ + held_now();
    measurement.seconds = std::max(measurement.seconds, held);
    measurement.waited_seconds = std::max(0.0, watch_.seconds() - measurement.seconds);
    return measurement;
  }

  std::optional<Measurement> take_answer(std::string& unit) const {
    const auto answer = read_remote(file("result"));
    if (!answer || answer->value("id", std::int64_t{0}) != id_) return std::nullopt;
    const JsonReader reader(*answer, "result");
    const Trial trial = trial_from_json(reader.object("trial").value(), space_, "result");
    unit = reader.text("unit", unit);
    Measurement measurement;
    measurement.outcome = trial.outcome;
    measurement.samples = trial.samples;
    measurement.values = trial.values;
    measurement.seconds = trial.seconds;
    measurement.stopped_early = trial.stopped_early;
    measurement.message = trial.message;
    return measurement;
  }

  void send_stop(bool counts) const { replace_file(file("stop"), json{{"id", id_}, {"counts", counts}}.dump()); }

  Measurement stop(std::string& unit) const {
    send_stop(false);
    const Deadline deadline = Deadline::after(worker_.empty() ? 0 : kStopSeconds);
    while (!deadline.expired() && !take_answer(unit)) sleep_for(kRemotePollSeconds);
    return failed(Outcome::kCrash, "stopped");
  }

  void look_at_worker() {
    const json told = read_remote(file("worker")).value_or(json::object());
    const std::string worker = told.value("worker", "");
    const double quiet = pulse_.quiet_seconds(worker + "/" + std::to_string(told.value("beat", std::int64_t{0})));
    const bool has_it = told.value("id", std::int64_t{0}) == id_;
    if (has_it && worker != worker_) take(worker);
    if (has_it) race(told);
    const LaneTasks::State task = tasks_.state(options_.lane);
    switch (task.phase) {
      case LaneTasks::Phase::kWaiting:
        break;
      case LaneTasks::Phase::kRunning:
        if (quiet > options_.quiet_seconds) lose("its worker is silent");
        break;
      case LaneTasks::Phase::kGone:
        lose(task.detail);
        break;
      case LaneTasks::Phase::kCancelled:
        throw environment_error(fmt::format("the task of lane {} was cancelled", options_.lane),
                                "`lockstep tune --resume` goes on with the study");
    }
  }

  // A worker has begun with it; one before it may have.
  void take(const std::string& worker) {
    held_before_ += held_now();
    worker_ = worker;
    taken_at_ = monotonic_seconds();
    seen_ = 0;
  }

  void race(const json& told) {
    const std::vector<double> samples = told.value("samples", std::vector<double>());
    if (samples.size() == seen_) return;
    seen_ = samples.size();
    if (request_.keep_going && !request_.keep_going(samples)) send_stop(true);
  }

  void lose(const std::string& why) {
    if (!worker_.empty()) ++lost_;
    why_lost_ = why;
    held_before_ += held_now();
    worker_.clear();
    pulse_ = RemotePulse();
    if (++starts_ > options_.attempts) {
      throw environment_error(fmt::format("the worker of lane {} is lost again and again: {}", options_.lane, why),
                              fmt::format("see the logs in {}", printable_path(options_.folder)));
    }
    tasks_.start_again(options_.lane);
  }

  const EvaluationRequest& request_;
  const RemoteOptions& options_;
  LaneTasks& tasks_;
  const Space& space_;
  const std::int64_t id_;
  const Stopwatch watch_;
  RemotePulse pulse_;
  std::string worker_;      // that has it; "": none
  double taken_at_ = 0;     // by it
  double held_before_ = 0;  // seconds, by others
  std::size_t seen_ = 0;    // samples
  int lost_ = 0;            // workers that had it
  int starts_ = 0;          // of workers, for it
  std::string why_lost_;
};

class RemoteEvaluator : public Evaluator {
 public:
  RemoteEvaluator(std::unique_ptr<Evaluator> local, Space space, RemoteOptions options,
                  std::shared_ptr<LaneTasks> tasks)
      : local_(std::move(local)),
        space_(std::move(space)),
        options_(std::move(options)),
        tasks_(std::move(tasks)),
        unit_(local_->unit()) {}

  double devices(const Config& config) const override { return local_->devices(config); }
  bool adapts_to_budget() const override { return local_->adapts_to_budget(); }
  std::string unit() const override { return unit_; }

  Measurement evaluate(const EvaluationRequest& request) override {
    return Exchange(request, options_, *tasks_, space_, ++id_).run(unit_);
  }

 private:
  const std::unique_ptr<Evaluator> local_;
  const Space space_;
  const RemoteOptions options_;
  const std::shared_ptr<LaneTasks> tasks_;
  std::string unit_;
  std::int64_t id_ = 0;
};

}  // namespace

std::optional<json> read_remote(const std::filesystem::path& file) {
  try {
    json document = json::parse(read_file(file, 4u << 20));
    return document.is_object() ? std::optional(std::move(document)) : std::nullopt;
  } catch (const std::exception&) {
    return std::nullopt;  // not there yet, or being replaced on a file system that is not quite atomic
  }
}

double RemotePulse::quiet_seconds(const std::string& count) {
  if (changed_at_ < 0 || count != last_) changed_at_ = monotonic_seconds();
  last_ = count;
  return monotonic_seconds() - changed_at_;
}

std::unique_ptr<Evaluator> make_remote_evaluator(std::unique_ptr<Evaluator> local, Space space, RemoteOptions options,
                                                 std::shared_ptr<LaneTasks> tasks) {
  return std::make_unique<RemoteEvaluator>(std::move(local), std::move(space), std::move(options), std::move(tasks));
}

RemoteOwner::RemoteOwner(std::filesystem::path folder) : folder_(std::move(folder)) {
  beat_ = std::jthread([this](const std::stop_token& end) {
    for (std::int64_t beat = 1; !end.stop_requested(); ++beat) {
      try {
        if (beat % 10 == 1) replace_file(folder_ / "owner", json{{"beat", beat}}.dump());
      } catch (const UserError&) {  // a file system that is away for a moment; workers wait for minutes
      }
      sleep_for(kRemoteBeatSeconds);
    }
  });
}

RemoteOwner::~RemoteOwner() {
  beat_.request_stop();
  beat_.join();
  try {
    replace_file(folder_ / "over", "");
  } catch (const UserError&) {  // they notice by the silence
  }
}

}  // namespace lockstep::tune
