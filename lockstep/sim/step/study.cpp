#include "lockstep/sim/step/study.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/text.h"
#include "lockstep/cost/pricer/pricer.h"
#include "lockstep/planner/cadence.h"
#include "lockstep/sim/step/questions.h"

namespace lockstep::sim {
namespace {

using nlohmann::json;

cost::PricerOptions options_of(const plan::Candidate& best) {
  cost::PricerOptions options;
  options.sequence_length = best.batch.sequence_length;
  options.communication.bucket_mib = best.knobs.bucket_mib;
  return options;
}

CheckpointProgram checkpoints_of(const plan::Plan& plan, double step_seconds) {
  CheckpointProgram program;
  if (!plan.best.checkpoint) return program;
  program.interval_seconds = plan.best.checkpoint->interval_seconds;
  program.stall_seconds = plan.best.checkpoint->stall_seconds;
  const double write = plan.cluster.storage.write_bytes_per_second;
  if (write <= 0) return program;
  const planner::CadenceQuestion cadence = planner::cadence_question(plan.model, plan.cluster, step_seconds, 0);
  program.write_seconds = cadence.state_bytes / write;
  double nics = 0;  // of all nodes
  for (const spec::NodeGroup& group : plan.cluster.groups) {
    nics += static_cast<double>(group.nodes * group.nics_per_node) * group.nic.bytes_per_second;
  }
  program.nic_share = nics > 0 ? std::min(1.0, write / nics) : 0;
  return program;
}

double undisturbed(const StepsQuestion& question, bool contention) {
  StepsQuestion calm = question;
  calm.disturbances = {};
  calm.checkpoints = {};
  calm.steps = 1;
  calm.contention = contention;
  return simulate(calm).seconds();
}

std::string asked_of(const StepStudyRequest& request) {
  std::string text = fmt::format("seed {}", request.seed);
  for (const std::string& what : request.injections) text += fmt::format(", injected {}", printable(what));
  for (const std::string& what : request.what_ifs) text += fmt::format(", what if {}", printable(what));
  if (request.jitter) text += fmt::format(", jitter {:.4g}%", 100 * *request.jitter);
  if (!request.contention) text += ", no contention";
  return text;
}

// Question, closed form and prediction on the cluster of `study.plan`.
void price_study(StepStudy& study) {
  const StepStudyRequest& request = study.request;
  const plan::Candidate& best = study.plan.best;
  cost::Pricer pricer(study.plan.model, study.plan.cluster, request.profile, options_of(best));
  const cost::Price price = pricer.price(best.layout, best.batch);
  const cost::StepWork work = pricer.work(best.layout, best.batch);
  study.closed_form_seconds = price.step_seconds();
  study.closed_form_full_idle_seconds =
      price.step_seconds() + price.time.bubble * (1 / work.bubble_factor - 1) * (1 + work.spread_share);
  study.question.program = program_of(work, best.layout, best.batch.accumulation, !request.jitter);
  study.question.ranks = {best.layout, study.plan.cluster.groups.front().devices_per_node};
  const plan::Prediction prediction = pricer.predict(price, best.layout, best.batch);
  study.mfu_seconds = prediction.mfu.expected * price.step_seconds();
  if (request.what_ifs.empty()) return;
  study.plan.best.prediction = prediction;
  study.plan.best.breakdown = price.time;
}

}  // namespace

StepStudy study_step(const StepStudyRequest& request) {
  StepStudy study;
  study.request = request;
  study.plan = request.plan;
  study.asked = asked_of(request);
  if (request.plan.best.prediction) study.planned_seconds = request.plan.best.prediction->step_seconds.expected;
  if (!request.what_ifs.empty()) {
    price_study(study);
    study.before_what_if_seconds = undisturbed(study.question, request.contention);
    for (const std::string& what : request.what_ifs) apply_what_if(what, study.plan.cluster);
  }
  price_study(study);
  StepsQuestion& question = study.question;
  for (const std::string& what : request.injections) add_injection(what, question.ranks, question.disturbances);
  if (request.jitter) question.disturbances.jitter = *request.jitter;
  question.contention = request.contention;
  question.steps = request.steps;
  question.seed = request.seed;
  question.checkpoints = checkpoints_of(study.plan, study.closed_form_seconds);
  study.without_contention_seconds = undisturbed(question, false);
  study.undisturbed_seconds = request.contention ? undisturbed(question, true) : study.without_contention_seconds;
  study.simulation = simulate(question);
  for (const SimulatedStep& step : study.simulation.steps) {
    study.step_seconds += step.played->seconds;
    study.stall_seconds += step.checkpoint_stall;
    study.checkpoints += step.checkpoint_stall > 0 ? 1 : 0;
  }
  study.step_seconds /= static_cast<double>(std::max<std::size_t>(1, study.simulation.steps.size()));
  return study;
}

RecordRequest record_request(const StepStudy& study, const std::string& name, double ended_at) {
  return {
      .plan = study.plan, .name = name, .asked = study.asked, .ended_at = ended_at, .mfu_seconds = study.mfu_seconds};
}

json to_json(const StepStudy& study) {
  const plan::Candidate& best = study.plan.best;
  const StepProgram& program = study.question.program;
  json steps = json::array(), stages = json::array(), classes = json::array();
  for (std::size_t i = 0; i < study.simulation.steps.size(); ++i) {
    const SimulatedStep& step = study.simulation.steps[i];
    steps.push_back({{"step", i + 1}, {"seconds", step.seconds}, {"checkpoint_seconds", step.checkpoint_stall}});
  }
  const PlayedStep& last = *study.simulation.steps.back().played;
  for (const PlayedStage& stage : last.stages) {
    const TimeShares shares = time_shares(last, stage, program);
    stages.push_back({{"stage", stage.stage},
                      {"kind", stage.data_class},
                      {"compute", shares.compute},
                      {"exchange", shares.exchange},
                      {"gather", shares.gather},
                      {"data", shares.data},
                      {"idle", shares.idle},
                      {"reduce", shares.reduce},
                      {"optimizer", shares.optimizer},
                      {"host", shares.host}});
  }
  for (const DataClass& kind : study.simulation.symmetry.classes) {
    classes.push_back({{"data_rank", kind.data_rank}, {"members", kind.members}});
  }
  json document = {{"schema", "lockstep.simulation/1"},
                   {"model", study.plan.model.name},
                   {"cluster", study.plan.cluster.name},
                   {"layout", plan::to_string(best.layout)},
                   {"asked", study.asked},
                   {"seed", study.request.seed},
                   {"contention", study.request.contention},
                   {"step_seconds", study.step_seconds},
                   {"undisturbed_seconds", study.undisturbed_seconds},
                   {"without_contention_seconds", study.without_contention_seconds},
                   {"closed_form_seconds", study.closed_form_seconds},
                   {"closed_form_full_idle_seconds", study.closed_form_full_idle_seconds},
                   {"samples_per_second", static_cast<double>(best.batch.global_sequences) / study.step_seconds},
                   {"mfu", study.mfu_seconds / study.step_seconds},
                   {"checkpoints", study.checkpoints},
                   {"checkpoint_stall_seconds", study.stall_seconds},
                   {"events", study.simulation.events},
                   {"steps", std::move(steps)},
                   {"stages", std::move(stages)},
                   {"kinds", std::move(classes)}};
  if (best.batch.sequence_length > 0) {
    document["tokens_per_second"] =
        static_cast<double>(best.batch.global_sequences * best.batch.sequence_length) / study.step_seconds;
  }
  if (study.planned_seconds > 0) document["planned_seconds"] = study.planned_seconds;
  if (study.before_what_if_seconds > 0) document["before_what_if_seconds"] = study.before_what_if_seconds;
  return document;
}

}  // namespace lockstep::sim
