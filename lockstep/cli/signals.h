// Ctrl-C and SIGTERM, counted. The only process-wide state there is: a signal handler can reach nothing else.
#pragma once

namespace lockstep::cli {

// What a second signal does: the agent counts it and kills its ranks; a process that computes itself ends at once.
enum class SecondSignal { kCounts, kExits };

// From now on SIGINT and SIGTERM count. The last call decides about the second signal.
void count_stop_signals(SecondSignal second);

// How often one of them came since.
int stop_signals();

}  // namespace lockstep::cli
