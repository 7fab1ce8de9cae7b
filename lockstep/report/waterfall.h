// MFU from peak to achieved: where every second of a step and every dollar of a day goes, predicted beside measured.
//
// A step of S seconds would take `ideal` seconds at the peak of the devices, so that MFU = ideal / S; every other
// second of the step is a loss, and loses its share of the peak. Below the MFU of a step stands what is lost outside of
// steps: of an hour in which steps run for a share g (goodput), MFU x g is achieved over all. Seconds are the mean of
// the ranks, for all of them are paid. Losses add up to the peak exactly: what no phase names is `host`.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/enum_names.h"
#include "lockstep/report/run_facts.h"
#include "lockstep/report/span_shares.h"

namespace lockstep::report {

enum class Loss : std::uint8_t {
  kKernels = 0,  // computing slower than the peak
  kRecompute,    // forward done again to save memory
  kBubble,       // pipeline stages wait for each other
  kTensorComm,   // transfers that nothing hides, by who communicates
  kContextComm,
  kExpertComm,
  kPipelineComm,
  kDataComm,
  kStragglers,  // in a collective, a peer was not there yet
  kLoader,
  kOptimizer,
  kCheckpoint,  // the stall
  kSelection,   // predicted alone: what the best of many predictions lacks (planner/selection.h)
  kHost,        // what is left of the step
  kRestarts,    // outside of steps from here: recoveries, and steps done again
  kOutside,     // start, evaluation, end
};
inline constexpr std::size_t kLosses = static_cast<std::size_t>(Loss::kOutside) + 1;
constexpr auto names_of(Loss) {
  return enum_names<Loss::kOutside>("kernels", "recompute", "bubble", "tp_comm", "cp_comm", "ep_comm", "pp_comm",
                                    "dp_comm", "stragglers", "loader", "optimizer", "checkpoint", "selection", "host",
                                    "restarts", "outside");
}
const char* describe(Loss loss);  // for people: "kernels below peak"
constexpr bool is_outside_of_steps(Loss loss) { return loss >= Loss::kRestarts; }

// One side of the waterfall: predicted or measured.
struct Descent {
  double step_seconds = 0.0;
  double ideal_seconds = 0.0;  // of a step at peak
  // Of a step; of what is outside of steps, per step.
  std::vector<double> seconds = std::vector<double>(kLosses, 0.0);

  double outside_seconds() const;
  double mfu() const { return step_seconds > 0.0 ? ideal_seconds / step_seconds : 0.0; }
  double overall() const;           // MFU over the whole time
  double share(Loss loss) const;    // of the peak
  double of_time(Loss loss) const;  // of the wall time, 0 to 1: what it costs
};

// What ends the descent. Without a known peak there is no MFU: computing is then counted as useful as a whole.
enum class Measure : std::uint8_t { kMfu = 0, kEfficiency, kComputing };
constexpr auto names_of(Measure) { return enum_names<Measure::kComputing>("mfu", "efficiency", "computing"); }

struct Waterfall {
  Measure measure = Measure::kMfu;
  std::int64_t steps = 0;    // measured over
  double usd_per_day = 0.0;  // of all devices; 0: no price is known
  std::optional<Descent> predicted;
  std::optional<Descent> measured;
  bool has_phases = true;      // false: only whole steps were recorded, all losses but the kernels are in `host`
  bool split_by_plan = false;  // communication was split as the plan predicts it: the run kept no spans
};

Waterfall make_waterfall(const RunFacts& facts, const SpanShares& spans);
Waterfall make_waterfall(const RunFacts& facts, const telemetry::RunStore& store);

// Whether a loss shows on either side when rounded to a tenth of a percent.
bool is_worth_a_row(const Waterfall& waterfall, Loss loss);
// "MFU", "efficiency", "computing".
std::string measure_title(Measure measure);
// Says what the measure is where it is not MFU; "" for MFU.
std::string measure_note(const Waterfall& waterfall);

nlohmann::json to_json(const Waterfall& waterfall);  // docs/reference/report.md

}  // namespace lockstep::report
