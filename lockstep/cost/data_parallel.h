// The layouts that cost/ prices so far.
#pragma once

#include "lockstep/plan/layout.h"

namespace lockstep::cost {

// Throws UserError (exit code 3) unless dp is the only axis above 1, without ZeRO and without recompute.
void require_data_parallel(const plan::Layout& layout);

}  // namespace lockstep::cost
