// The layouts of the gate: every axis, every pair of axes, several triples, up to 16 ranks; each ZeRO stage, schedule,
// recomputation mode and exchange; accumulation.
#pragma once

#include <vector>

#include "tests/exact/exact_run.h"

namespace lockstep::exact {

std::vector<Case> every_case();

// Llama's relatives: every part of a block that Llama lacks under tp (also more ranks than key heads), cp, pp and
// ZeRO-3.
std::vector<Case> cases_of_relatives();

// A model that somebody else wrote, under what its units allow.
std::vector<Case> cases_of_plugins();

}  // namespace lockstep::exact
