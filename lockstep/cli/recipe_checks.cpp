#include "lockstep/cli/recipe_checks.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/telemetry/recorder.h"

namespace lockstep::cli {
namespace {

std::filesystem::path file_of(const std::string& study) {
  return telemetry::home_directory() / "studies" / study / "checks.jsonl";
}

std::string kept(const std::filesystem::path& path) {
  std::error_code none;
  return std::filesystem::is_regular_file(path, none) ? read_file(path, 16u << 20) : std::string();
}

}  // namespace

void keep_check(const std::string& study, const report::CheckResult& check) {
  try {
    const std::filesystem::path path = file_of(study);
    make_folders(path.parent_path());
    write_file_atomically(path, kept(path) + report::to_json(check).dump() + "\n");
  } catch (const UserError& error) {
    fmt::print(stderr, "lockstep: note: the check is not kept: {}\n", error.what());
  }
}

std::optional<report::CheckResult> last_check(const std::string& study) {
  std::optional<report::CheckResult> last;
  for (const std::string& line : split(kept(file_of(study)), '\n')) {
    if (trim(line).empty()) continue;
    const nlohmann::json document = nlohmann::json::parse(line, nullptr, false);
    if (const auto check = report::check_from_json(document)) last = check;
  }
  return last;
}

}  // namespace lockstep::cli
