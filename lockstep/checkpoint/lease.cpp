#include "lockstep/checkpoint/lease.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/telemetry/schema.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kLeaseName = ".lease";
constexpr std::uint64_t kMostBytes = 1 << 16;
constexpr auto kPoll = std::chrono::milliseconds(50);

struct Content {
  LeaseOwner owner;
  std::int64_t pid_started = 0;
  std::int64_t beat = 0;
};

json to_json(const Content& content) {
  const LeaseOwner& owner = content.owner;
  return {{"run", owner.run},
          {"host", owner.host},
          {"pid", owner.pid},
          {"pid_started", content.pid_started},
          {"started_at", owner.started_at},
          {"generation", owner.generation},
          {"given_back", owner.given_back},
          {"beat", content.beat}};
}

// What the file says; nothing when it is new, empty or not ours.
std::optional<Content> read_content(const fs::path& path) {
  try {
    const json said = json::parse(read_file(path, kMostBytes), nullptr, false);
    if (!said.is_object()) return std::nullopt;
    Content content;
    said.at("run").get_to(content.owner.run);
    said.at("host").get_to(content.owner.host);
    said.at("pid").get_to(content.owner.pid);
    said.at("pid_started").get_to(content.pid_started);
    said.at("started_at").get_to(content.owner.started_at);
    said.at("generation").get_to(content.owner.generation);
    said.at("given_back").get_to(content.owner.given_back);
    said.at("beat").get_to(content.beat);
    return content;
  } catch (const UserError&) {
    return std::nullopt;
  } catch (const json::exception&) {
    return std::nullopt;
  }
}

bool is_alive(const Content& content) {
  telemetry::RunInfo info;
  info.host = content.owner.host;
  info.pid = content.owner.pid;
  info.pid_started = content.pid_started;
  return telemetry::process_is_alive(info);
}

UserError refused(const fs::path& folder, const std::optional<Content>& owner) {
  const std::string who = owner ? owner->owner.to_string() : "another run";
  return environment_error(fmt::format("{} is writing checkpoints there", who),
                           "wait for it to end, stop it, or give this run its own checkpoint.directory",
                           {folder.string()});
}

class FileLease final : public Lease {
 public:
  FileLease(fs::path folder, const std::string& run, const LeaseOptions& options)
      : folder_(std::move(folder)), path_(folder_ / kLeaseName), options_(options) {
    make_folders(folder_);
    const bool locked = options_.use_lock && lock(run);
    const std::optional<Content> before = read_content(path_);
    if (before) wait_for_its_end(*before, run, locked);
    if (!file_) open();
    const telemetry::RunInfo self = telemetry::describe_this_process({});
    mine_.owner = {run, self.host, self.pid, self.started_at, before ? before->owner.generation + 1 : 1, false};
    mine_.pid_started = self.pid_started;
    write();
    beating_ = std::thread([this] { beat(); });
  }

  ~FileLease() override {
    {
      const std::lock_guard guard(mutex_);
      ending_ = true;
    }
    wake_.notify_all();
    beating_.join();
    try {
      if (!still_ours()) return;
      mine_.owner.given_back = true;
      write();
    } catch (const UserError&) {
      // The next run finds a lock that is free.
    }
  }

  void check() const override {
    if (still_ours()) return;
    const std::optional<Content> now = read_content(path_);
    throw environment_error(
        fmt::format("the folder was taken over by {}", now ? now->owner.to_string() : "somebody who removed .lease"),
        "this run must not write there any more; give each run its own checkpoint.directory", {folder_.string()});
  }

  const LeaseOwner& owner() const override { return mine_.owner; }

 private:
  void open() {
    file_ = UniqueFd(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
    if (file_) return;
    throw environment_error(std::string("cannot be written: ") + std::strerror(errno),
                            "make it writable or set checkpoint.directory", {folder_.string()});
  }

  // Whether the lock is ours now; false where the file system has none, or an earlier rank 0 of this run keeps it.
  // Throws when another run does.
  bool lock(const std::string& run) {
    const Deadline deadline = Deadline::after(options_.wait_seconds);
    const Deadline own_run = Deadline::after(options_.own_run_seconds);
    while (true) {
      open();
      if (::flock(file_.get(), LOCK_EX | LOCK_NB) == 0) {
        if (is_named_file()) return true;
      } else if (errno != EWOULDBLOCK && errno != EINTR) {
        return false;
      }
      const std::optional<Content> owner = read_content(path_);
      if (own_run.expired() && owner && owner->owner.run == run) return false;
      if (deadline.expired()) throw refused(folder_, owner);
      std::this_thread::sleep_for(kPoll);
    }
  }

  // Somebody may have removed the file that we opened.
  bool is_named_file() const {
    struct stat opened {
    }, named{};
    return ::fstat(file_.get(), &opened) == 0 && ::stat(path_.c_str(), &named) == 0 && opened.st_ino == named.st_ino &&
           opened.st_dev == named.st_dev;
  }

  // Returns when the former owner is gone for certain.
  void wait_for_its_end(const Content& before, const std::string& run, bool locked) const {
    const LeaseOwner& owner = before.owner;
    if (owner.given_back || owner.run == run) return;
    const bool here = owner.host == telemetry::describe_this_process({}).host;
    if (here && (locked || !is_alive(before))) return;
    const Deadline deadline = Deadline::after(options_.silent_seconds);
    while (!deadline.expired()) {
      std::this_thread::sleep_for(kPoll);
      const std::optional<Content> now = read_content(path_);
      if (!now || now->owner.given_back) return;
      if (now->beat != before.beat || now->owner.generation != owner.generation) throw refused(folder_, now);
    }
  }

  bool still_ours() const {
    const std::optional<Content> now = read_content(path_);
    return now && now->owner.run == mine_.owner.run && now->owner.generation == mine_.owner.generation &&
           now->owner.pid == mine_.owner.pid && now->owner.host == mine_.owner.host;
  }

  // In place: a rename would leave the lock on a file without a name. Padded, so that a shorter text leaves no rest.
  void write() {
    std::string text = to_json(mine_).dump(-1, ' ', false, json::error_handler_t::replace);
    text.resize(std::max<std::size_t>(text.size(), 1023), ' ');
    text += '\n';
    if (::pwrite(file_.get(), text.data(), text.size(), 0) != static_cast<ssize_t>(text.size()) ||
        ::ftruncate(file_.get(), static_cast<off_t>(text.size())) != 0) {
      throw environment_error(std::string("cannot be written: ") + std::strerror(errno),
                              "make it writable or set checkpoint.directory", {folder_.string()});
    }
  }

  void beat() {
    std::unique_lock guard(mutex_);
    const auto pause = std::chrono::duration<double>(options_.beat_seconds);
    while (!wake_.wait_for(guard, pause, [this] { return ending_; })) {
      mine_.beat += 1;
      try {
        if (still_ours()) write();
      } catch (const UserError&) {
        // A full disk, say: the next beat may come through, and check() is asked before anything is replaced.
      }
    }
  }

  const fs::path folder_, path_;
  const LeaseOptions options_;
  UniqueFd file_;
  Content mine_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool ending_ = false;
  std::thread beating_;
};

}  // namespace

std::string LeaseOwner::to_string() const {
  return fmt::format("run {} (process {} on {}, since {})", printable(run, kLongestName), pid, printable(host),
                     utc_timestamp(started_at));
}

std::unique_ptr<Lease> Lease::take(const fs::path& folder, const std::string& run, const LeaseOptions& options) {
  return std::make_unique<FileLease>(folder, run, options);
}

}  // namespace lockstep::checkpoint
