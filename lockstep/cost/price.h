// The price of a Run: what one optimizer step takes and what a rank holds. The one place that decides by what a run is
// priced, so that `plan`, `train` and `tune` state the same figures. Pure functions.
//
//   time    fused      the profile was measured with the fused step, and that step executes the run: fused/time.h
//           tables     a calibrated machine without constants of its own, plain data parallel, a model whose operators
//                      are known (flops.h): step_time.h
//           formulas   everything else: pricer/pricer.h
//   memory  engine's   the profile is of the engine of this repository (is_of_this_engine): engine_memory.h, counted
//           fitted     of another stack, generic ones included: what its published runs were fitted to
//
// Pricer is the same for loops: wherever it prices time too (not tables), price() equals Pricer::price(); memory is
// equal everywhere.
#pragma once

#include "lockstep/cost/pricer/pricer.h"
#include "lockstep/plan/run.h"

namespace lockstep::cost {

enum class PricedBy { kTables, kFormulas, kFused };

struct RunPrice : Price {
  PricedBy by = PricedBy::kFormulas;
  plan::Prediction prediction;  // with intervals (90%)
};

PricedBy priced_by(const plan::Run& run, const Profile& profile);

// `run` has no refusal (plan/verdict.h). Throws UserError as Pricer and predict_step() do. Whether it fits is the
// caller's to say: fits().
RunPrice price(const plan::Run& run, const Profile& profile, const NcclKnobs& nccl = {});

// price().memory, also without a profile (null: what the engine holds, nothing of the framework).
plan::MemoryBreakdown memory_of(const plan::Run& run, const Profile* profile);

// The run's question to a Pricer.
PricerOptions options_of(const plan::Run& run, const NcclKnobs& nccl = {});

}  // namespace lockstep::cost
