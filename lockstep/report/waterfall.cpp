#include "lockstep/report/waterfall.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "lockstep/base/error.h"
#include "lockstep/cost/flops.h"
#include "lockstep/report/goodput.h"
#include "lockstep/report/json_numbers.h"

namespace lockstep::report {
namespace {

using nlohmann::json;

double& at(Descent& descent, Loss loss) { return descent.seconds[static_cast<std::size_t>(loss)]; }

double sum_inside(const Descent& descent) {
  return std::accumulate(descent.seconds.begin(), descent.seconds.begin() + static_cast<int>(Loss::kRestarts), 0.0);
}

// What no other term names, so that the terms are the step exactly.
void fill_host(Descent& descent) {
  at(descent, Loss::kHost) = 0.0;
  at(descent, Loss::kHost) = descent.step_seconds - descent.ideal_seconds - sum_inside(descent);
}

// Of the seconds that compute: forward again. By FLOPs; all of forward under full recomputation, attention under
// selective.
double recompute_share(const RunFacts& facts) {
  if (!facts.typed) return 0.0;
  const plan::Candidate& best = facts.typed->best;
  if (best.layout.recompute == plan::Recompute::kNone) return 0.0;
  try {
    double again = 0.0;
    for (const cost::Operator& each : cost::list_operators(facts.typed->model, 1, best.batch.sequence_length)) {
      const bool counts =
          best.layout.recompute == plan::Recompute::kFull || each.kind == cost::OperatorKind::kAttention;
      if (counts) again += static_cast<double>(each.count) * each.forward_flops();
    }
    const double training = cost::training_flops(facts.typed->model, 1, best.batch.sequence_length);
    return training > 0.0 ? again / (training + again) : 0.0;
  } catch (const UserError&) {
    return 0.0;  // an architecture whose operators are not listed
  }
}

double usd_per_day(const RunFacts& facts) {
  if (!facts.typed) return 0.0;
  double per_hour = 0.0;
  std::int64_t left = facts.typed->best.layout.world();
  for (const spec::NodeGroup& group : facts.typed->cluster.groups) {
    const std::int64_t used = std::min(left, group.nodes * group.devices_per_node);
    per_hour += static_cast<double>(used) * group.price_per_device_hour_usd;
    left -= used;
  }
  return 24.0 * per_hour;
}

// Seconds of a step at the peak; 0: no peak is known.
double ideal_seconds(const RunFacts& facts) {
  const PredictedBand& band = facts.predicted;
  if (band.mfu.expected > 0.0 && band.step_seconds.expected > 0.0) {
    return band.mfu.expected * band.step_seconds.expected;
  }
  // MFU at one step per second.
  if (!facts.typed) return 0.0;
  const plan::BatchPlan& batch = facts.typed->best.batch;
  return mfu_at(facts, static_cast<double>(batch.global_sequences * batch.sequence_length));
}

std::optional<Descent> predict(const RunFacts& facts) {
  if (!facts.typed || !facts.typed->best.breakdown || facts.predicted.step_seconds.expected <= 0.0) return std::nullopt;
  const plan::TimeBreakdown& time = *facts.typed->best.breakdown;
  Descent descent;
  descent.step_seconds = facts.predicted.step_seconds.expected;
  const double recompute = time.compute * recompute_share(facts), ideal = ideal_seconds(facts);
  descent.ideal_seconds = ideal > 0.0 ? ideal : time.compute - recompute;
  at(descent, Loss::kRecompute) = recompute;
  at(descent, Loss::kKernels) = time.compute - recompute - descent.ideal_seconds;
  at(descent, Loss::kBubble) = time.bubble;
  at(descent, Loss::kTensorComm) = time.tp_comm;
  at(descent, Loss::kContextComm) = time.cp_comm;
  at(descent, Loss::kExpertComm) = time.ep_comm;
  at(descent, Loss::kPipelineComm) = time.pp_comm;
  at(descent, Loss::kDataComm) = time.dp_comm;
  at(descent, Loss::kOptimizer) = time.optimizer;
  at(descent, Loss::kSelection) = time.selection;
  if (const auto& checkpoint = facts.typed->best.checkpoint;
      checkpoint && checkpoint->goodput > 0.0 && checkpoint->interval_seconds > 0.0) {
    // The stalls come on top of the predicted step, as does the rest that goodput counts.
    const double stall = descent.step_seconds * checkpoint->stall_seconds / checkpoint->interval_seconds;
    const double outside = descent.step_seconds * (1.0 / checkpoint->goodput - 1.0);
    at(descent, Loss::kRestarts) = std::max(0.0, outside - stall);
    at(descent, Loss::kCheckpoint) = stall;
    descent.step_seconds += stall;
  }
  fill_host(descent);
  return descent;
}

// Shares of the communication by axis: as blocked spans say, else as the plan predicts, else by the only axis there is.
std::array<double, kCommAxes> comm_shares(const RunFacts& facts, const SpanShares& spans, bool& by_plan) {
  std::array<double, kCommAxes> shares = spans.blocked;
  double total = std::accumulate(shares.begin(), shares.end(), 0.0);
  by_plan = total <= 0.0 && facts.typed && facts.typed->best.breakdown;
  if (by_plan) {
    const plan::TimeBreakdown& time = *facts.typed->best.breakdown;
    shares = {time.tp_comm, time.cp_comm, time.ep_comm, time.pp_comm + time.bubble, time.dp_comm};
    total = std::accumulate(shares.begin(), shares.end(), 0.0);
  }
  if (total <= 0.0) {
    by_plan = false;
    shares = {};
    const bool only_stages = facts.typed && facts.typed->best.layout.world() == facts.typed->best.layout.pp;
    shares[static_cast<std::size_t>(only_stages ? CommAxis::kPipeline : CommAxis::kData)] = total = 1.0;
  }
  for (double& share : shares) share /= total;
  return shares;
}

// Blocked seconds: of waiting, what stages wait for each other is the bubble and the rest are stragglers; of the
// transfers everybody their share.
void split_communication(Descent& descent, double comm, double wait, const std::array<double, kCommAxes>& shares) {
  wait = std::clamp(wait, 0.0, comm);
  const double pipeline = comm * shares[static_cast<std::size_t>(CommAxis::kPipeline)];
  const double bubble = std::min(pipeline, wait), pipeline_transfers = pipeline - bubble;
  at(descent, Loss::kBubble) = bubble;
  at(descent, Loss::kStragglers) = wait - bubble;
  at(descent, Loss::kPipelineComm) = pipeline_transfers;
  const double others = 1.0 - shares[static_cast<std::size_t>(CommAxis::kPipeline)];
  const double transfers = comm - wait - pipeline_transfers;
  constexpr std::pair<CommAxis, Loss> kOthers[] = {{CommAxis::kTensor, Loss::kTensorComm},
                                                   {CommAxis::kContext, Loss::kContextComm},
                                                   {CommAxis::kExpert, Loss::kExpertComm},
                                                   {CommAxis::kData, Loss::kDataComm}};
  for (const auto& [axis, loss] : kOthers) {
    if (others > 0.0) at(descent, loss) = transfers * shares[static_cast<std::size_t>(axis)] / others;
  }
}

// The step that belongs to the rate the run reports, so that its MFU is the same everywhere; phases keep their shares
// of the mean step.
double reported_step_seconds(const RunFacts& facts, double mean_step) {
  const PredictedBand& band = facts.predicted;
  const double items = band.per_second.expected * band.step_seconds.expected;
  if (items > 0.0 && facts.measured_per_second > 0.0) return items / facts.measured_per_second;
  return mean_step;
}

std::optional<Descent> measure(const RunFacts& facts, const SpanShares& spans, bool& by_plan) {
  const PhaseSeconds mean = facts.mean_phases();
  if (mean.step <= 0.0) return std::nullopt;
  Descent descent;
  descent.step_seconds = reported_step_seconds(facts, mean.step);
  const double scale = descent.step_seconds / mean.step, ideal = ideal_seconds(facts);
  const double compute = mean.compute * scale;
  const double share = spans.compute_seconds > 0.0 ? spans.recompute_seconds / spans.compute_seconds
                       : facts.has_phases()        ? recompute_share(facts)
                                                   : 0.0;
  const double recompute = compute * std::min(share, 1.0);
  descent.ideal_seconds = ideal > 0.0 ? ideal : compute - recompute;
  at(descent, Loss::kRecompute) = recompute;
  if (facts.has_phases()) at(descent, Loss::kKernels) = compute - recompute - descent.ideal_seconds;
  split_communication(descent, mean.comm * scale, mean.wait * scale, comm_shares(facts, spans, by_plan));
  at(descent, Loss::kLoader) = mean.data * scale;
  at(descent, Loss::kOptimizer) = mean.optimizer * scale;
  at(descent, Loss::kCheckpoint) = mean.checkpoint * scale;
  fill_host(descent);
  return descent;
}

json amount_json(const Waterfall& waterfall, const std::optional<Descent>& descent, Loss loss) {
  if (!descent) return nullptr;
  const double of_time = descent->of_time(loss);
  return {{"percent", 100.0 * descent->share(loss)},
          {"seconds", descent->seconds[static_cast<std::size_t>(loss)]},
          {"percent_of_time", 100.0 * of_time},
          {"usd_per_day", waterfall.usd_per_day > 0.0 ? json(of_time * waterfall.usd_per_day) : json()}};
}

json total_json(const std::optional<Descent>& descent, double (Descent::*value)() const) {
  return descent ? json(100.0 * ((*descent).*value)()) : json();
}

}  // namespace

const char* describe(Loss loss) {
  return named<Loss::kOutside>(loss, "kernels below peak", "recomputation", "pipeline bubble", "tensor communication",
                               "context communication", "expert communication", "pipeline communication",
                               "data-parallel communication", "waiting for stragglers", "loader", "optimizer",
                               "checkpoint stalls", "chosen as the best", "host and other", "restarts, lost work",
                               "start, evaluation, end");
}

double Descent::outside_seconds() const {
  return std::accumulate(seconds.begin() + static_cast<int>(Loss::kRestarts), seconds.end(), 0.0);
}

double Descent::overall() const {
  const double whole = step_seconds + outside_seconds();
  return whole > 0.0 ? ideal_seconds / whole : 0.0;
}

double Descent::of_time(Loss loss) const {
  const double whole = step_seconds + outside_seconds();
  return whole > 0.0 ? seconds[static_cast<std::size_t>(loss)] / whole : 0.0;
}

double Descent::share(Loss loss) const {
  if (step_seconds <= 0.0) return 0.0;
  if (is_outside_of_steps(loss)) return mfu() * of_time(loss);
  return seconds[static_cast<std::size_t>(loss)] / step_seconds;
}

Waterfall make_waterfall(const RunFacts& facts, const SpanShares& spans) {
  Waterfall waterfall;
  waterfall.steps = facts.last_step > 0 ? facts.last_step - facts.counted_from + 1 : 0;
  waterfall.usd_per_day = usd_per_day(facts);
  waterfall.has_phases = facts.has_phases();
  const bool cpu = facts.typed && facts.typed->cluster.is_cpu();
  waterfall.measure = ideal_seconds(facts) <= 0.0 ? Measure::kComputing : cpu ? Measure::kEfficiency : Measure::kMfu;
  waterfall.predicted = predict(facts);
  waterfall.measured = measure(facts, spans, waterfall.split_by_plan);
  if (waterfall.measured && facts.steps() > 0) {
    const Goodput goodput = make_goodput(facts);
    const double steps = static_cast<double>(facts.steps());
    at(*waterfall.measured, Loss::kRestarts) = (goodput.recovery_seconds + goodput.lost_seconds) / steps;
    at(*waterfall.measured, Loss::kOutside) = (goodput.start_seconds + goodput.other_seconds) / steps;
  }
  return waterfall;
}

Waterfall make_waterfall(const RunFacts& facts, const telemetry::RunStore& store) {
  return make_waterfall(facts, read_span_shares(store, facts));
}

bool is_worth_a_row(const Waterfall& waterfall, Loss loss) {
  constexpr double kNothing = 5e-4;
  const auto is_something = [&](const std::optional<Descent>& side) {
    return side && std::abs(side->share(loss)) >= kNothing;
  };
  return is_something(waterfall.predicted) || is_something(waterfall.measured);
}

std::string measure_title(Measure measure) {
  return named<Measure::kComputing>(measure, "MFU", "efficiency", "computing");
}

std::string measure_note(const Waterfall& waterfall) {
  if (waterfall.measure == Measure::kEfficiency) {
    return "Ranks are CPUs: efficiency is of the calibrated peak of this machine, and stands where MFU would.";
  }
  if (waterfall.measure == Measure::kComputing) {
    return "No peak is known, so there is no MFU: computing is counted as useful as a whole.";
  }
  return "";
}

json to_json(const Waterfall& waterfall) {
  json losses = json::array();
  for (std::size_t i = 0; i < kLosses; ++i) {
    const Loss loss = static_cast<Loss>(i);
    losses.push_back({{"key", to_string(loss)},
                      {"name", describe(loss)},
                      {"outside_of_steps", is_outside_of_steps(loss)},
                      {"predicted", amount_json(waterfall, waterfall.predicted, loss)},
                      {"measured", amount_json(waterfall, waterfall.measured, loss)}});
  }
  const auto seconds = [](const std::optional<Descent>& descent, double Descent::*field) {
    return descent ? json((*descent).*field) : json();
  };
  return {{"schema", "lockstep.waterfall/1"},
          {"measure", to_string(waterfall.measure)},
          {"note", measure_note(waterfall)},
          {"steps", waterfall.steps},
          {"has_phases", waterfall.has_phases},
          {"communication_split_by", waterfall.split_by_plan ? "plan" : "spans"},
          {"usd_per_day", positive_or_null(waterfall.usd_per_day)},
          {"step_seconds",
           {{"predicted", seconds(waterfall.predicted, &Descent::step_seconds)},
            {"measured", seconds(waterfall.measured, &Descent::step_seconds)}}},
          {"ideal_seconds",
           {{"predicted", seconds(waterfall.predicted, &Descent::ideal_seconds)},
            {"measured", seconds(waterfall.measured, &Descent::ideal_seconds)}}},
          {"achieved_percent",
           {{"predicted", total_json(waterfall.predicted, &Descent::mfu)},
            {"measured", total_json(waterfall.measured, &Descent::mfu)}}},
          {"overall_percent",
           {{"predicted", total_json(waterfall.predicted, &Descent::overall)},
            {"measured", total_json(waterfall.measured, &Descent::overall)}}},
          {"losses", losses}};
}

}  // namespace lockstep::report
