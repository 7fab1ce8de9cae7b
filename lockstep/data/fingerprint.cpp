#include "lockstep/data/fingerprint.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "lockstep/base/crc32c.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/data/mapped_file.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kBlockBytes = 64 << 10;
constexpr std::uint64_t kBudgetBytes = 64 << 20;
constexpr std::size_t kMostFilesRead = 4096;

std::uint32_t add_text(std::uint32_t crc, const std::string& text) {
  return crc32c(text.c_str(), text.size() + 1, crc);  // the ending 0 keeps "ab" + "c" apart from "a" + "bc"
}

std::uint32_t add_block(std::uint32_t crc, const UniqueFd& file, std::uint64_t offset, std::vector<char>& block) {
  std::size_t got = 0;
  while (got < block.size()) {
    const ssize_t now = ::pread(file.get(), block.data() + got, block.size() - got, static_cast<off_t>(offset + got));
    if (now < 0 && errno == EINTR) continue;
    if (now < 0) throw environment_error(std::string("cannot be read: ") + std::strerror(errno), "");
    if (now == 0) break;
    got += static_cast<std::size_t>(now);
  }
  return crc32c(block.data(), got, crc);
}

// First and last block and others spread evenly between them, `budget` bytes in all.
std::uint32_t add_file(std::uint32_t crc, const fs::path& path, std::uint64_t size, std::uint64_t budget) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) throw environment_error(std::string("cannot be opened: ") + std::strerror(errno), "");
  std::vector<char> block(kBlockBytes);
  const std::uint64_t all = (size + kBlockBytes - 1) / kBlockBytes;
  const std::uint64_t wanted = std::min(all, std::max<std::uint64_t>(1, budget / kBlockBytes));
  for (std::uint64_t i = 0; i < wanted; ++i) {
    const std::uint64_t index = wanted == 1 ? 0 : i * (all - 1) / (wanted - 1);
    crc = add_block(crc, file, index * kBlockBytes, block);
  }
  return crc;
}

std::string fingerprint_or_throw(const fs::path& path) {
  const std::vector<fs::path> files = list_data_files(path, "");
  const std::uint64_t budget = kBudgetBytes / files.size();
  std::uint64_t bytes = 0;
  std::uint32_t crc = 0;
  for (std::size_t i = 0; i < files.size(); ++i) {
    const std::uint64_t size = fs::file_size(files[i]);
    bytes += size;
    // A single file may be called otherwise on another machine.
    if (files.size() > 1) crc = add_text(crc, files[i].lexically_relative(path).string());
    crc = add_text(crc, std::to_string(size));
    if (i < kMostFilesRead) crc = add_file(crc, files[i], size, budget);
  }
  return fmt::format("{} file{}, {} bytes, crc32c {:08x}", files.size(), files.size() == 1 ? "" : "s", bytes, crc);
}

}  // namespace

std::string fingerprint_of(const fs::path& path) {
  try {
    return fingerprint_or_throw(path);
  } catch (const std::exception& error) {
    return fmt::format("not readable ({})", error.what());
  }
}

DataFingerprints fingerprints_of(const spec::Data& data) {
  const auto of = [](const std::string& path) { return path.empty() ? std::string() : fingerprint_of(path); };
  std::vector<std::string> sources;
  sources.reserve(data.sources.size());
  for (const spec::DataSource& source : data.sources) sources.push_back(of(source.path));
  return {sources.empty() ? of(data.path) : join(sources, "; "), of(data.evaluation_path),
          data.tokenizer == "bytes" ? "bytes" : of(data.tokenizer)};
}

}  // namespace lockstep::data
