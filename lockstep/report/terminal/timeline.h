// A pipeline's step drawn: which rank works on which micro-batch when, and who waits. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "lockstep/plan/pipeline_schedule.h"
#include "lockstep/report/terminal/draw.h"

namespace lockstep::report {

// One row per rank of the pipeline: digits are forwards by micro-batch (1, 2, ... modulo 10), letters (a, b, ...) their
// backwards or input gradients, w weight gradients, '.' is idle. Beyond `most_rows` ranks those in the middle are left
// out. Every line ends with '\n'.
std::string draw_timeline(const std::vector<plan::PlayedTask>& played, int stages, int cells, int most_rows,
                          const TerminalStyle& style);

}  // namespace lockstep::report
