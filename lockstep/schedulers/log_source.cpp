#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <utility>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/schedulers/scheduler.h"

namespace lockstep::schedulers {
namespace {

constexpr std::size_t kMostAtOnce = 1u << 20;

class FileLog : public LogSource {
 public:
  explicit FileLog(std::filesystem::path file) : file_(std::move(file)) {}

  std::string read() override {
    if (!fd_) fd_ = UniqueFd(::open(file_.c_str(), O_RDONLY | O_CLOEXEC));
    std::string text;
    char buffer[65536];
    while (fd_ && text.size() < kMostAtOnce) {
      const ssize_t got = ::read(fd_.get(), buffer, sizeof(buffer));
      if (got <= 0) break;
      text.append(buffer, static_cast<std::size_t>(got));
    }
    return text;
  }

 private:
  const std::filesystem::path file_;
  UniqueFd fd_;
};

class CommandLog : public LogSource {
 public:
  CommandLog(std::vector<std::string> argv, double retry_seconds)
      : argv_(std::move(argv)), retry_seconds_(retry_seconds) {}

  std::string read() override {
    if (!process_) start();
    std::string text;
    char buffer[65536];
    while (process_ && text.size() < kMostAtOnce) {
      pollfd polled{process_->stdout_fd().get(), POLLIN, 0};
      if (!process_->stdout_fd() || ::poll(&polled, 1, 0) <= 0) break;
      const ssize_t got = ::read(process_->stdout_fd().get(), buffer, sizeof(buffer));
      if (got <= 0) {
        process_->stdout_fd().reset();
        break;
      }
      text.append(buffer, static_cast<std::size_t>(got));
    }
    if (process_ && !process_->stdout_fd()) look_at_end();
    return text;
  }

 private:
  void start() {
    if (done_ || monotonic_seconds() < next_try_) return;
    SpawnOptions options;
    options.argv = argv_;
    options.standard_output = StreamMode::kPipe;
    options.standard_error = StreamMode::kNull;
    process_.emplace(Process::spawn(options));
  }

  // One that ends well has said everything there is.
  void look_at_end() {
    const auto status = process_->poll();
    if (!status) return;
    done_ = status->ok();
    process_.reset();
    next_try_ = monotonic_seconds() + retry_seconds_;
  }

  const std::vector<std::string> argv_;
  const double retry_seconds_;
  std::optional<Process> process_;
  bool done_ = false;
  double next_try_ = 0.0;
};

}  // namespace

std::unique_ptr<LogSource> follow_file(const std::filesystem::path& file) { return std::make_unique<FileLog>(file); }

std::unique_ptr<LogSource> follow_command(std::vector<std::string> argv, double retry_seconds) {
  return std::make_unique<CommandLog>(std::move(argv), retry_seconds);
}

}  // namespace lockstep::schedulers
