// Does a checkpoint belong to this job? Compared key by key with the job it holds (spec/job_identity.h).
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/spec/job.h"

namespace lockstep::engine {

// What a checkpoint keeps of the contents of the data: {"path": fingerprint, "tokenizer": fingerprint}.
nlohmann::json data_contents(const spec::Data& data);

struct ResumeCheck {
  const spec::Job& job;           // of this run
  const nlohmann::json& data;     // data_contents() of this run
  std::int64_t global_batch = 0;  // samples of a step of this run
  bool accept_changes = false;    // --accept-changes
};

// What has changed since the checkpoint was saved, one line each, for people. `saved_job` is the YAML that it holds,
// `saved_loader` its position in the data. Throws UserError (bad input) when the model is another
// one, and when other samples would come unless the changes are accepted.
std::vector<std::string> check_resume(const std::string& saved_job, const nlohmann::json& saved_loader,
                                      const ResumeCheck& now);

}  // namespace lockstep::engine
