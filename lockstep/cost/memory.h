// Peak bytes of one rank, by term. Pure functions. Data parallel (replicated state) so far.
#pragma once

#include <cstdint>

#include "lockstep/cost/profile/profile.h"
#include "lockstep/cost/step_time.h"
#include "lockstep/plan/plan.h"

namespace lockstep::cost {

// Bytes of one parameter's weight copies, gradient and optimizer state as the engine keeps them: fp32 and fp64 train in
// place; 16-bit precisions keep a 32-bit master copy, counted with the optimizer (Rajbhandari et al. 2020, ZeRO,
// section 3.1).
struct StateBytes {
  double parameter = 0;
  double gradient = 0;
  double optimizer = 0;
};
StateBytes state_bytes_per_parameter(spec::Precision precision, spec::OptimizerKind optimizer);

// Bytes that one optimizer update reads and writes per parameter (fp32 AdamW: reads w, g, m, v and writes w, m, v: 28).
double optimizer_bytes_per_parameter(spec::Precision precision, spec::OptimizerKind optimizer);

// Elements kept from forward to backward by one micro-step (no recompute) x bytes of the precision.
double activation_bytes(const spec::Model& model, std::int64_t samples, std::int64_t sequence,
                        spec::Precision precision);

// All terms for a data-parallel layout. `profile` gives the framework's own bytes (may be null: 0).
// capacity is left 0 for the caller to fill. Throws UserError (exit code 3) for layouts that are not priced yet.
plan::MemoryBreakdown memory_of(const Workload& workload, const plan::Layout& layout, const Profile* profile);

}  // namespace lockstep::cost
