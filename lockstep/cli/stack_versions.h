// What measured figures depend on beside the setting: machine and software, named and pinned in the record of a study.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/tune/study/store_journal.h"

namespace lockstep::cli {

// Strings by name, only what could be found out: "kernel", "processor", "gpu", "nccl", "libtorch", "python", "torch",
// "transformers" ... `kind` is the study's: an engine study asks our engine, a command study the Python that it starts
// (`argv`, not run: only the packages installed beside it are read), a simulated one depends on nothing here. Takes up
// to two seconds; nothing is thrown.
nlohmann::json stack_versions(const std::string& kind, const std::vector<std::string>& argv);

// `setup` with what stack_versions() finds for it, and for a job its model, cluster and sequence length; what it says
// already stays.
tune::StudySetup with_versions(tune::StudySetup setup);

// One line for each name whose value differs or is gone: "torch: 2.10.0 then, 2.11.0 now".
std::vector<std::string> version_changes(const nlohmann::json& then, const nlohmann::json& now);

// The Python that a command line starts: the program itself when it is one, the one beside torchrun, accelerate or
// deepspeed; "" when there is none to be seen. Looks programs up in PATH.
std::string python_of(const std::vector<std::string>& argv);

}  // namespace lockstep::cli
