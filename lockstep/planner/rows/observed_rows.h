// Rows with a measurement as what a Posterior is conditioned on (cost/profile/posterior.h).
#pragma once

#include <functional>

#include "lockstep/cost/pricer/pricer.h"
#include "lockstep/cost/profile/posterior.h"
#include "lockstep/planner/rows/rows.h"

namespace lockstep::planner {

// What any profile with the facts and the kind of `profile` says of a question. Keeps a Pricer; not thread-safe.
std::function<cost::RunFigures(const cost::Profile&)> figures_of(const RowQuestion& question,
                                                                 const cost::Profile& profile);

// The bytes that a row's memory was measured of, where `price` is `pricer`'s of the question: of the rank that needs
// most or of rank 0, allocated or as nvidia-smi shows it.
double memory_bytes_of(const RowQuestion& question, const cost::Pricer& pricer, const cost::Price& price);

// A measured row for the posterior of `target`. `own` is the profile that prices the row: where it is of other hardware
// or of another stack than `target`, the row says by what factors constants are off, and says it less surely.
cost::ObservedRun observed_row(std::string name, const RowQuestion& question, const cost::Profile& own,
                               const cost::Profile& target);

}  // namespace lockstep::planner
