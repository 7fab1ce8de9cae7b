#include "lockstep/elastic/token_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/elastic/store.h"

namespace lockstep::elastic {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kDigits = 64;
constexpr double kWriteSeconds = 5.0;  // for another node to write what it made

UserError failure(const fs::path& file, const std::string& what) {
  return environment_error(
      fmt::format("the shared secret {}: {}", file.string(), what),
      "set LOCKSTEP_TOKEN to the same secret on every node, or LOCKSTEP_HOME to a folder of yours");
}

// Written beside it and linked to its name: whoever sees the name sees all of it, and of two makers one wins.
void make(const fs::path& file) {
  make_folders(file.parent_path());
  const fs::path part = file.parent_path() / fmt::format("token.{}.{}", ::getpid(), make_token().substr(0, 8));
  const std::string text = make_token() + make_token() + "\n";
  {
    const UniqueFd fd(::open(part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (!fd) throw failure(file, std::strerror(errno));
    if (::write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()) || ::fsync(fd.get()) != 0) {
      const std::string why = std::strerror(errno);
      ::unlink(part.c_str());
      throw failure(file, why);
    }
  }
  const int linked = ::link(part.c_str(), file.c_str()), error = errno;
  ::unlink(part.c_str());
  if (linked == 0 || error == EEXIST) return;
  // A file system without hard links.
  const UniqueFd fd(::open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!fd && errno == EEXIST) return;
  if (!fd || ::write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    throw failure(file, std::strerror(errno));
  }
}

void require_private(const fs::path& file, int fd) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) throw failure(file, std::strerror(errno));
  if (!S_ISREG(status.st_mode)) throw failure(file, "it is not a file");
  if (status.st_uid != ::geteuid() && ::geteuid() != 0) throw failure(file, "it belongs to somebody else");
  if ((status.st_mode & 077) == 0) return;
  throw environment_error(fmt::format("others can read the shared secret {}", file.string()),
                          "chmod 600 " + shell_quoted(file.string()));
}

std::string read(const fs::path& file) {
  const UniqueFd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!fd) throw failure(file, std::strerror(errno));
  require_private(file, fd.get());
  char buffer[256];
  const ssize_t got = ::read(fd.get(), buffer, sizeof(buffer));
  if (got < 0) throw failure(file, std::strerror(errno));
  return std::string(trim(std::string_view(buffer, static_cast<std::size_t>(got))));
}

}  // namespace

std::string shared_token(const fs::path& home) {
  if (std::string token = token_from_environment(); !token.empty()) return token;
  const fs::path file = home / "token";
  std::error_code missing;
  if (!fs::exists(file, missing)) make(file);
  const Deadline deadline = Deadline::after(kWriteSeconds);
  std::string token = read(file);
  while (token.size() < kDigits && !deadline.expired()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    token = read(file);
  }
  if (token.size() < kDigits) throw failure(file, "it is too short for a secret");
  return token;
}

}  // namespace lockstep::elastic
