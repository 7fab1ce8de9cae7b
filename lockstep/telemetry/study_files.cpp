// Studies as JSON-lines files, one each. The owner holds a lock on the file that the kernel drops with the process.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>

#include "lockstep/base/clock.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/telemetry/study_lines.h"

namespace lockstep::telemetry {
namespace {

constexpr const char* kSuffix = ".jsonl";

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

// A file that this process owns.
class OwnedFile {
 public:
  OwnedFile(std::filesystem::path path, bool create) : path_(std::move(path)) {
    file_ = UniqueFd(::open(path_.c_str(), O_RDWR | O_CLOEXEC | (create ? O_CREAT | O_EXCL : 0), 0644));
    if (!file_) throw failure("open", path_);
  }

  bool lock() { return ::flock(file_.get(), LOCK_EX | LOCK_NB) == 0; }

  // A line that a kill cut short must not run into the next one. Only under the lock.
  void drop_torn_end() {
    end_ = whole_lines(file_.get(), path_);
    if (::ftruncate(file_.get(), end_) != 0) throw failure("ftruncate", path_);
  }

  // On disk when it returns; all of the line or none of it.
  void append(std::string line) {
    line += '\n';
    std::size_t done = 0;
    while (done < line.size()) {
      const ssize_t written =
          ::pwrite(file_.get(), line.data() + done, line.size() - done, end_ + static_cast<off_t>(done));
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) {
        const UserError error = failure("write", path_);
        [[maybe_unused]] const int ignored = ::ftruncate(file_.get(), end_);
        throw error;
      }
      done += static_cast<std::size_t>(written);
    }
    end_ += static_cast<off_t>(line.size());
    if (::fdatasync(file_.get()) != 0) throw failure("fdatasync", path_);
  }

 private:
  std::filesystem::path path_;
  UniqueFd file_;
  off_t end_ = 0;
};

struct Owned {
  OwnedFile file;
  std::map<std::int64_t, AttemptRow> running;         // by trial
  std::map<std::int64_t, std::int64_t> next_attempt;  // by trial
};

class StudyFiles : public StudyStore {
 public:
  explicit StudyFiles(std::filesystem::path folder) : folder_(std::move(folder)) {}

  std::vector<StudyRow> studies(std::size_t limit) const override {
    std::vector<StudyRow> rows;
    for (const auto& id : ids()) {
      try {
        rows.push_back(read_study_file(path(id)).study);
      } catch (const UserError&) {  // one file that cannot be read must not hide the others; find() says what is wrong
      }
    }
    std::stable_sort(rows.begin(), rows.end(), [](const StudyRow& a, const StudyRow& b) {
      return std::pair(a.info.created_at, a.info.id) > std::pair(b.info.created_at, b.info.id);
    });
    if (rows.size() > limit) rows.resize(limit);
    return rows;
  }

  std::optional<StudyRow> find(const std::string& id) const override {
    if (id == "last") {
      auto newest = studies(1);
      return newest.empty() ? std::nullopt : std::optional(std::move(newest.front()));
    }
    std::vector<std::string> matches;
    for (const auto& known : ids()) {
      if (known == id) return read_study_file(path(id)).study;
      if (!id.empty() && known.starts_with(id)) matches.push_back(known);
    }
    if (matches.empty()) return std::nullopt;
    if (matches.size() > 1) throw several_studies(id, matches[0], matches[1]);
    return read_study_file(path(matches[0])).study;
  }

  std::vector<AttemptRow> attempts(const std::string& study) const override {
    return std::filesystem::exists(path(study)) ? read_study_file(path(study)).attempts : std::vector<AttemptRow>();
  }

  std::string create(StudyInfo info) override {
    info = owned_by_this_process(std::move(info));
    make_folders(folder_);
    const auto file = path(info.id);
    if (std::filesystem::exists(file)) throw study_exists(info.id);
    Owned owned{OwnedFile(file, true), {}, {}};
    if (!owned.file.lock()) throw failure("flock", file);
    owned.file.append(study_line(info));
    sync_folder(folder_);
    owned_.insert_or_assign(info.id, std::move(owned));
    return info.id;
  }

