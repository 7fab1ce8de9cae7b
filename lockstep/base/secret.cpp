#include "lockstep/base/secret.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr double kWriteSeconds = 5.0;  // for another node to write what it made

UserError failure(const fs::path& file, const std::string& what, const std::string& fix) {
  return environment_error(fmt::format("the secret {}: {}", file.string(), what), fix);
}

// Written beside it and linked to its name.
void make(const fs::path& file, const std::string& fix) {
  make_folders(fs::absolute(file).parent_path());
  const fs::path part = file.string() + fmt::format(".{}.{}", ::getpid(), random_hex(4));
  const std::string text = random_hex(kSecretDigits / 2) + "\n";
  {
    const UniqueFd fd(::open(part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (!fd) throw failure(file, std::strerror(errno), fix);
    if (::write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()) || ::fsync(fd.get()) != 0) {
      const std::string why = std::strerror(errno);
      ::unlink(part.c_str());
      throw failure(file, why, fix);
    }
  }
  const int linked = ::link(part.c_str(), file.c_str()), error = errno;
  ::unlink(part.c_str());
  if (linked == 0 || error == EEXIST) return;
  // A file system without hard links.
  const UniqueFd fd(::open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!fd && errno == EEXIST) return;
  if (!fd || ::write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    throw failure(file, std::strerror(errno), fix);
  }
}

void require_private(const fs::path& file, int fd, const std::string& fix) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) throw failure(file, std::strerror(errno), fix);
  if (!S_ISREG(status.st_mode)) throw failure(file, "it is not a file", fix);
  if (status.st_uid != ::geteuid() && ::geteuid() != 0) throw failure(file, "it belongs to somebody else", fix);
  if ((status.st_mode & 077) == 0) return;
  throw environment_error(fmt::format("others can read the secret {}", file.string()),
                          "chmod 600 " + shell_quoted(file.string()));
}

std::string read(const fs::path& file, const std::string& fix) {
  const UniqueFd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!fd) throw failure(file, std::strerror(errno), fix);
  require_private(file, fd.get(), fix);
  char buffer[256];
  const ssize_t got = ::read(fd.get(), buffer, sizeof(buffer));
  if (got < 0) throw failure(file, std::strerror(errno), fix);
  return std::string(trim(std::string_view(buffer, static_cast<std::size_t>(got))));
}

}  // namespace

std::string random_hex(std::size_t bytes) {
  const UniqueFd random(::open("/dev/urandom", O_RDONLY | O_CLOEXEC));
  std::vector<unsigned char> raw(bytes);
  if (!random || ::read(random.get(), raw.data(), raw.size()) != static_cast<ssize_t>(raw.size())) {
    throw environment_error("cannot read /dev/urandom", "make the random device available");
  }
  std::string text;
  for (const unsigned char byte : raw) text += fmt::format("{:02x}", byte);
  return text;
}

bool same_secret(std::string_view given, std::string_view right) {
  if (given.size() != right.size()) return false;
  volatile unsigned char difference = 0;
  for (std::size_t i = 0; i < right.size(); ++i) {
    difference = difference | static_cast<unsigned char>(given[i] ^ right[i]);
  }
  return difference == 0;
}

std::string secret_in_file(const fs::path& file, const std::string& fix, std::size_t shortest) {
  std::error_code missing;
  if (!fs::exists(file, missing)) make(file, fix);
  const Deadline deadline = Deadline::after(kWriteSeconds);
  std::string secret = read(file, fix);
  while (secret.size() < shortest && !deadline.expired()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    secret = read(file, fix);
  }
  if (secret.size() < shortest) throw failure(file, "it is too short for a secret", fix);
  return secret;
}

}  // namespace lockstep
