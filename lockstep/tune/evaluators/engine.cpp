#include "lockstep/tune/evaluators/engine.h"

#include <fmt/format.h>

#include <map>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/tune/evaluators/command.h"

namespace lockstep::tune {
namespace {

namespace fs = std::filesystem;

// A folder for one trial that serves as its $LOCKSTEP_HOME.
class EngineEvaluator : public Evaluator {
 public:
  EngineEvaluator(std::shared_ptr<const JobKnobs> knobs, EngineOptions options)
      : knobs_(std::move(knobs)), options_(std::move(options)) {
    options_.executable = fs::canonical(options_.executable);  // /proc/self is another one in the child
    CommandOptions command;
    command.metric = knobs_->base().model.is_language_model() ? "tokens_per_second" : "samples_per_second";
    command.hang_seconds = options_.hang_seconds;
    command.memory_bytes = options_.memory_bytes;
    command.logs = options_.logs;
    command.values = options_.values;
    command.directory = options_.directory;
    program_ = make_program_evaluator([this](const EvaluationRequest& request) { return fill(request); },
                                      [this](const Config& config) { return devices(config); }, command);
  }

  double devices(const Config& config) const override { return static_cast<double>(knobs_->ranks(config)); }
  std::string unit() const override { return program_->unit(); }

  Measurement evaluate(const EvaluationRequest& request) override {
    home_.emplace("lockstep-trial");
    Measurement measurement = program_->evaluate(request);
    home_.reset();
    return measurement;
  }

 private:
  CommandTemplate::Filled fill(const EvaluationRequest& request) const {
    CommandTemplate::Filled filled;
    filled.argv = engine_arguments(*knobs_, options_, request.config);
    filled.argv.insert(filled.argv.begin(), options_.executable.string());
    // One that is stopped saves, and must neither fill the job's folder nor refuse it because of the trial before.
    filled.argv.push_back(fmt::format("checkpoint.directory={}", (home_->path() / "checkpoints").string()));
    filled.environment = knobs_->environment(request.config);
    filled.environment["LOCKSTEP_HOME"] = home_->path().string();
    // A launcher around the study does not apply to its trials.
    filled.unset = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCKSTEP_RANK", "LOCKSTEP_WORLD_SIZE", "LOCKSTEP_PROFILE"};
    for (const Knob& knob : knobs_->space().knobs()) {
      if (job_target(knob) == "env" && !filled.environment.contains(knob.name)) filled.unset.push_back(knob.name);
    }
    return filled;
  }

  std::shared_ptr<const JobKnobs> knobs_;
  EngineOptions options_;
  std::unique_ptr<Evaluator> program_;
  std::optional<TemporaryFolder> home_;
};

}  // namespace

std::vector<std::string> engine_arguments(const JobKnobs& knobs, const EngineOptions& options, const Config& config) {
  std::vector<std::string> words{"train", options.job_file};
  words.insert(words.end(), options.overrides.begin(), options.overrides.end());
  const std::vector<std::string> turned = knobs.overrides(config);
  words.insert(words.end(), turned.begin(), turned.end());
  if (options.steps > 0) words.push_back(fmt::format("steps={}", options.steps));
  words.insert(words.end(), {"checkpoint.every=0", "checkpoint.every_steps=0", "checkpoint.final=false",
                             "evaluation.every=0", "evaluation.batches=1", "--no-record", "--report-steps"});
  if (!options.backend.empty()) words.insert(words.end(), {"--backend", options.backend});
  return words;
}

std::unique_ptr<Evaluator> make_engine_evaluator(std::shared_ptr<const JobKnobs> knobs, EngineOptions options) {
  return std::make_unique<EngineEvaluator>(std::move(knobs), std::move(options));
}

}  // namespace lockstep::tune
