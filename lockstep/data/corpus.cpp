#include "lockstep/data/corpus.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/text.h"
#include "lockstep/data/json_lines.h"
#include "lockstep/data/parquet.h"
#include "lockstep/data/table_reader.h"
#include "lockstep/data/text_check.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFix = "check the path of the text";
constexpr const char* kFieldFix = "name the field that holds the text (--field, data.field)";

UserError no_field(const std::string& field, const char* what, const SourcePlace& place) {
  return bad_input(fmt::format("the record's `{}` is {}", printable(field), what), kFieldFix, place);
}

}  // namespace

TextFormat text_format_of(const fs::path& file) {
  const std::string extension = lockstep::to_lower(file.extension().string());
  if (extension == ".jsonl" || extension == ".ndjson" || extension == ".json") return TextFormat::kJsonLines;
  if (extension == ".csv") return TextFormat::kCsv;
  if (extension == ".tsv") return TextFormat::kTsv;
  return extension == ".parquet" ? TextFormat::kParquet : TextFormat::kPlain;
}

Corpus::Corpus(const std::vector<fs::path>& files, std::shared_ptr<const Tokenizer> tokenizer,
               const CorpusOptions& options)
    : tokenizer_(std::move(tokenizer)), options_(options), end_(end_of_text_id(*tokenizer_)), bad_(options.on_bad) {
  for (const fs::path& path : files) {
    try {
      open(path);
      cut(files_.size() - 1);
    } catch (const UserError& error) {
      if (error.code() != ExitCode::kUsage) throw;
      bad_.meet(error);
      ++bad_files_;
    }
  }
}

void Corpus::open(const fs::path& path) {
  File file;
  file.mapped = MappedFile(path, kFix);
  file.format = text_format_of(path);
  const SourcePlace place{file.mapped.path()};
  if (file.format == TextFormat::kParquet) {
    file.group_bytes = parquet_row_groups(path, options_.field);
    files_.push_back(std::move(file));
    return;
  }
  if (const auto instead = not_text(file.mapped.bytes())) {
    throw bad_input("this is " + *instead, "name text, JSONL, CSV or .parquet files", place);
  }
  if (file.format == TextFormat::kCsv || file.format == TextFormat::kTsv) {
    TableReader reader(file.mapped.text());
    const TableFields names =
        file.format == TextFormat::kCsv ? reader.next_quoted(place) : reader.next_tabbed(static_cast<std::size_t>(-1));
    const auto found = std::find_if(names.begin(), names.end(), [&](const std::string& name) {
      return lockstep::to_lower(trim(name)) == lockstep::to_lower(options_.field);
    });
    if (found == names.end()) {
      throw bad_input(fmt::format("the first line names no column `{}`", printable(options_.field)),
                      names.empty() ? kFieldFix : did_you_mean(options_.field, names), {file.mapped.path(), 1});
    }
    file.columns = names.size();
    file.column = static_cast<std::size_t>(found - names.begin());
  }
  files_.push_back(std::move(file));
}

// Behind the next place where the format may be cut.
std::uint64_t Corpus::next_cut(const File& file, std::uint64_t from) const {
  const std::string_view text = file.mapped.text();
  if (from >= text.size()) return text.size();
  if (file.format == TextFormat::kPlain) return tokenizer_->next_cut(text, from);
  const std::size_t line = text.find('\n', from);
  return line == std::string_view::npos ? text.size() : line + 1;
}

void Corpus::add(const CorpusPiece& piece, std::uint64_t bytes) {
  if (units_.empty() || units_.back().bytes >= options_.unit_bytes) units_.emplace_back();
  units_.back().pieces.push_back(piece);
  units_.back().bytes += bytes;
  bytes_ += bytes;
}

void Corpus::cut(std::size_t index) {
  const File& file = files_[index];
  const auto room = [&] {
    const std::uint64_t used = units_.empty() ? 0 : units_.back().bytes;
    return used < options_.unit_bytes ? options_.unit_bytes - used : options_.unit_bytes;
  };
  if (file.format == TextFormat::kParquet) {
    for (std::size_t group = 0; group < file.group_bytes.size(); ++group) {
      add({.file = index, .begin = group, .end = group + 1}, file.group_bytes[group]);
    }
    return;
  }
  const std::string_view text = file.mapped.text();
  std::uint64_t begin = 0;
  if (file.format == TextFormat::kPlain && text.empty()) add({.file = index}, 0);  // a document without words
  if (file.format == TextFormat::kCsv) begin = csv_record_end(text, 0);
  if (file.format == TextFormat::kTsv) begin = next_cut(file, 0);
  while (begin < text.size()) {
    std::uint64_t end = begin;
    if (file.format == TextFormat::kCsv) {
      for (const std::uint64_t goal = begin + room(); end < goal && end < text.size();) end = csv_record_end(text, end);
    } else {
      end = next_cut(file, begin + room());
    }
    const bool plain = file.format == TextFormat::kPlain;
    add({.file = index,
         .begin = begin,
         .end = end,
         .first = !plain || begin == 0,
         .last = !plain || end == text.size()},
        end - begin);
    begin = end;
  }
}

