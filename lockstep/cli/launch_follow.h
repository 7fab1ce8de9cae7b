// Following a submission until it ends: its log, one status line, and the record in this user's store.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "lockstep/schedulers/scheduler.h"

namespace lockstep::cli {

// What is known of a submitted run; kept in its folder as submission.json, so that another process can go on following.
struct Followed {
  std::string on;
  schedulers::Submitted submitted;
  std::string name;
  bool recorded = true;
};
void save(const Followed& followed);
// Throws UserError when `run` (an id, its beginning, "last") was not submitted from here.
Followed load_followed(const std::string& run);

struct FollowOptions {
  bool json = false;
  bool cancel_on_interrupt = false;
  bool only_log = false;  // no status line, nothing at the end
};

// Prints what the run prints. Ctrl-C stops following, and cancels the run where asked for or where it cannot live
// without this process; a second one does not wait for it. Returns the run's exit code, 130 when it was left alone.
int follow(schedulers::Scheduler& scheduler, const Followed& followed, const FollowOptions& options);

}  // namespace lockstep::cli
