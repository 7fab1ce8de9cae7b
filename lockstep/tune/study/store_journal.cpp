#include "lockstep/tune/study/store_journal.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/json.h"
#include "lockstep/base/text.h"

namespace lockstep::tune {
namespace {

using nlohmann::json;
using telemetry::AttemptRow;
using telemetry::AttemptState;
using telemetry::RunStatus;
using telemetry::StudyStore;

std::string name_in_errors(const std::string& study) { return fmt::format("study {}", printable(study, 100)); }

AttemptRow attempt_of(const Trial& trial, const Space& space) {
  AttemptRow row;
  row.number = trial.number;
  row.started_at = trial.started_at;
  row.seconds = trial.seconds;
  row.gpu_seconds = trial.gpu_seconds;
  row.purpose = to_string(trial.purpose);
  row.outcome = to_string(trial.outcome);
  row.throughput = trial.throughput;
  row.document = to_json(trial, space);
  return row;
}

// What a trial is before it ran: nothing that looks like a result.
AttemptRow beginning_of(const Trial& trial, const Space& space) {
  AttemptRow row = attempt_of(trial, space);
  row.seconds = row.gpu_seconds = row.throughput = 0;
  row.outcome.clear();
  for (const char* key :
       {"outcome", "samples", "throughput", "relative_error", "stopped_early", "seconds", "gpu_seconds", "message"})
    row.document.erase(key);
  return row;
}

std::vector<Trial> ended_trials(const std::vector<AttemptRow>& attempts, const Space& space, const std::string& study) {
  std::vector<Trial> trials;
  for (const AttemptRow& attempt : attempts) {
    if (attempt.state != AttemptState::kEnded) continue;
    trials.push_back(
        trial_from_json(attempt.document, space, fmt::format("{}, trial {}", name_in_errors(study), attempt.number)));
  }
  return trials;
}

class StoreJournal : public Journal {
 public:
  StoreJournal(std::shared_ptr<StudyStore> store, std::string study, Space space)
      : store_(std::move(store)), study_(std::move(study)), space_(std::move(space)) {}

  ~StoreJournal() override {
    if (concluded_) return;
    try {
      store_->release(study_, RunStatus::kInterrupted, nullptr);
    } catch (const std::exception&) {  // another process owns it, or the disk is full: it will be found lost
    }
  }

  std::vector<Trial> trials() const override { return ended_trials(store_->attempts(study_), space_, study_); }

  double interrupted_gpu_seconds() const override {
    double sum = 0;
    for (const AttemptRow& attempt : store_->attempts(study_))
      if (attempt.state != AttemptState::kEnded) sum += attempt.gpu_seconds;
    return sum;
  }

  void begin(const Trial& trial) override {
    own_again();
    store_->begin_trial(study_, beginning_of(trial, space_));
  }

  void alive(const Trial& trial, double seconds) override {
    store_->alive(study_, trial.number, seconds, trial.gpu_seconds > 0 ? trial.gpu_seconds : seconds);
  }

  void end(const Trial& trial) override { store_->end_trial(study_, attempt_of(trial, space_)); }

  void conclude(const json& conclusion) override {
    own_again();
    store_->release(study_, RunStatus::kDone, conclusion);
    concluded_ = true;
  }

 private:
  // conclude() released the study; a study that continues takes it again.
  void own_again() {
    if (!concluded_) return;
    store_->acquire(study_);
    concluded_ = false;
  }

