// A corpus: files of text in several formats, cut into units that can be tokenised one by one, in any order.
//
// By the end of a file's name:
//   .jsonl .ndjson .json   one object per line; the string `field` of each is a document
//   .csv .tsv              a table whose first line names the columns; the column `field` of each record is a document
//   .parquet               the column `field` (data/parquet.h)
//   anything else          plain text; the file is one document
// A document's tokens are followed by the tokenizer's end-of-text token where it has one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/enum_names.h"
#include "lockstep/data/bad_records.h"
#include "lockstep/data/mapped_file.h"
#include "lockstep/data/tokenizer.h"

namespace lockstep::data {

enum class TextFormat { kPlain, kJsonLines, kCsv, kTsv, kParquet };
constexpr auto names_of(TextFormat) {
  return enum_names<TextFormat::kParquet>("text", "jsonl", "csv", "tsv", "parquet");
}
TextFormat text_format_of(const std::filesystem::path& file);

struct CorpusOptions {
  std::string field = "text";
  spec::OnBad on_bad = spec::OnBad::kRefuse;
  std::uint64_t unit_bytes = std::uint64_t{64} << 20;  // of input in one unit, about
};

// A part of one file: bytes [begin, end), of Parquet row groups.
struct CorpusPiece {
  std::size_t file = 0;
  std::uint64_t begin = 0, end = 0;
  bool first = true, last = true;  // of its document, in plain text
};

struct CorpusUnit {
  std::vector<CorpusPiece> pieces;
  std::uint64_t bytes = 0;
};

// The tokens of a unit, and where documents end in it. A document may go on in the next unit.
struct EncodedUnit {
  std::vector<TokenId> ids;
  std::vector<std::uint64_t> document_ends;
  std::int64_t skipped = 0;
};

// Immutable once made; encode() is safe from many threads.
class Corpus {
 public:
  // Opens and cuts the files, in order. Throws UserError: what is missing (exit 4), what is not text (exit 2).
  Corpus(const std::vector<std::filesystem::path>& files, std::shared_ptr<const Tokenizer> tokenizer,
         const CorpusOptions& options);

  const std::vector<CorpusUnit>& units() const { return units_; }
  std::uint64_t bytes() const { return bytes_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  std::vector<std::string> bad_messages() const { return bad_.messages(); }
  std::int64_t bad_files() const { return bad_files_; }

  // Throws UserError with file:line for a bad record, unless on_bad is skip.
  EncodedUnit encode(const CorpusUnit& unit) const;

 private:
  struct File {
    MappedFile mapped;
    TextFormat format = TextFormat::kPlain;
    std::size_t columns = 0, column = 0;     // of a table
    std::vector<std::uint64_t> group_bytes;  // of Parquet
  };

  std::string_view text_of(const CorpusPiece& piece) const;
  void open(const std::filesystem::path& path);
  void cut(std::size_t file);
  void add(const CorpusPiece& piece, std::uint64_t bytes);
  std::uint64_t next_cut(const File& file, std::uint64_t from) const;
  int line_at(const CorpusPiece& piece) const;
  void encode_document(std::string_view text, EncodedUnit& out) const;
  void end_document(EncodedUnit& out) const;
  void encode_plain(const CorpusPiece& piece, EncodedUnit& out) const;
  void encode_lines(const CorpusPiece& piece, EncodedUnit& out) const;
  void encode_table(const CorpusPiece& piece, EncodedUnit& out) const;
  void encode_parquet(const CorpusPiece& piece, EncodedUnit& out) const;

  std::shared_ptr<const Tokenizer> tokenizer_;
  CorpusOptions options_;
  std::optional<TokenId> end_;
  mutable BadRecords bad_;
  std::vector<File> files_;
  std::vector<CorpusUnit> units_;
  std::uint64_t bytes_ = 0;
  std::int64_t bad_files_ = 0;
};

}  // namespace lockstep::data
