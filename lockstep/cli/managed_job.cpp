#include "lockstep/cli/managed_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"

namespace lockstep::cli {
namespace {

bool is_key(const std::string& text) {
  const auto allowed = [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '.'; };
  return !text.empty() && std::isalpha(static_cast<unsigned char>(text[0])) != 0 &&
         std::all_of(text.begin(), text.end(), allowed);
}

// Every value is a string; SageMaker's Python library writes it as JSON first: "\"job.yaml\"".
std::string plain_text(const nlohmann::json& value) {
  if (!value.is_string()) return value.dump();
  const auto text = value.get<std::string>();
  const nlohmann::json inner = nlohmann::json::parse(text, nullptr, false);
  return inner.is_string() ? inner.get<std::string>() : text;
}

std::string checked_job(const std::string& job, const std::string& from) {
  if (!job.empty() && job[0] != '-') return job;
  throw bad_input(fmt::format("{} names the job file `{}`", from, printable(job)), "give the path of a job file");
}

std::vector<std::string> words_of(const std::filesystem::path& file) {
  const nlohmann::json values = nlohmann::json::parse(read_file(file), nullptr, false);
  if (!values.is_object() || !values.contains("job")) {
    throw bad_input(file.string() + " has no hyperparameter `job`",
                    "set it, or LOCKSTEP_JOB, to the path of a job file");
  }
  std::vector<std::string> words = {"launch", checked_job(plain_text(values["job"]), file.string())};
  for (const auto& [key, value] : values.items()) {
    if (key == "job" || key.rfind("sagemaker_", 0) == 0) continue;  // the latter are SageMaker's own
    if (!is_key(key)) {
      throw bad_input(fmt::format("the hyperparameter `{}` is not a field of a job", printable(key)),
                      "use the names of job fields: batch.micro");
    }
    words.push_back(key + "=" + plain_text(value));
  }
  return words;
}

}  // namespace

std::vector<std::string> with_managed_job(std::vector<std::string> words,
                                          const std::filesystem::path& hyperparameters) {
  if (words.size() != 1 || (words[0] != "train" && words[0] != "launch")) return words;
  if (const char* job = std::getenv("LOCKSTEP_JOB"); job != nullptr && *job != '\0') {
    return {"launch", checked_job(job, "LOCKSTEP_JOB")};
  }
  return std::filesystem::exists(hyperparameters) ? words_of(hyperparameters) : words;
}

}  // namespace lockstep::cli