  std::shared_ptr<StudyStore> store_;
  std::string study_;
  Space space_;
  bool concluded_ = false;
};

json strategy_json(const StrategyOptions& options) {
  json document{
      {"trials", options.trials}, {"gpu_seconds", options.gpu_seconds}, {"trial_seconds", options.trial_seconds},
      {"seed", options.seed},     {"importance", options.importance},   {"confirmations", options.confirmations}};
  if (!options.objectives.empty()) document["objectives"] = to_text(options.objectives);
  if (options.usd_per_device_hour > 0) document["usd_per_device_hour"] = options.usd_per_device_hour;
  return document;
}

StrategyOptions strategy_from(const JsonReader& reader) {
  StrategyOptions options;
  options.trials = reader.integer("trials", 0);
  options.gpu_seconds = reader.real("gpu_seconds");
  options.trial_seconds = reader.real("trial_seconds");
  // The whole range of 64 bits, beyond what integer() takes.
  if (!reader.has("seed") || !reader.value().at("seed").is_number_integer())
    reader.fail("seed", "is missing or not a whole number", "give the study's seed");
  options.seed = reader.value().at("seed").get<std::uint64_t>();
  options.importance = reader.boolean("importance");
  options.confirmations = reader.integer("confirmations");
  if (const std::string objectives = reader.text("objectives", ""); !objectives.empty())
    options.objectives = parse_objectives(objectives);
  options.usd_per_device_hour = reader.real_or("usd_per_device_hour", 0);
  return options;
}

}  // namespace

std::string device_of(const nlohmann::json& evaluator) {
  return evaluator.is_object() && evaluator.value("device", std::string()) == "rank" ? "rank" : "GPU";
}

json to_json(const StudySetup& setup) {
  return {{"strategy", strategy_json(setup.strategy)}, {"evaluator", setup.evaluator}, {"unit", setup.unit}};
}

StudySetup study_setup_from_json(const json& document, const std::string& name_for_errors) {
  const JsonReader reader(document, name_for_errors);
  StudySetup setup;
  setup.strategy = strategy_from(reader.object("strategy"));
  setup.evaluator = reader.object("evaluator").value();
  setup.unit = reader.text("unit");
  return setup;
}

StoredStudy load_study(const StudyStore& store, const std::string& id) {
  std::optional<telemetry::StudyRow> row = store.find(id);
  if (!row) {
    throw bad_input(id == "last" ? "there is no study yet" : fmt::format("there is no study '{}'", printable(id, 100)),
                    "see `lockstep tune --list`");
  }
  const std::string name = name_in_errors(row->info.id);
  Space space = Space::parse(row->info.space_yaml, name);
  StoredStudy study{std::move(*row), std::move(space), {}, {}};
  study.setup = study_setup_from_json(study.row.info.options, name);
  study.setup.name = study.row.info.name;
  study.setup.versions = study.row.info.versions;
  const std::vector<AttemptRow> attempts = store.attempts(study.id());
  study.trials = ended_trials(attempts, study.space, study.id());
  for (const AttemptRow& attempt : attempts) {
    const bool cut_off = attempt.state == AttemptState::kInterrupted ||
                         (attempt.state == AttemptState::kRunning && study.row.status != RunStatus::kRunning);
    if (!cut_off) continue;
    ++study.interrupted;
    study.interrupted_gpu_seconds += attempt.gpu_seconds;
  }
  return study;
}

OpenStudy create_study(const std::shared_ptr<StudyStore>& store, const Space& space, const StudySetup& setup) {
  const std::string id = store->create(
      {.name = setup.name, .space_yaml = space.to_yaml(), .options = to_json(setup), .versions = setup.versions});
  auto journal = make_store_journal(store, id, space);
  return {load_study(*store, id), std::move(journal)};
}

OpenStudy resume_study(const std::shared_ptr<StudyStore>& store, const std::string& id, bool take_over) {
  // Read before it is taken: a study that does not read back stays as it is.
  const StoredStudy before = load_study(*store, id);
  store->acquire(before.id(), take_over);
  auto journal = make_store_journal(store, before.id(), before.space);
  return {load_study(*store, before.id()), std::move(journal)};
}

void save_setup(StudyStore& store, const std::string& id, const StudySetup& setup) {
  store.set_options(id, to_json(setup));
}

std::unique_ptr<Journal> make_store_journal(std::shared_ptr<StudyStore> store, const std::string& study, Space space) {
  return std::make_unique<StoreJournal>(std::move(store), study, std::move(space));
}

}  // namespace lockstep::tune
