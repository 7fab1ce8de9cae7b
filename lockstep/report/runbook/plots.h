// Drawings of a runbook, for HTML and PDF alike.
#pragma once

#include "lockstep/report/document/document.h"
#include "lockstep/report/runbook/quotes.h"

namespace lockstep::report {

Picture strategies_picture(Quotes& q, const char* unit);  // throughput with intervals
Picture memory_picture(Quotes& q);                        // terms one behind the other, up to the capacity
Picture time_picture(Quotes& q);                          // the same of a step
Picture node_loss_picture(Quotes& q, bool spare);         // the first seconds after a node dies
Picture losses_picture(Quotes& q);                        // where the time of the run goes that does not train
Picture scaling_picture(Quotes& q, const char* unit);

}  // namespace lockstep::report
