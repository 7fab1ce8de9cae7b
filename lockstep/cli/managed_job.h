// The job of a container that a managed service starts. SageMaker runs an image as `docker run IMAGE train` and leaves
// no room for arguments; the others can set a variable more easily than a command.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace lockstep::cli {

// `train` or `launch` with nothing behind it becomes `launch JOB [key=value ...]`: the job that LOCKSTEP_JOB names,
// else the hyperparameter `job` of SageMaker's file, whose other entries are overrides. Other words, and these where
// neither is there, come back as they are. Values never become flags. Throws UserError for a file that names no job.
std::vector<std::string> with_managed_job(
    std::vector<std::string> words,
    const std::filesystem::path& hyperparameters = "/opt/ml/input/config/hyperparameters.json");

}  // namespace lockstep::cli
