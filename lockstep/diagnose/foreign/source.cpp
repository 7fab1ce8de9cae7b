#include "lockstep/diagnose/foreign/source.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#ifdef LOCKSTEP_HAVE_ZLIB
#include <zlib.h>
#endif

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "lockstep/base/file.h"
#include "lockstep/base/text.h"

namespace lockstep::diagnose {
namespace {

class PlainSource : public Source {
 public:
  PlainSource(UniqueFd fd, std::string name) : fd_(std::move(fd)), name_(std::move(name)) {}

  std::size_t read(char* to, std::size_t size) override {
    while (true) {
      const ssize_t got = ::read(fd_.get(), to, size);
      if (got >= 0) return static_cast<std::size_t>(got);
      if (errno != EINTR) throw environment_error(fmt::format("{} cannot be read: {}", name_, std::strerror(errno)));
    }
  }

 private:
  UniqueFd fd_;
  std::string name_;
};

class MemorySource : public Source {
 public:
  explicit MemorySource(std::string_view bytes) : bytes_(bytes) {}

  std::size_t read(char* to, std::size_t size) override {
    const std::size_t count = std::min(size, bytes_.size());
    std::memcpy(to, bytes_.data(), count);
    bytes_.remove_prefix(count);
    return count;
  }

 private:
  std::string_view bytes_;
};

#ifdef LOCKSTEP_HAVE_ZLIB
class GzipSource : public Source {
 public:
  GzipSource(std::unique_ptr<Source> packed, std::string name)
      : packed_(std::move(packed)), name_(std::move(name)), input_(std::size_t{256} << 10) {
    LOCKSTEP_ASSERT(inflateInit2(&state_, 15 + 16) == Z_OK, "zlib refused to start");
  }
  ~GzipSource() override { inflateEnd(&state_); }
  GzipSource(const GzipSource&) = delete;
  GzipSource& operator=(const GzipSource&) = delete;

  std::size_t read(char* to, std::size_t size) override {
    state_.next_out = reinterpret_cast<Bytef*>(to);
    state_.avail_out = static_cast<uInt>(std::min<std::size_t>(size, std::size_t{1} << 30));
    const uInt wanted = state_.avail_out;
    while (state_.avail_out == wanted && wanted > 0 && !done_) inflate_some();
    const std::size_t got = wanted - state_.avail_out;
    unpacked_ += got;
    if (unpacked_ > kMostUnpackedBytes) {
      throw damaged(name_, offset(), fmt::format("unpacks to more than {} GiB", kMostUnpackedBytes >> 30));
    }
    return got;
  }

 private:
  std::uint64_t offset() const { return taken_ - state_.avail_in; }

  void inflate_some() {
    if (state_.avail_in == 0) {
      const std::size_t got = packed_->read(input_.data(), input_.size());
      if (got == 0) {
        if (!at_member_end_) throw damaged(name_, offset(), "the gzip data ends too early", "copy the file again");
        done_ = true;
        return;
      }
      taken_ += got;
      state_.next_in = reinterpret_cast<Bytef*>(input_.data());
      state_.avail_in = static_cast<uInt>(got);
    }
    if (at_member_end_) {  // files that were put together are several members
      if (*state_.next_in != 0x1f) {
        done_ = true;  // padding
        return;
      }
      inflateReset(&state_);
      at_member_end_ = false;
    }
    const int code = inflate(&state_, Z_NO_FLUSH);
    if (code == Z_STREAM_END) {
      at_member_end_ = true;
    } else if (code != Z_OK && code != Z_BUF_ERROR) {
      const char* const why = state_.msg != nullptr ? state_.msg : "unknown";
      throw damaged(name_, offset(), fmt::format("the gzip data is damaged ({})", why), "copy the file again");
    }
  }

  std::unique_ptr<Source> packed_;
  std::string name_;
  std::vector<char> input_;
  z_stream state_{};
  std::uint64_t taken_ = 0;
  std::uint64_t unpacked_ = 0;
  bool at_member_end_ = false;
  bool done_ = false;
};
#endif

}  // namespace

std::unique_ptr<Source> memory_source(std::string_view bytes) { return std::make_unique<MemorySource>(bytes); }

std::unique_ptr<Source> open_source(const std::filesystem::path& path) {
  const std::string name = printable_path(path);
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) throw environment_error(fmt::format("{} cannot be opened: {}", name, std::strerror(errno)));
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
    throw bad_input(name + " is not a file", "give files or folders of files");
  }
  unsigned char magic[2] = {0, 0};
  const bool packed = ::pread(fd.get(), magic, 2, 0) == 2 && magic[0] == 0x1f && magic[1] == 0x8b;
  auto plain = std::make_unique<PlainSource>(std::move(fd), name);
  if (!packed) return plain;
#ifdef LOCKSTEP_HAVE_ZLIB
  return std::make_unique<GzipSource>(std::move(plain), name);
#else
  throw environment_error(name + " is gzip, and this build has no zlib", "unpack it first: gunzip " + name);
#endif
}

std::string read_all(Source& source, const std::string& name, std::uint64_t max_bytes) {
  std::string bytes;
  std::vector<char> piece(std::size_t{256} << 10);
  while (const std::size_t got = source.read(piece.data(), piece.size())) {
    if (bytes.size() + got > max_bytes) {
      throw bad_input(fmt::format("{} is larger than {} MiB, too much for its kind", printable(name), max_bytes >> 20));
    }
    bytes.append(piece.data(), got);
  }
  return bytes;
}

std::string read_beginning(const std::filesystem::path& path, std::size_t size) {
  const auto source = open_source(path);
  std::string bytes(size, '\0');
  std::size_t filled = 0;
  while (filled < size) {
    const std::size_t got = source->read(bytes.data() + filled, size - filled);
    if (got == 0) break;
    filled += got;
  }
  bytes.resize(filled);
  return bytes;
}

UserError damaged(const std::string& name, std::uint64_t offset, const std::string& problem, std::string fix) {
  return bad_input(fmt::format("{}:{}: {}", printable(name), offset, problem), std::move(fix));
}

}  // namespace lockstep::diagnose
