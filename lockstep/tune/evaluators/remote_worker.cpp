#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/json.h"
#include "lockstep/tune/evaluators/remote.h"
#include "lockstep/tune/evaluators/remote_files.h"

namespace lockstep::tune {
namespace {

using nlohmann::json;

std::string new_worker_name() {
  char host[256] = "";
  ::gethostname(host, sizeof host - 1);
  return fmt::format("{}.{}.{}", host, ::getpid(), static_cast<std::int64_t>(1e6 * unix_seconds()));
}

class TrialServer {
 public:
  TrialServer(Evaluator& evaluator, const Space& space, const ServeOptions& options)
      : evaluator_(evaluator), space_(space), options_(options), name_(new_worker_name()) {}

  void run() {
    replace_file(file("claim"), json{{"worker", name_}}.dump());
    std::jthread beat([this](const std::stop_token& end) {
      while (!end.stop_requested()) {
        look();
        std::this_thread::sleep_for(std::chrono::duration<double>(kRemoteBeatSeconds));
      }
    });
    Stopwatch idle;
    while (!ending_ && idle.seconds() < options_.idle_seconds) {
      const auto request = read_remote(file("request"));
      if (request && is_open(*request)) {
        answer(*request);
        idle.restart();
      }
      std::this_thread::sleep_for(std::chrono::duration<double>(kRemotePollSeconds));
    }
    evaluator_.finish();
  }

 private:
  std::filesystem::path file(const char* what) const { return remote_file(options_.folder, options_.lane, what); }

  bool is_open(const json& request) const {
    const auto id = request.value("id", std::int64_t{0});
    const auto result = read_remote(file("result"));
    return id > 0 && (!result || result->value("id", std::int64_t{0}) != id);
  }

  // What the trial's thread is told and tells, twice a second.
  void look() {
    try {
      look_for_the_end();
      const auto stop = read_remote(file("stop"));
      const std::lock_guard lock(mutex_);
      if (stop && id_ != 0 && stop->value("id", std::int64_t{0}) == id_) {
        const bool counts = stop->value("counts", true);
        enough_ = enough_ || counts;
        if (!counts) stop_ = true;
      }
      replace_file(file("worker"),
                   json{{"worker", name_}, {"beat", ++beat_}, {"id", id_}, {"samples", samples_}}.dump());
    } catch (const UserError&) {  // a file system that is away for a moment
    }
  }

  void look_for_the_end() {
    const WorkerEnd asked = options_.end_was_asked ? options_.end_was_asked() : WorkerEnd::kNo;
    const json claim = read_remote(file("claim")).value_or(json::object());
    const json owner = read_remote(options_.folder / "owner").value_or(json::object());
    const bool alone = owner_.quiet_seconds(owner.dump()) > options_.owner_seconds;
    const bool replaced = claim.value("worker", name_) != name_;
    if (asked == WorkerEnd::kAfterThisTrial) ending_ = true;
    if (asked == WorkerEnd::kNow || replaced || alone || std::filesystem::exists(options_.folder / "over")) {
      leaving_ = ending_ = stop_ = true;
    }
  }

  void answer(const json& document) {
    const JsonReader reader(document, "request");
    Trial trial = trial_from_json(reader.object("trial").value(), space_, "request");
    EvaluationRequest request;
    request.trial = trial.number;
    request.config = trial.config;
    request.budget_seconds = trial.budget_seconds;
    request.hard_seconds = reader.real_or("hard_seconds", 0);
    request.stop = &stop_;
    request.keep_going = [this](std::span<const double> samples) {
      const std::lock_guard lock(mutex_);
      samples_.assign(samples.begin(), samples.end());
      return !enough_;
    };
    begin(reader.integer("id", 1));
    const Measurement measurement = evaluator_.evaluate(request);
    if (leaving_) return;  // cut off by the end of this worker: the next one measures it
    trial.outcome = measurement.outcome;
    trial.samples = measurement.samples;
    trial.values = measurement.values;
    trial.seconds = measurement.seconds;
    trial.stopped_early = measurement.stopped_early;
    trial.message = measurement.message;
    const json result{{"id", reader.integer("id", 1)}, {"trial", to_json(trial, space_)}, {"unit", evaluator_.unit()}};
    write_file_atomically(file("result"), result.dump());
    begin(0);
  }

  void begin(std::int64_t id) {
    const std::lock_guard lock(mutex_);
    id_ = id;
    samples_.clear();
    enough_ = false;
    stop_ = leaving_.load();
  }

  Evaluator& evaluator_;
  const Space& space_;
  const ServeOptions& options_;
  const std::string name_;
  std::atomic<bool> ending_ = false;   // no further trial
  std::atomic<bool> leaving_ = false;  // at once
  std::atomic<bool> stop_ = false;     // the trial that runs
  std::mutex mutex_;
  std::int64_t id_ = 0;  // of the request that is worked on
  std::vector<double> samples_;
  bool enough_ = false;  // racing ended it
  std::int64_t beat_ = 0;
  RemotePulse owner_;
};

}  // namespace

void serve_trials(Evaluator& evaluator, const Space& space, const ServeOptions& options) {
  TrialServer(evaluator, space, options).run();
}

}  // namespace lockstep::tune
