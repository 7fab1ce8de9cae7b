// Ctrl-C and SIGTERM, counted. The only process-wide state there is: a signal handler can reach nothing else.
#pragma once

namespace lockstep::cli {

// From now on SIGINT and SIGTERM only count. Idempotent.
void count_stop_signals();

// How often one of them came since.
int stop_signals();

}  // namespace lockstep::cli
