#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/telemetry/recorder.h"

namespace lockstep::telemetry {
namespace {

class JsonLinesSink : public Sink {
 public:
  JsonLinesSink(const std::filesystem::path& path, std::string run) : path_(path), run_(std::move(run)) {
    make_folders(path.parent_path());
    file_ = UniqueFd(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
    if (!file_) throw failure("open");
    end_ = ::lseek(file_.get(), 0, SEEK_END);
    if (end_ < 0) throw failure("lseek");
    start_new_line();
  }

  void write(std::span<const Record> batch) override {
    std::string text;
    for (const Record& record : batch) text += to_json_line(run_, record) + "\n";
    append(text);
  }

 private:
  // A process that was killed in the middle of a line must not spoil the first line of the next one.
  void start_new_line() {
    char last = '\n';
    const UniqueFd reader(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
    if (end_ > 0 && ::pread(reader.get(), &last, 1, end_ - 1) == 1 && last != '\n') append("\n");
  }

  // All of the text, or none of it: the batch is tried again after a failure.
  void append(const std::string& text) {
    std::size_t done = 0;
    while (done < text.size()) {
      const ssize_t written =
          ::pwrite(file_.get(), text.data() + done, text.size() - done, end_ + static_cast<off_t>(done));
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) {
        const UserError error = failure("write");
        [[maybe_unused]] const int ignored = ::ftruncate(file_.get(), end_);
        throw error;
      }
      done += static_cast<std::size_t>(written);
    }
    end_ += static_cast<off_t>(text.size());
  }

  UserError failure(const char* call) const {
    return environment_error(std::string(call) + " failed: " + std::strerror(errno), "free space or set LOCKSTEP_HOME",
                             {path_.string()});
  }

  std::filesystem::path path_;
  std::string run_;
  UniqueFd file_;
  off_t end_ = 0;
};

}  // namespace

std::unique_ptr<Recorder> make_json_lines_recorder(const std::filesystem::path& file, const std::string& run_id,
                                                   QueueOptions options) {
  return make_queued_recorder([file, run_id] { return std::make_unique<JsonLinesSink>(file, run_id); }, options);
}

}  // namespace lockstep::telemetry
