// Counting parameters in floating point: for checking that the exact count fits before it is taken.
#pragma once

#include "lockstep/spec/model.h"

namespace lockstep::spec {

// parameter_count(model) to about 15 digits, without overflow.
double parameter_count_estimate(const Model& model);

}  // namespace lockstep::spec