std::string_view Corpus::text_of(const CorpusPiece& piece) const {
  return files_[piece.file].mapped.text().substr(piece.begin, piece.end - piece.begin);
}

int Corpus::line_at(const CorpusPiece& piece) const {
  const std::string_view before = files_[piece.file].mapped.text().substr(0, piece.begin);
  return 1 + static_cast<int>(std::count(before.begin(), before.end(), '\n'));
}

void Corpus::end_document(EncodedUnit& out) const {
  if (end_) out.ids.push_back(*end_);
  out.document_ends.push_back(out.ids.size());
}

void Corpus::encode_document(std::string_view text, EncodedUnit& out) const {
  tokenizer_->encode(text, out.ids);
  end_document(out);
}

void Corpus::encode_plain(const CorpusPiece& piece, EncodedUnit& out) const {
  const std::string_view text = text_of(piece);
  piece.first ? tokenizer_->encode(text, out.ids) : tokenizer_->encode_rest(text, out.ids);
  if (piece.last) end_document(out);
}

void Corpus::encode_lines(const CorpusPiece& piece, EncodedUnit& out) const {
  std::string_view rest = text_of(piece);
  int number = line_at(piece);
  for (; !rest.empty(); ++number) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (trim(line).empty()) continue;
    const SourcePlace place{files_[piece.file].mapped.path(), number};
    try {
      const nlohmann::json record = parse_json_line(line, place);
      const auto found = record.find(options_.field);
      if (found == record.end()) throw no_field(options_.field, "absent", place);
      if (!found->is_string()) throw no_field(options_.field, "no string", place);
      encode_document(found->get_ref<const std::string&>(), out);
    } catch (const UserError& error) {
      bad_.meet(error);
      ++out.skipped;
    }
  }
}

void Corpus::encode_table(const CorpusPiece& piece, EncodedUnit& out) const {
  const File& file = files_[piece.file];
  TableReader reader(text_of(piece), line_at(piece));
  while (!reader.done()) {
    const SourcePlace place{file.mapped.path(), reader.line()};
    bool read = false;
    try {
      const TableFields fields =
          file.format == TextFormat::kCsv ? reader.next_quoted(place) : reader.next_tabbed(file.columns);
      read = true;
      if (fields.empty()) continue;
      if (fields.size() != file.columns) {
        throw bad_input(fmt::format("{} columns instead of {}", fields.size(), file.columns),
                        "put texts with commas in quotes", place);
      }
      encode_document(fields[file.column], out);
    } catch (const UserError& error) {
      bad_.meet(error);
      ++out.skipped;
      if (!read) return;  // an open quote takes the rest along
    }
  }
}

void Corpus::encode_parquet(const CorpusPiece& piece, EncodedUnit& out) const {
  const SourcePlace place{files_[piece.file].mapped.path()};
  const auto take = [&](std::optional<std::string_view> text) {
    if (text) return encode_document(*text, out);
    bad_.meet(no_field(options_.field, "null", place));
    ++out.skipped;
  };
  for_each_parquet_text(files_[piece.file].mapped.path(), options_.field, piece.begin, piece.end, take);
}

EncodedUnit Corpus::encode(const CorpusUnit& unit) const {
  EncodedUnit out;
  out.ids.reserve(unit.bytes / 3);
  for (const CorpusPiece& piece : unit.pieces) {
    files_[piece.file].mapped.require_unchanged();
    switch (files_[piece.file].format) {
      case TextFormat::kPlain:
        encode_plain(piece, out);
        break;
      case TextFormat::kJsonLines:
        encode_lines(piece, out);
        break;
      case TextFormat::kCsv:
      case TextFormat::kTsv:
        encode_table(piece, out);
        break;
      case TextFormat::kParquet:
        encode_parquet(piece, out);
        break;
    }
  }
  return out;
}

}  // namespace lockstep::data
