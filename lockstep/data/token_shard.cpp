#include "lockstep/data/token_shard.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>

#include "lockstep/base/crc32c.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file.h"

namespace lockstep::data {
namespace {

static_assert(std::endian::native == std::endian::little, "token shards are little-endian and mapped as they are");

constexpr char kMagic[8] = {'L', 'K', 'S', 'T', 'T', 'O', 'K', 'S'};
constexpr const char* kRepair = "write the shard again";

// As in the file; see token_shard.h.
struct Header {
  char magic[8];
  std::uint32_t version;
  std::uint32_t bytes_per_token;
  std::uint64_t tokens;
  std::uint64_t vocab_size;
  std::uint32_t payload_crc;
  std::uint32_t documents_crc;
  std::uint64_t documents;
  std::uint8_t zero[12];
  std::uint32_t header_crc;
};
static_assert(sizeof(Header) == 64 && offsetof(Header, header_crc) == 60);

template <typename Stored>
void store(std::string& bytes, std::span<const TokenId> ids) {
  std::vector<Stored> stored(ids.begin(), ids.end());
  bytes.append(reinterpret_cast<const char*>(stored.data()), stored.size() * sizeof(Stored));
}

// The copy and the bound are one pass each, both vectorised; the slow search runs only to name the culprit.
template <typename Stored>
void load(const std::uint8_t* payload, std::int64_t first, std::int64_t vocab_size, const std::string& path,
          std::span<std::int64_t> out) {
  const Stored* ids = reinterpret_cast<const Stored*>(payload) + first;
  Stored largest = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = ids[i];
    largest = std::max(largest, ids[i]);
  }
  if (largest < vocab_size) return;
  const auto culprit = std::max_element(out.begin(), out.end()) - out.begin();
  throw bad_input(fmt::format("token {} is {}, not below the vocabulary size {} of the header", first + culprit,
                              out[culprit], vocab_size),
                  kRepair, {path});
}

class ShardStream final : public TokenStream {
 public:
  explicit ShardStream(std::vector<TokenShard> shards) : shards_(std::move(shards)) {
    for (const TokenShard& shard : shards_) {
      starts_.push_back(size_);
      size_ += shard.size();
      knows_documents_ = knows_documents_ || !shard.document_ends().empty();
    }
  }

  bool knows_documents() const override { return knows_documents_; }

  std::vector<std::int64_t> document_starts(std::int64_t first, std::int64_t count) const override {
    std::vector<std::int64_t> starts;
    std::size_t i = std::upper_bound(starts_.begin(), starts_.end(), first) - starts_.begin() - 1;
    for (; i < shards_.size() && starts_[i] <= first + count; ++i) {
      const auto ends = shards_[i].document_ends();
      const std::int64_t before = first - starts_[i];
      auto end =
          before < 0 ? ends.begin() : std::upper_bound(ends.begin(), ends.end(), static_cast<std::uint64_t>(before));
      for (; end != ends.end() && starts_[i] + static_cast<std::int64_t>(*end) <= first + count; ++end) {
        const std::int64_t start = starts_[i] + static_cast<std::int64_t>(*end);
        if (start > first && (starts.empty() || starts.back() < start)) starts.push_back(start);
      }
    }
    return starts;
  }

  std::int64_t size() const override { return size_; }
  std::int64_t vocab_size() const override { return shards_.front().vocab_size(); }

  void copy(std::int64_t first, std::span<std::int64_t> out) const override {
    LOCKSTEP_ASSERT(first >= 0 && first + static_cast<std::int64_t>(out.size()) <= size_, "range outside the stream");
    std::size_t shard = std::upper_bound(starts_.begin(), starts_.end(), first) - starts_.begin() - 1;
    for (std::size_t done = 0; done < out.size(); ++shard) {
      const std::int64_t offset = first + static_cast<std::int64_t>(done) - starts_[shard];
      const std::size_t take = std::min(static_cast<std::size_t>(shards_[shard].size() - offset), out.size() - done);
      shards_[shard].copy(offset, out.subspan(done, take));
      done += take;
    }
  }

 private:
  std::vector<TokenShard> shards_;
  std::vector<std::int64_t> starts_;
  std::int64_t size_ = 0;
  bool knows_documents_ = false;
};

}  // namespace

void write_token_shard(const std::filesystem::path& path, std::span<const TokenId> ids, std::int64_t vocab_size,
                       std::span<const std::uint64_t> document_ends) {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < vocab_size) continue;
    throw bad_input(fmt::format("token {} is {}, not in [0, {})", i, ids[i], vocab_size),
                    "give the size of the vocabulary that the ids come from", {path.string()});
  }
  Header header{};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.version = document_ends.empty() ? 1 : 2;
  header.bytes_per_token = vocab_size <= 65536 ? 2 : 4;
  header.tokens = ids.size();
  header.vocab_size = static_cast<std::uint64_t>(vocab_size);
  std::string bytes(sizeof header, '\0');
  bytes.reserve(sizeof header + ids.size() * header.bytes_per_token);
  header.bytes_per_token == 2 ? store<std::uint16_t>(bytes, ids) : store<std::uint32_t>(bytes, ids);
  header.payload_crc = crc32c(bytes.data() + sizeof header, bytes.size() - sizeof header);
  if (!document_ends.empty()) {
    bytes.resize((bytes.size() + 7) / 8 * 8, '\0');
    bytes.append(reinterpret_cast<const char*>(document_ends.data()), document_ends.size_bytes());
    header.documents = document_ends.size();
    header.documents_crc = crc32c(document_ends.data(), document_ends.size_bytes());
  }
  header.header_crc = crc32c(&header, offsetof(Header, header_crc));
  std::memcpy(bytes.data(), &header, sizeof header);
  write_file_atomically(path, bytes);
}

