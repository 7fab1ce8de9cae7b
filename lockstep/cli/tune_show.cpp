#include "lockstep/cli/tune_show.h"

#include <fmt/format.h>

#include <cstdlib>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/cli/tune_progress.h"
#include "lockstep/report/study/text.h"
#include "lockstep/telemetry/recorder.h"
#include "lockstep/tune/evaluators/template.h"
#include "lockstep/tune/study/export_csv.h"
#include "lockstep/tune/study/export_optuna.h"

namespace lockstep::cli {
namespace {

constexpr std::uint64_t kCountLimit = 50'000'000;

tune::StoredStudy stored(const std::string& id) {
  return tune::load_study(*telemetry::open_study_store(telemetry::home_directory(), false), id);
}

// The job may be gone or changed since; its trials are there all the same.
std::unique_ptr<tune::Prior> make_prior_if_possible(const tune::StoredStudy& study) {
  try {
    return make_prior(study.space, study.setup);
  } catch (const UserError&) {
    return nullptr;
  }
}

std::string values_text(const tune::Knob& knob) {
  if (knob.kind != tune::KnobKind::kChoice) {
    const char* scale = knob.log ? ", by ratio" : "";
    return fmt::format("{} to {}{}", knob.low, knob.high, scale);
  }
  std::vector<std::string> words;
  for (const tune::Value& value : knob.choices) words.push_back(tune::to_text(value));
  return join(words, ", ");
}

// Where the evaluator puts a knob; "" where only it knows.
std::string place_text(const TuneRequest& request, std::size_t knob) {
  const nlohmann::json& evaluator = request.setup.evaluator;
  if (evaluator.value("kind", "") != "command") return "";
  return tune::CommandTemplate(evaluator.value("command", ""), request.space).place_of(knob);
}

nlohmann::json proposals_json(const tune::Space& space, const tune::Proposal& first) {
  return {{"config", space.to_json(first.config)},
          {"purpose", tune::to_string(first.purpose)},
          {"budget_seconds", first.budget_seconds},
          {"reason", first.reason}};
}

// The baseline, and what would be tried at the same time as it.
std::vector<tune::Proposal> first_proposals(const tune::Strategy& strategy, std::size_t count) {
  std::vector<tune::Proposal> proposals;
  std::vector<tune::Trial> pending;
  while (proposals.size() < count) {
    const std::optional<tune::Proposal> next = strategy.next({}, pending);
    if (!next) break;
    tune::Trial trial;
    trial.number = static_cast<std::int64_t>(pending.size());
    trial.config = next->config;
    trial.purpose = next->purpose;
    pending.push_back(trial);
    proposals.push_back(*next);
  }
  return proposals;
}

std::string count_text(const tune::Space& space) {
  if (const auto count = space.count(kCountLimit)) return fmt::format("{} valid configurations", *count);
  for (const tune::Knob& knob : space.knobs())
    if (knob.kind == tune::KnobKind::kReal) return "knobs without levels: not countable";
  return fmt::format("more than {} valid configurations", kCountLimit);
}

void print_space(const TuneRequest& request) {
  const tune::Space& space = request.space;
  fmt::print("{}: {} knobs, {}\n", request.setup.name, space.size(), count_text(space));
  std::vector<std::vector<std::string>> rows{{"knob", "default", "values", "when", "goes to"}};
  for (std::size_t i = 0; i < space.size(); ++i) {
    const tune::Knob& knob = space.knobs()[i];
    rows.push_back({knob.name, tune::to_text(space.default_config().values[i]), values_text(knob), knob.when,
                    place_text(request, i)});
  }
  fmt::print("{}", report::table(rows, {}, 2, telemetry::detect_style(stdout)));
  if (!space.constraints().empty()) fmt::print("Rules\n");
  for (const std::string& rule : space.constraints()) fmt::print("  {}\n", rule);
}

}  // namespace

int list_studies(bool json) {
  const auto store = telemetry::open_study_store(telemetry::home_directory(), false);
  if (json) {
    fmt::print("{}\n", report::study_list_json(store->studies()).dump());
  } else {
    fmt::print("{}", report::study_list_text(store->studies(), telemetry::detect_style(stdout)));
  }
  return 0;
}

int show_study(const std::string& id, bool all_trials, bool json) {
  const tune::StoredStudy study = stored(id);
  const std::unique_ptr<tune::Prior> prior = make_prior_if_possible(study);
  tune::StrategyOptions options = study.setup.strategy;
  options.prior = prior.get();
  const tune::Conclusion conclusion = tune::conclude(tune::Strategy(study.space, options), study.trials);
  if (json) {
    fmt::print("{}\n", report::study_json(study, conclusion).dump());
  } else {
    fmt::print("{}",
               report::study_text(study, conclusion, {.style = telemetry::detect_style(stdout), .all = all_trials}));
  }
  return 0;
}

void export_study(const std::string& id, const std::string& target, std::FILE* notes) {
  const std::size_t colon = target.find(':');
  const std::string kind = target.substr(0, colon), file = colon == std::string::npos ? "" : target.substr(colon + 1);
  if (file.empty() || (kind != "csv" && kind != "optuna")) {
    throw bad_input(fmt::format("--export {}: not a kind and a file", printable(target)),
                    "write csv:FILE.csv or optuna:FILE.db");
  }
  const tune::StoredStudy study = stored(id);
  if (kind == "csv") {
    write_file_atomically(file, tune::to_csv(study));
  } else {
    tune::export_optuna(study, file);
  }
  fmt::print(notes, "study {}: {} trials written to {}\n", study.id(), study.trials.size(), file);
}

int dry_run(const TuneRequest& request, bool json) {
  TrialSource source = make_trial_source(request.space, request.setup, "");
  tune::StrategyOptions options = request.setup.strategy;
  options.prior = source.prior.get();
  const tune::Strategy strategy(request.space, options);
  const std::vector<tune::Proposal> proposals = first_proposals(strategy, 4);
  if (json) {
    nlohmann::json document{{"schema", "lockstep.study-plan/1"},
                            {"name", request.setup.name},
                            {"space", request.space.to_yaml()},
                            {"constraints", request.space.constraints()},
                            {"proposals", nlohmann::json::array()}};
    const auto count = request.space.count(kCountLimit);
    document["configurations"] = count ? nlohmann::json(*count) : nlohmann::json();
    for (const tune::Proposal& proposal : proposals)
      document["proposals"].push_back(proposals_json(request.space, proposal));
    fmt::print("{}\n", document.dump());
    return 0;
  }
  print_space(request);
  const tune::Allocation share = strategy.allocation({});
  fmt::print(
      "Trials\n  {}: {} to search, {} for fresh launches of the winner, {} of the default, {} to set knobs back\n",
      options.trials, share.search, share.confirm, share.control, share.set_back);
  fmt::print("First\n");
  for (const tune::Proposal& proposal : proposals) {
    const bool is_default = proposal.config == request.space.default_config();
    fmt::print("  {:<9} {}   {}\n", tune::to_string(proposal.purpose),
               is_default ? "the default" : request.space.to_text(proposal.config, &request.space.default_config()),
               proposal.reason);
  }
  return 0;
}

}  // namespace lockstep::cli
