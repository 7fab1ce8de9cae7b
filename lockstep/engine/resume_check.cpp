#include "lockstep/engine/resume_check.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/data/fingerprint.h"
#include "lockstep/spec/job_identity.h"

namespace lockstep::engine {
namespace {

using nlohmann::json;

bool is_of_model(const std::string& key) { return key.starts_with("model.") || key.starts_with("lora."); }

std::string text_in(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

// Where both fingerprints are known they decide, and the paths do not count.
void compare_contents(const json& before, const json& now, const char* key, const std::string& job_key,
                      std::vector<spec::KeyChange>& identity, std::vector<spec::KeyChange>& others) {
  const std::string was = text_in(before, key), is = text_in(now, key);
  if (was.empty() || is.empty()) return;
  const auto moved = std::find_if(identity.begin(), identity.end(), [&](const auto& c) { return c.key == job_key; });
  if (moved != identity.end()) {
    others.push_back(*moved);
    identity.erase(moved);
  }
  if (was != is) identity.push_back({"the contents of " + job_key, was, is});
}

void refuse(const std::vector<spec::KeyChange>& identity, bool accept_changes) {
  std::vector<spec::KeyChange> model;
  std::copy_if(identity.begin(), identity.end(), std::back_inserter(model),
               [](const auto& change) { return is_of_model(change.key); });
  if (!model.empty()) {
    throw bad_input("the checkpoint is of another model: " + spec::to_string(model),
                    "resume with the model it was made with, or start afresh in another checkpoint.directory");
  }
  if (identity.empty() || accept_changes) return;
  throw bad_input("the checkpoint is of another job, other samples would come: " + spec::to_string(identity),
                  "put it back as it was, start afresh in another checkpoint.directory, or add --accept-changes");
}

}  // namespace

json data_contents(const spec::Data& data) {
  const data::DataFingerprints found = data::fingerprints_of(data);
  return {{"path", found.path}, {"tokenizer", found.tokenizer}};
}

std::vector<std::string> check_resume(const std::string& saved_job, const json& saved_loader, const ResumeCheck& now) {
  const spec::Job before = spec::parse_job(saved_job, "checkpoint");
  std::vector<spec::KeyChange> identity, others;
  for (spec::KeyChange& change : spec::changes_between(before, now.job)) {
    (spec::is_identity(change.key) ? identity : others).push_back(std::move(change));
  }
  const json data = saved_loader.is_object() ? saved_loader.value("data", json::object()) : json::object();
  if (data.is_object()) {
    compare_contents(data, now.data, "path", "data.path", identity, others);
    compare_contents(data, now.data, "tokenizer", "data.tokenizer", identity, others);
  }
  refuse(identity, now.accept_changes);
  std::vector<std::string> notes;
  if (!identity.empty()) notes.push_back("warning: accepted, other samples come now: " + spec::to_string(identity));
  if (!others.empty()) notes.push_back("changed since the checkpoint: " + spec::to_string(others, 12));
  const auto batch = saved_loader.find("global_batch");
  if (batch != saved_loader.end() && batch->is_number_integer() && batch->get<std::int64_t>() != now.global_batch) {
    notes.push_back(
        fmt::format("warning: a step has {} samples now, {} before, and optimizer.learning_rate is {}; batch.micro x "
                    "batch.accumulation x data ranks gives the samples of a step",
                    now.global_batch, batch->get<std::int64_t>(), now.job.optimizer.learning_rate));
  }
  return notes;
}

}  // namespace lockstep::engine
