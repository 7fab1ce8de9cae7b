// SlurmArray: one program as the tasks of a job array, each on a node of its own choosing, numbered from 0. A task that
// is gone is submitted anew under its number.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "lockstep/schedulers/scheduler.h"
#include "lockstep/schedulers/slurm.h"

namespace lockstep::schedulers {

struct ArrayRequest {
  std::string name;
  std::filesystem::path folder;                    // on a file system that the nodes see: script and logs
  std::filesystem::path directory;                 // that the tasks run in, unless the settings say
  std::vector<std::string> words;                  // of a task; its number comes last
  std::map<std::string, std::string> environment;  // of the tasks
  std::int64_t tasks = 1;
  std::int64_t devices = 1;  // of a task
  bool has_gpus = false;
  LaunchSettings settings;
};

// Thread-safe. What was submitted is the caller's to cancel().
class SlurmArray {
 public:
  explicit SlurmArray(ArrayRequest request);

  std::vector<std::string> command(std::int64_t first, std::int64_t last) const;  // of sbatch, for those tasks
  void submit();                                                                  // all tasks
  void submit_again(std::int64_t task);                                           // ends the one that is there, if any
  // Asks Slurm at most every few seconds. A task that Slurm does not know (any more) is kFailed.
  State state(std::int64_t task);
  void cancel();  // all of them, at once
  std::string ids() const;

 private:
  std::string submit(std::int64_t first, std::int64_t last);
  void look();

  const ArrayRequest request_;
  const SlurmSettings slurm_;
  mutable std::mutex mutex_;
  std::map<std::int64_t, std::string> jobs_;  // by task: the array it is in now
  std::map<std::string, State> states_;       // by "array_task"
  std::map<std::int64_t, double> submitted_at_;
  double looked_at_ = -1e9;
};

}  // namespace lockstep::schedulers