TokenShard::TokenShard(const std::filesystem::path& path)
    : file_(path, "check data.path in the job file, or write the shards first") {
  const SourcePlace place{file_.path()};
  Header header;
  if (file_.size() < sizeof header) {
    throw bad_input(fmt::format("truncated: {} bytes, the header of a token shard has {}", file_.size(), sizeof header),
                    kRepair, place);
  }
  std::memcpy(&header, file_.bytes().data(), sizeof header);
  if (std::memcmp(header.magic, kMagic, sizeof kMagic) != 0) {
    throw bad_input("not a token shard (wrong magic)", "name shards written by lockstep, or use data.kind: text",
                    place);
  }
  if (header.version != 1 && header.version != 2) {
    throw bad_input(fmt::format("token shard of version {}, this build reads versions 1 and 2", header.version),
                    "write the shard again with this version of lockstep", place);
  }
  if (header.header_crc != crc32c(&header, offsetof(Header, header_crc))) {
    throw bad_input("the header is damaged (CRC-32C differs)", kRepair, place);
  }
  if (header.bytes_per_token != 2 && header.bytes_per_token != 4) {
    throw bad_input(fmt::format("{} bytes per token, expected 2 or 4", header.bytes_per_token), kRepair, place);
  }
  // The numbers are compared with the file's size by division: they may be made so that a product wraps around.
  std::uint64_t payload = file_.size() - sizeof header;
  if (header.version == 2) {
    const std::uint64_t table = header.documents <= payload / 8 ? header.documents * 8 : payload + 1;
    const bool fits = table <= payload && header.tokens <= (payload - table) / header.bytes_per_token;
    const std::uint64_t ids = fits ? header.tokens * header.bytes_per_token : 0;
    if (!fits || (sizeof header + ids + 7) / 8 * 8 + table != file_.size()) {
      throw bad_input(
          fmt::format("the header announces {} tokens of {} bytes and {} documents, the file holds {} bytes",
                      header.tokens, header.bytes_per_token, header.documents, payload),
          kRepair, place);
    }
    document_ends_ = {reinterpret_cast<const std::uint64_t*>(file_.bytes().data() + file_.size() - table),
                      static_cast<std::size_t>(header.documents)};
    documents_crc_ = header.documents_crc;
    payload = ids;
  }
  if (payload % header.bytes_per_token != 0 || payload / header.bytes_per_token != header.tokens) {
    throw bad_input(fmt::format("the header announces {} tokens of {} bytes, the file holds {} bytes of tokens",
                                header.tokens, header.bytes_per_token, payload),
                    kRepair, place);
  }
  if (header.vocab_size == 0 || header.vocab_size > (std::uint64_t{1} << 31)) {
    throw bad_input(fmt::format("vocabulary size {} out of range", header.vocab_size), kRepair, place);
  }
  count_ = static_cast<std::int64_t>(header.tokens);
  vocab_size_ = static_cast<std::int64_t>(header.vocab_size);
  bytes_per_token_ = header.bytes_per_token;
  crc_ = header.payload_crc;
}

void TokenShard::copy(std::int64_t first, std::span<std::int64_t> out) const {
  LOCKSTEP_ASSERT(first >= 0 && first + static_cast<std::int64_t>(out.size()) <= count_, "range outside the shard");
  file_.require_unchanged();
  const std::uint8_t* payload = file_.bytes().data() + sizeof(Header);
  bytes_per_token_ == 2 ? load<std::uint16_t>(payload, first, vocab_size_, path(), out)
                        : load<std::uint32_t>(payload, first, vocab_size_, path(), out);
}

void TokenShard::verify() const {
  const auto payload = file_.bytes().subspan(sizeof(Header), static_cast<std::size_t>(count_) * bytes_per_token_);
  if (crc32c(payload.data(), payload.size()) != crc_) {
    throw bad_input("the tokens are damaged (CRC-32C differs from the header)", kRepair, {path()});
  }
  const bool sound = crc32c(document_ends_.data(), document_ends_.size_bytes()) == documents_crc_ &&
                     std::is_sorted(document_ends_.begin(), document_ends_.end()) &&
                     (document_ends_.empty() || document_ends_.back() <= static_cast<std::uint64_t>(count_));
  if (!sound) throw bad_input("the ends of documents are damaged", kRepair, {path()});
}

std::shared_ptr<const TokenStream> open_token_shards(const std::vector<std::filesystem::path>& paths,
                                                     std::int64_t verify_up_to_bytes) {
  LOCKSTEP_ASSERT(!paths.empty(), "no token shards named");
  std::vector<TokenShard> shards;
  std::int64_t tokens = 0;
  for (const auto& path : paths) {
    shards.emplace_back(path);
    tokens += shards.back().size();
    if (shards.back().vocab_size() != shards.front().vocab_size()) {
      throw bad_input(fmt::format("vocabulary size {}, but {} has {}", shards.back().vocab_size(),
                                  shards.front().path(), shards.front().vocab_size()),
                      "write all shards of a data set with the same tokenizer", {shards.back().path()});
    }
  }
  if (tokens * 4 <= verify_up_to_bytes) {
    for (const TokenShard& shard : shards) shard.verify();
  }
  return std::make_shared<ShardStream>(std::move(shards));
}

}  // namespace lockstep::data
