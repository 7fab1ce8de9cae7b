#include "lockstep/checkpoint/health_note.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <system_error>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/checkpoint/manifest.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kNoteName = ".health";
constexpr std::uint64_t kMostBytes = 1 << 16;

}  // namespace

void write_health_note(const fs::path& folder, const HealthNote& note) {
  const json text = {{"sound_step", note.sound_step}, {"failed_step", note.failed_step}, {"reason", note.reason}};
  write_file_atomically(folder / kNoteName, text.dump(-1, ' ', false, json::error_handler_t::replace) + "\n");
}

std::optional<HealthNote> read_health_note(const fs::path& folder) {
  try {
    const json said = json::parse(read_file(folder / kNoteName, kMostBytes));
    return HealthNote{said.at("sound_step"), said.at("failed_step"), said.at("reason")};
  } catch (const UserError&) {
    return std::nullopt;
  } catch (const json::exception&) {
    return std::nullopt;
  }
}

void remove_health_note(const fs::path& folder) {
  std::error_code ignored;
  fs::remove(folder / kNoteName, ignored);
}

std::vector<fs::path> set_aside_after(const fs::path& folder, std::int64_t step) {
  std::vector<fs::path> later;
  std::error_code error;
  for (auto it = fs::directory_iterator(folder, error); !error && it != fs::end(it); it.increment(error)) {
    if (parse_step_folder(it->path().filename().string()) > step) later.push_back(it->path());
  }
  std::sort(later.begin(), later.end());
  for (fs::path& path : later) {
    const fs::path target = folder / ("set-aside-" + path.filename().string());
    fs::remove_all(target, error);
    fs::rename(path, target, error);
    if (error) throw environment_error("cannot be set aside: " + error.message(), "move it away", {path.string()});
    path = target;
  }
  if (!later.empty()) sync_folder(folder);
  return later;
}

}  // namespace lockstep::checkpoint
