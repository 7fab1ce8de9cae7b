// The rules for device traces: figures in, findings out.
#pragma once

#include <vector>

#include "lockstep/diagnose/diagnosis.h"
#include "lockstep/diagnose/foreign/figures.h"
#include "lockstep/diagnose/foreign/trace.h"

namespace lockstep::diagnose {

// Traces of one job: one rank or many.
std::vector<Finding> trace_findings(const std::vector<Trace>& traces);

// More tokens/s in percent when `percent` of the step no longer takes time.
double gain_of(double percent);

// The rank that the others wait for in collectives, and what it is slow at; `waited_percent` is what its peers lose of
// their step. Nothing where there are less than two ranks, where collectives cannot be matched, or where no rank
// stands out.
std::vector<Finding> late_rank_findings(const std::vector<Trace>& traces, double& waited_percent);

}  // namespace lockstep::diagnose
