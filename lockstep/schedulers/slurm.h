// Slurm: what its scheduler (`--on slurm`) and its job arrays (slurm_array.h) share.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/schedulers/submission.h"

namespace lockstep::schedulers {

// The section `launch.slurm` (docs/reference/launch.md).
struct SlurmSettings {
  std::string partition, account, qos, constraint, reservation, node_list, exclude;
  std::string gres;  // of a node; "": by the job's devices; "none": none
  bool exclusive = false;
  std::vector<std::string> mounts;   // of containers: /data:/data
  std::vector<std::string> options;  // more of sbatch's: --mail-type=END
};
// Throws UserError for unknown keys, for options that are not options and for those that would undo ours.
SlurmSettings read_slurm_settings(const LaunchSettings& settings);

// What sbatch is told about a job of `nodes` nodes with `devices` each, wherever it runs from; one word per option.
std::vector<std::string> resource_options(const LaunchSettings& settings, const SlurmSettings& slurm,
                                          std::int64_t nodes, std::int64_t devices, bool has_gpus);

// srun's options for launch.image, which sees `folder` under its own name. Throws UserError for one it cannot mount.
std::vector<std::string> container_options(const LaunchSettings& settings, const SlurmSettings& slurm,
                                           const std::filesystem::path& folder);
// Throws UserError (environment) where launch.image is set and this Slurm cannot start containers.
void require_containers(const LaunchSettings& settings);

// A path as Slurm reads it in --output: '%' begins a pattern there.
std::string slurm_path(const std::filesystem::path& path);

// The number in what `sbatch --parsable` printed. Throws UserError (environment) for anything else.
std::string job_id_of(const std::string& printed);

// The value of `key` in a line of `scontrol show job --oneliner`; "" when it is not there.
std::string job_field(const std::string& line, const std::string& key);

}  // namespace lockstep::schedulers
