// The parts of a run's page below its front. Each appends its blocks, or none where there is nothing to say.
#pragma once

#include <vector>

#include "lockstep/report/run_page/run_page.h"

namespace lockstep::report {

void add_findings(std::vector<Block>& blocks, const RunPage& page);
void add_waterfall(std::vector<Block>& blocks, const RunReport& report);
void add_curves(std::vector<Block>& blocks, const RunReport& report);
void add_plan(std::vector<Block>& blocks, const RunReport& report);
void add_ranks(std::vector<Block>& blocks, const RunPage& page);
void add_memory(std::vector<Block>& blocks, const RunReport& report);
void add_incidents(std::vector<Block>& blocks, const RunReport& report);
void add_environment(std::vector<Block>& blocks, const RunReport& report);

}  // namespace lockstep::report
