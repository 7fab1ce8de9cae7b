// Studies as JSON-lines files, one each. The owner holds a lock on the file that the kernel drops with the process.

#include <algorithm>
#include <map>

#include "lockstep/base/clock.h"
#include "lockstep/base/file.h"
#include "lockstep/telemetry/find_row.h"
#include "lockstep/telemetry/lines_file.h"
#include "lockstep/telemetry/study_lines.h"

namespace lockstep::telemetry {
namespace {

constexpr const char* kSuffix = ".jsonl";

struct Owned {
  LinesFile file;
  std::map<std::int64_t, AttemptRow> running;         // by trial
  std::map<std::int64_t, std::int64_t> next_attempt;  // by trial
};

class StudyFiles : public StudyStore {
 public:
  explicit StudyFiles(std::filesystem::path folder) : folder_(std::move(folder)) {}

  std::vector<StudyRow> studies(std::size_t limit, const std::string& beginning) const override {
    std::vector<StudyRow> rows;
    for (const auto& id : ids()) {
      if (!id.starts_with(beginning)) continue;
      try {
        rows.push_back(read_study_file(path(id)).study);
      } catch (const UserError&) {  // a file that cannot be read must not hide the others; asking for it says why
        if (id == beginning) throw;
      }
    }
    keep_newest(rows, &StudyInfo::created_at, limit);
    return rows;
  }

  std::vector<AttemptRow> attempts(const std::string& study) const override {
    return std::filesystem::exists(path(study)) ? read_study_file(path(study)).attempts : std::vector<AttemptRow>();
  }

  std::string create(StudyInfo info) override {
    info = owned_by_this_process(std::move(info));
    make_folders(folder_);
    const auto file = path(info.id);
    if (std::filesystem::exists(file)) throw study_exists(info.id);
    Owned owned{LinesFile(file, LinesFile::Open::kNew), {}, {}};
    if (!owned.file.lock()) throw not_the_owner(info.id);
    append(owned.file, study_line(info));
    sync_folder(folder_);
    owned_.insert_or_assign(info.id, std::move(owned));
    return info.id;
  }

  void acquire(const std::string& study, bool take_over) override {
    if (!std::filesystem::exists(path(study))) throw no_such_study(study);
    Owned owned{LinesFile(path(study), LinesFile::Open::kExisting), {}, {}};
    const bool locked = owned.file.lock();
    const StudyFile seen = read_study_file(path(study));
    check_may_acquire(seen.study, take_over);
    if (!locked) throw not_the_owner(study);  // whoever holds the lock has not written its line yet
    owned.file.drop_torn_end();
    append(owned.file, owner_line(owned_by_this_process({.id = study})));
    for (const AttemptRow& attempt : seen.attempts) owned.next_attempt[attempt.number] = attempt.attempt + 1;
    owned_.insert_or_assign(study, std::move(owned));
  }

  void release(const std::string& study, RunStatus status, const nlohmann::json& conclusion) override {
    append(owned(study).file, release_line(status, unix_seconds(), conclusion));
    owned_.erase(study);
  }

  std::int64_t begin_trial(const std::string& study, const AttemptRow& attempt) override {
    Owned& mine = owned(study);
    AttemptRow row = attempt;
    row.attempt = mine.next_attempt[row.number];
    row.state = AttemptState::kRunning;
    if (const auto old = mine.running.find(row.number); old != mine.running.end()) {
      old->second.state = AttemptState::kInterrupted;
      append(mine.file, attempt_line(old->second));
    }
    append(mine.file, attempt_line(row));
    ++mine.next_attempt[row.number];
    const std::int64_t chosen = row.attempt;
    mine.running.insert_or_assign(row.number, std::move(row));
    return chosen;
  }

  void alive(const std::string& study, std::int64_t number, double seconds, double gpu_seconds) override {
    AttemptRow& row = running(study, number);
    append(owned(study).file, alive_line(number, seconds, gpu_seconds));
    row.seconds = seconds;
    row.gpu_seconds = gpu_seconds;
  }

  void end_trial(const std::string& study, const AttemptRow& attempt) override {
    AttemptRow row = attempt;
    row.attempt = running(study, attempt.number).attempt;
    row.state = AttemptState::kEnded;
    append(owned(study).file, attempt_line(row));
    owned(study).running.erase(attempt.number);
  }

  void set_options(const std::string& study, const nlohmann::json& options) override {
    append(owned(study).file, options_line(options));
  }

 private:
  // On disk before the study goes on.
  static void append(LinesFile& file, const std::string& line) { file.append(line + "\n", true); }

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
