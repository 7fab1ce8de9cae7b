#include "lockstep/schedulers/submission.h"

#include <algorithm>
#include <cctype>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::schedulers {
namespace {

using nlohmann::json;

constexpr const char* kSchema = "lockstep.submission/1";

// Characters that `allowed` refuses become '-'; what the name may not begin or end with is cut off.
template <class Allowed>
std::string cleaned(const std::string& text, std::size_t most, Allowed allowed) {
  std::string name;
  for (const char c : text) {
    const char kept = allowed(static_cast<unsigned char>(c)) ? c : '-';
    if (kept == '-' && (name.empty() || name.back() == '-')) continue;
    name += kept;
  }
  name.resize(std::min(name.size(), most));
  const auto is_edge = [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); };
  while (!name.empty() && is_edge(name.back())) name.pop_back();
  name.erase(name.begin(), std::find_if_not(name.begin(), name.end(), is_edge));
  return name;
}

// As telemetry::make_run_id() writes them: fit to be the name of a file.
bool is_run_id(const std::string& text) {
  return !text.empty() && text.size() < kLongestName && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return c < 128 && (std::isalnum(c) || c == '-' || c == '_');
  });
}

}  // namespace

std::string dns_label(const std::string& text, std::size_t most) {
  std::string name = cleaned(to_lower(text), most, [](unsigned char c) { return c < 128 && std::isalnum(c); });
  if (name.empty()) return "lockstep";
  // Services must begin with a letter.
  if (std::isdigit(static_cast<unsigned char>(name.front()))) name = dns_label("r" + name, most);
  return name;
}

std::string plain_name(const std::string& text, std::size_t most) {
  const std::string name = cleaned(
      text, most, [](unsigned char c) { return c < 128 && (std::isalnum(c) || c == '-' || c == '_' || c == '.'); });
  return name.empty() ? "lockstep" : name;
}

std::vector<std::string> Submission::words(const std::string& job_path) const {
  std::string executable = settings.lockstep;
  if (executable.empty()) executable = settings.image.empty() ? lockstep : "lockstep";
  std::vector<std::string> words = {executable, verb};
  if (job) words.push_back(job_path);
  words.insert(words.end(), flags.begin(), flags.end());
  if (command.empty()) return words;
  words.emplace_back("--");
  words.insert(words.end(), command.begin(), command.end());
  return words;
}

std::map<std::string, std::string> Submission::environment() const {
  std::map<std::string, std::string> variables = settings.environment;
  variables["LOCKSTEP_SUBMITTED_RUN"] = run;
  return variables;
}

json to_json(const Submission& submission) {
  std::vector<std::string> words = submission.words(kJobPlaceholder);
  words.erase(words.begin());
  std::map<std::string, std::string> environment = submission.environment();
  environment["LOCKSTEP_TOKEN"] = submission.token;
  return {{"schema", kSchema},
          {"run", submission.run},
          {"job", submission.job ? json(*submission.job) : json()},
          {"arguments", words},
          {"environment", environment}};
}

NodeStart node_start_from_json(const std::string& text) {
  try {
    const json value = json::parse(text);
    if (value.at("schema") != kSchema) throw std::runtime_error("another schema");
    NodeStart start;
    value.at("run").get_to(start.run);
    if (!is_run_id(start.run)) throw std::runtime_error("a bad run id");
    if (!value.at("job").is_null()) start.job = value.at("job").get<std::string>();
    value.at("arguments").get_to(start.arguments);
    value.at("environment").get_to(start.environment);
    start.directory = value.value("directory", "");
    return start;
  } catch (const std::exception& error) {
    throw bad_input(std::string("this is not a submission: ") + printable(error.what(), 120),
                    "`lockstep launch --on ...` makes them; the versions on both sides must be the same");
  }
}

}  // namespace lockstep::schedulers
