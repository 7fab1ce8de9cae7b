#include "lockstep/checkpoint/verified_files.h"

#include <algorithm>
#include <cstring>

#include "lockstep/base/crc32c.h"
#include "lockstep/base/error.h"

namespace lockstep::checkpoint {
namespace {

constexpr std::uint64_t kMostTextBytes = std::uint64_t{1} << 30;

}  // namespace

const UniqueFd& VerifiedFiles::open(const std::string& name) {
  const auto found = files_.find(name);
  if (found != files_.end()) return found->second;
  if (files_.size() >= kFilesOpen) files_.clear();
  UniqueFd file = open_for_reading(checkpoint_ / name, &folder_);
  const std::uint64_t size = file_size(file, checkpoint_ / name), said = entries_.at(name).digest.bytes;
  if (size != said) {
    throw bad_input("the checkpoint is damaged: " + name + " is " + std::to_string(size) +
                        " bytes long, the manifest says " + std::to_string(said),
                    "resume from an older checkpoint", {checkpoint_.string()});
  }
  return files_.emplace(name, std::move(file)).first->second;
}

const VerifiedFiles::Block& VerifiedFiles::block(const std::string& name, std::uint64_t index) {
  const auto kept = std::find_if(blocks_.begin(), blocks_.end(),
                                 [&](const Block& block) { return block.index == index && block.file == name; });
  if (kept != blocks_.end()) {
    blocks_.splice(blocks_.begin(), blocks_, kept);
    return blocks_.front();
  }
  const FileDigest& digest = entries_.at(name).digest;
  const UniqueFd& file = open(name);
  const std::uint64_t begin = index * kDigestBlockBytes, bytes = std::min(kDigestBlockBytes, digest.bytes - begin);
  Block fresh;
  if (blocks_.size() >= kBlocksKept) {  // its memory serves again
    fresh = std::move(blocks_.back());
    blocks_.pop_back();
  }
  fresh.file = name;
  fresh.index = index;
  fresh.bytes.resize(bytes);
  read_exactly(file, checkpoint_ / name, fresh.bytes.data(), bytes, begin);
  bytes_read_ += bytes;
  if (crc32c(fresh.bytes.data(), bytes) != digest.blocks.at(index)) {
    const std::vector<Damage> damage = verify_file(folder_, checkpoint_, name, entries_.at(name));
    throw bad_input("the checkpoint is damaged: " + (damage.empty() ? name : damage.front().to_string()),
                    "resume from an older checkpoint", {checkpoint_.string()});
  }
  blocks_.push_front(std::move(fresh));
  return blocks_.front();
}

void VerifiedFiles::read(const std::string& name, std::uint64_t offset, std::uint64_t bytes, void* out) {
  const auto found = entries_.find(name);
  if (found == entries_.end()) {
    throw bad_input("the manifest lists no " + name, "resume from an older checkpoint", {checkpoint_.string()});
  }
  LOCKSTEP_ASSERT(offset <= found->second.digest.bytes && bytes <= found->second.digest.bytes - offset,
                  "a range of the file");
  auto* next = static_cast<char*>(out);
  while (bytes > 0) {
    const Block& from = block(name, offset / kDigestBlockBytes);
    const std::uint64_t at = offset % kDigestBlockBytes, part = std::min(bytes, kDigestBlockBytes - at);
    std::memcpy(next, from.bytes.data() + at, part);
    next += part;
    offset += part;
    bytes -= part;
  }
}

std::string VerifiedFiles::read_text(const std::string& name) {
  const auto found = entries_.find(name);
  if (found == entries_.end()) {
    throw bad_input("the manifest lists no " + name, "resume from an older checkpoint", {checkpoint_.string()});
  }
  open(name);  // its size is what the manifest says
  if (found->second.digest.bytes > kMostTextBytes)
    throw bad_input("larger than 1 GiB", "this is not part of a checkpoint", {(checkpoint_ / name).string()});
  std::string text(found->second.digest.bytes, '\0');
  read(name, 0, text.size(), text.data());
  return text;
}

}  // namespace lockstep::checkpoint