  void acquire(const std::string& study, bool take_over) override {
    if (!std::filesystem::exists(path(study))) throw no_such_study(study);
    Owned owned{OwnedFile(path(study), false), {}, {}};
    const bool locked = owned.file.lock();
    const StudyFile seen = read_study_file(path(study));
    check_may_acquire(seen.study, take_over);
    if (!locked) throw not_the_owner(study);  // whoever holds the lock has not written its line yet
    owned.file.drop_torn_end();
    owned.file.append(owner_line(owned_by_this_process({.id = study})));
    for (const AttemptRow& attempt : seen.attempts) owned.next_attempt[attempt.number] = attempt.attempt + 1;
    owned_.insert_or_assign(study, std::move(owned));
  }

  void release(const std::string& study, RunStatus status, const nlohmann::json& conclusion) override {
    owned(study).file.append(release_line(status, unix_seconds(), conclusion));
    owned_.erase(study);
  }

  std::int64_t begin_trial(const std::string& study, const AttemptRow& attempt) override {
    Owned& mine = owned(study);
    AttemptRow row = attempt;
    row.attempt = mine.next_attempt[row.number];
    row.state = AttemptState::kRunning;
    if (const auto old = mine.running.find(row.number); old != mine.running.end()) {
      old->second.state = AttemptState::kInterrupted;
      mine.file.append(attempt_line(old->second));
    }
    mine.file.append(attempt_line(row));
    ++mine.next_attempt[row.number];
    const std::int64_t chosen = row.attempt;
    mine.running.insert_or_assign(row.number, std::move(row));
    return chosen;
  }

  void alive(const std::string& study, std::int64_t number, double seconds, double gpu_seconds) override {
    AttemptRow& row = running(study, number);
    owned(study).file.append(alive_line(number, seconds, gpu_seconds));
    row.seconds = seconds;
    row.gpu_seconds = gpu_seconds;
  }

  void end_trial(const std::string& study, const AttemptRow& attempt) override {
    AttemptRow row = attempt;
    row.attempt = running(study, attempt.number).attempt;
    row.state = AttemptState::kEnded;
    owned(study).file.append(attempt_line(row));
    owned(study).running.erase(attempt.number);
  }

  void set_options(const std::string& study, const nlohmann::json& options) override {
    owned(study).file.append(options_line(options));
  }

  void adopt(const StudyRow& study, const std::vector<AttemptRow>& attempts) override {
    make_folders(folder_);
    const auto file = path(study.info.id);
    if (std::filesystem::exists(file)) check_may_acquire(read_study_file(file).study, false);
    std::string text = study_line(study.info) + "\n";
    for (const AttemptRow& attempt : attempts) text += attempt_line(attempt) + "\n";
    if (study.status != RunStatus::kRunning && study.status != RunStatus::kLost)
      text += release_line(study.status, study.ended_at, study.conclusion) + "\n";
    write_file_atomically(file, text);
  }

 private:
  std::filesystem::path path(const std::string& id) const {
    if (id.empty() || id.front() == '.' || id.find('/') != std::string::npos) throw no_such_study(id);
    return folder_ / (id + kSuffix);
  }

  std::vector<std::string> ids() const {
    std::vector<std::string> ids;
    std::error_code missing;
    for (const auto& entry : std::filesystem::directory_iterator(folder_, missing))
      if (entry.path().extension() == kSuffix && entry.path().filename().string().front() != '.')
        ids.push_back(entry.path().stem().string());
    std::sort(ids.begin(), ids.end());
    return ids;
  }

  Owned& owned(const std::string& study) {
    const auto found = owned_.find(study);
    if (found == owned_.end()) throw not_the_owner(study);
    return found->second;
  }

  AttemptRow& running(const std::string& study, std::int64_t number) {
    Owned& mine = owned(study);
    const auto found = mine.running.find(number);
    if (found == mine.running.end()) throw no_running_attempt(study, number);
    return found->second;
  }

  std::filesystem::path folder_;
  std::map<std::string, Owned> owned_;
};

}  // namespace

std::unique_ptr<StudyStore> make_json_lines_study_store(const std::filesystem::path& folder) {
  return std::make_unique<StudyFiles>(folder);
}

}  // namespace lockstep::telemetry
