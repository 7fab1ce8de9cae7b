// Where the threads of a process are, for processes that hang.
#pragma once

#include <sys/types.h>

#include <string>

namespace lockstep {

// From now on every thread of this process that ask_for_stacks() reaches writes its stack to standard error.
void write_stacks_when_asked();

// One line per thread of another process of this user: name, state and what it waits for in the kernel. Works for a
// process that is stopped or stuck. "" when it is gone.
std::string thread_states(pid_t process);

// Asks every thread of `process` to write its stack. A thread that is stopped or stuck in the kernel does not.
void ask_for_stacks(pid_t process);

}  // namespace lockstep
