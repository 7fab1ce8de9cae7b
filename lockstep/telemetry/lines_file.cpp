#include "lockstep/telemetry/lines_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

namespace lockstep::telemetry {
namespace {

// A line longer than this is none of ours (the largest has a plan and a job file).
constexpr std::size_t kMaxLineBytes = 64u << 20;

UserError failure(const char* call, const std::filesystem::path& path) {
  return environment_error(fmt::format("{} failed: {}", call, std::strerror(errno)), "free space or set LOCKSTEP_HOME",
                           {path.string()});
}

// Where the last whole line ends.
off_t whole_lines(int file, const std::filesystem::path& path) {
  const off_t end = ::lseek(file, 0, SEEK_END);
  if (end < 0) throw failure("lseek", path);
  for (off_t at = end; at > 0;) {
    char block[4096];
    const off_t from = std::max<off_t>(0, at - static_cast<off_t>(sizeof(block)));
    const ssize_t got = ::pread(file, block, static_cast<std::size_t>(at - from), from);
    if (got != at - from) throw failure("pread", path);
    const std::string_view text(block, static_cast<std::size_t>(got));
    if (const auto newline = text.rfind('\n'); newline != std::string_view::npos)
      return from + static_cast<off_t>(newline) + 1;
    at = from;
  }
  return 0;
}

}  // namespace

std::string one_line(const nlohmann::json& value) {
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

LinesFile::LinesFile(std::filesystem::path path, Open how) : path_(std::move(path)) {
  const int create = how == Open::kNew ? O_CREAT | O_EXCL : how == Open::kEither ? O_CREAT : 0;
  file_ = UniqueFd(::open(path_.c_str(), O_RDWR | O_CLOEXEC | create, 0644));
  if (!file_) throw failure("open", path_);
}

bool LinesFile::lock() { return ::flock(file_.get(), LOCK_EX | LOCK_NB) == 0; }

void LinesFile::drop_torn_end() {
  end_ = whole_lines(file_.get(), path_);
  if (::ftruncate(file_.get(), end_) != 0) throw failure("ftruncate", path_);
}

void LinesFile::append(std::string_view text, bool durable) {
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t written =
        ::pwrite(file_.get(), text.data() + done, text.size() - done, end_ + static_cast<off_t>(done));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      const UserError error = failure("write", path_);
      [[maybe_unused]] const int ignored = ::ftruncate(file_.get(), end_);
      throw error;
    }
    done += static_cast<std::size_t>(written);
  }
  end_ += static_cast<off_t>(text.size());
  if (durable && ::fdatasync(file_.get()) != 0) throw failure("fdatasync", path_);
}

bool read_lines(const std::filesystem::path& path, LinesPosition& position, const TakeLine& take) {
  std::ifstream file(path, std::ios::binary);
  if (!file || !file.seekg(position.bytes))
    throw environment_error("cannot be opened", "check the path", {path.string()});
  std::string line;
  while (std::getline(file, line)) {
    const SourcePlace place{path.string(), position.lines + 1};
    if (line.size() > kMaxLineBytes) throw bad_input("a line of more than 64 MiB", "remove the line", place);
    if (file.eof()) return !line.empty();  // no newline: whoever wrote it was killed, or is about to go on
    if (!line.empty()) take(line, place);
    position.bytes += static_cast<std::int64_t>(line.size()) + 1;
    ++position.lines;
  }
  return false;
}

bool read_lines(const std::filesystem::path& path, const TakeLine& take) {
  LinesPosition position;
  return read_lines(path, position, take);
}

}  // namespace lockstep::telemetry
