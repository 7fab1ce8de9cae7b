#include "lockstep/diagnose/run.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/diagnose/detectors/detectors.h"
#include "lockstep/planner/money.h"

namespace lockstep::diagnose {
namespace {

using Detector = Findings (*)(const RunEvidence&);

// Hardware, then communication, then software.
constexpr Detector kDetectors[] = {find_hang,
                                   find_crash,
                                   find_hardware_error,
                                   find_throttling,
                                   find_oversubscription,
                                   find_memory_pressure,
                                   find_slow_rank,
                                   find_stages,
                                   find_data_imbalance,
                                   find_expert_imbalance,
                                   find_slow_link,
                                   find_small_messages,
                                   find_wrong_placement,
                                   find_exposed_communication,
                                   find_loader,
                                   find_checkpoint_stall,
                                   find_bubble,
                                   find_launch_bound,
                                   find_recompute,
                                   find_host_bound};

const Finding* find(const Findings& findings, Cause cause) {
  const auto found = std::find_if(findings.begin(), findings.end(), [cause](const Finding& f) {
    return f.cause == cause && f.cost_percent >= kWorthSayingPercent;
  });
  return found == findings.end() ? nullptr : &*found;
}

void drop(Findings& findings, Cause cause) {
  std::erase_if(findings, [cause](const Finding& finding) { return finding.cause == cause; });
}

// Whether all ranks of `effect` are among those of `cause`. Where one names none it is of all alike: what one rank
// causes, all of them wait for.
bool covers(const Finding& cause, const Finding& effect) {
  if (cause.ranks.empty() || effect.ranks.empty()) return true;
  return std::all_of(effect.ranks.begin(), effect.ranks.end(), [&](int rank) {
    return std::find(cause.ranks.begin(), cause.ranks.end(), rank) != cause.ranks.end();
  });
}

// What a cause shows as elsewhere, where it is as dear as `part` of that.
struct Consequence {
  Cause cause;
  Cause effect;
  double part = 0.5;
};
constexpr Consequence kConsequences[] = {
    {Cause::kThrottling, Cause::kSlowRank},
    {Cause::kHardwareError, Cause::kSlowRank},
    {Cause::kOversubscription, Cause::kSlowRank},
    {Cause::kOversubscription, Cause::kSlowLink},
    {Cause::kOversubscription, Cause::kExposedCommunication},
    {Cause::kOversubscription, Cause::kHostBound},
    {Cause::kOversubscription, Cause::kDataImbalance},
    {Cause::kDataImbalance, Cause::kSlowRank, 0.3},  // the mean of the ranks against the others
    {Cause::kExpertImbalance, Cause::kSlowRank, 0.3},
    {Cause::kExpertImbalance, Cause::kDataImbalance},
    {Cause::kWrongPlacement, Cause::kSlowLink},
    {Cause::kWrongPlacement, Cause::kExposedCommunication},
    {Cause::kSlowLink, Cause::kExposedCommunication},
    {Cause::kSlowLink, Cause::kSmallMessages},
    {Cause::kSmallMessages, Cause::kExposedCommunication},
};

void fold_consequences(Findings& findings) {
  for (const auto& [cause, effect, part] : kConsequences) {
    const Finding* const first = find(findings, cause);
    const Finding* const second = find(findings, effect);
    if (first == nullptr || second == nullptr) continue;
    if (first->cost_percent < part * second->cost_percent || !covers(*first, *second)) continue;
    drop(findings, effect);
  }
  // A run that ended: the first cause of that, and how slow it had been does not matter.
  if (find(findings, Cause::kHang) != nullptr) drop(findings, Cause::kCrash);
  const Finding* const broken = find(findings, Cause::kHardwareError);
  if (broken != nullptr && broken->cost_percent >= 100.0) drop(findings, Cause::kCrash);
  // Idle time that an uneven or slow stage causes is not the schedule's.
  for (Finding& bubble : findings) {
    if (bubble.cause != Cause::kBubble) continue;
    for (const Cause cause : {Cause::kStageImbalance, Cause::kSlowRank}) {
      if (const Finding* const other = find(findings, cause)) bubble.cost_percent -= 0.5 * other->cost_percent;
    }
  }
}

void add_prices(Findings& findings, const RunEvidence& evidence) {
  if (!evidence.run) return;
  const plan::Run& run = *evidence.run;
  if (run.layout.world() > run.cluster.devices()) return;
  const double usd = planner::hourly_price(run.cluster, run.layout.world()).usd;
  for (Finding& finding : findings) finding.cost_usd_per_hour = usd * finding.cost_percent / 100.0;
}

}  // namespace

Diagnosis diagnose_evidence(const RunEvidence& evidence) {
  Diagnosis diagnosis;
  diagnosis.read.push_back({evidence.row.info.id, "run", evidence.row.info.world});
  for (const Detector detector : kDetectors) {
    Findings found = detector(evidence);
    std::move(found.begin(), found.end(), std::back_inserter(diagnosis.findings));
  }
  fold_consequences(diagnosis.findings);
  settle(diagnosis);
  add_prices(diagnosis.findings, evidence);
  return diagnosis;
}

Diagnosis diagnose_run(const telemetry::RunStore& store, const std::string& run, const StepRange& range) {
  const std::optional<telemetry::RunRow> row = store.find(run);
  if (!row) throw bad_input(fmt::format("there is no run `{}`", printable(run)), "see `lockstep report --list`");
  return diagnose_evidence(read_evidence(store, *row, range));
}

}  // namespace lockstep::diagnose
