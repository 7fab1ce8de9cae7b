// Programs of this machine that carry a submission to its nodes and live no longer than the submitter: ssh, mpirun.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/process.h"
#include "lockstep/schedulers/scheduler.h"

namespace lockstep::schedulers {

class Children {
 public:
  struct Start {
    std::vector<std::string> argv;
    std::map<std::string, std::string> environment;
    std::string input;   // written to its standard input, which stays open
    std::string prefix;  // before each line it prints
  };
  // Throws UserError when the program is missing.
  void start(const Start& start);
  // One more line to the standard input of all that are left.
  void tell(const std::string& line);
  // SIGINT to all that are left.
  void interrupt();
  // Whole lines that were printed since the last call, what is left of the last one when its program has ended.
  std::string read();
  bool any_left() const;
  // Of those that have ended, in the order they were started in; nullopt where it has not.
  std::vector<std::optional<ExitStatus>> ends() const;

 private:
  struct Child {
    Process process;
    std::string prefix;
    std::string partial[2];  // of stdout and stderr
  };
  std::vector<std::unique_ptr<Child>> children_;
};

// The lines of `children`, which must outlive it.
std::unique_ptr<LogSource> follow_children(Children& children);

// The State of a run whose nodes ended so: an agent that did all its work speaks for the run, one that was cut off does
// not.
State state_of_ends(const Children& children);

}  // namespace lockstep::schedulers
