// Signals that ask a run to end, counted. The only process-wide state there is: a signal handler can reach nothing
// else.
#pragma once

namespace lockstep::cli {

// What a second Ctrl-C or SIGTERM does: the agent counts it and kills its ranks; a process that computes itself ends at
// once.
enum class SecondSignal { kCounts, kExits };

// From now on SIGINT, SIGTERM, SIGHUP, SIGQUIT and SIGUSR1 count. A SIGHUP that was ignored (nohup) stays ignored. The
// last call decides about the second signal.
void count_stop_signals(SecondSignal second);

// How often the user asked to stop. A lost terminal and a time limit are told by several signals at once and in any
// number: SIGHUP, SIGQUIT and SIGUSR1 together count once. A scheduler that ends a job sends SIGTERM to agents and
// ranks alike, and the agents then tell the ranks with SIGINT: one of each is one wish, told twice.
int stop_signals();

// The signal that asked first; 0: none did.
int stop_signal();

// SIGUSR1 came: the scheduler will start the run again.
bool requeue_was_asked();

// From now on writing to a pipe that nobody reads is an error of the write and not the end of the process.
void survive_closed_pipes();

// The variable LOCKSTEP_PARENT names the process that started this one: when that is gone, this one gets SIGTERM.
// Nothing without the variable.
void end_with_parent();

// Whether standard output is a pipe or socket whose reader is gone.
bool nobody_reads_stdout();

}  // namespace lockstep::cli
