// Apache Parquet, as little of it as a table of points needs: required columns, plain values, names by dictionary, no
// compression. The format: parquet.thrift and Encodings.md of apache/parquet-format; metadata in Thrift's compact
// protocol.
#include <algorithm>
#include <cstring>
#include <map>

#include "lockstep/base/error.h"
#include "lockstep/report/export/export.h"
#include "lockstep/report/export/trace_steps.h"

namespace lockstep::report {
namespace {

using telemetry::Point;

constexpr std::size_t kRowsOfGroup = 1 << 20;

enum class Type { kInt32 = 1, kInt64 = 2, kDouble = 5, kBytes = 6 };
enum class Encoding { kPlain = 0, kRle = 3, kRleDictionary = 8 };
enum class Page { kData = 0, kDictionary = 2 };
constexpr int kUtf8 = 0, kTimestampMicros = 10, kNotConverted = -1;

struct Column {
  const char* name;
  Type type;
  int converted;
};
constexpr Column kColumns[] = {{"rank", Type::kInt32, kNotConverted},
                               {"step", Type::kInt64, kNotConverted},
                               {"time", Type::kInt64, kTimestampMicros},
                               {"metric", Type::kBytes, kUtf8},
                               {"value", Type::kDouble, kNotConverted}};

// Thrift's compact protocol, writing.
class Thrift {
 public:
  enum Kind : int { kI32 = 5, kI64 = 6, kBinary = 8, kList = 9, kStruct = 12 };

  void field(int id, Kind kind) {
    const int delta = id - last_.back();
    if (delta > 0 && delta < 16) {
      bytes_.push_back(static_cast<char>(delta << 4 | kind));
    } else {
      bytes_.push_back(static_cast<char>(kind));
      zigzag(id);
    }
    last_.back() = id;
  }
  void i32(int id, std::int64_t value) {
    field(id, kI32);
    zigzag(value);
  }
  void i64(int id, std::int64_t value) {
    field(id, kI64);
    zigzag(value);
  }
  void text(int id, std::string_view value) {
    field(id, kBinary);
    text(value);
  }
  void list(int id, Kind of, std::size_t count) {
    field(id, kList);
    if (count < 15) {
      bytes_.push_back(static_cast<char>(count << 4 | static_cast<std::size_t>(of)));
    } else {
      bytes_.push_back(static_cast<char>(0xf0 | of));
      number(count);
    }
  }
  // Elements of lists have no header.
  void zigzag(std::int64_t value) {
    number((static_cast<std::uint64_t>(value) << 1) ^ static_cast<std::uint64_t>(value >> 63));
  }
  void text(std::string_view value) {
    number(value.size());
    bytes_ += value;
  }
  void begin() { last_.push_back(0); }
  void end() {
    bytes_.push_back(0);
    last_.pop_back();
  }
  const std::string& bytes() const { return bytes_; }

 private:
  void number(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_.push_back(static_cast<char>(value | 0x80));
    bytes_.push_back(static_cast<char>(value));
  }

  std::string bytes_;
  std::vector<int> last_ = {0};  // field of each open struct
};

template <class Value>
void put(std::string& out, Value value) {  // little-endian, as this machine is
  char bytes[sizeof(Value)];
  std::memcpy(bytes, &value, sizeof(Value));
  out.append(bytes, sizeof(Value));
}

void put_number(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
}

struct ColumnPlace {
  std::int64_t begin = 0, data = 0, end = 0;  // offsets in the file; begin < data where a dictionary comes first
};
struct GroupPlace {
  std::int64_t rows = 0;
  std::vector<ColumnPlace> columns;
};

class ParquetFile {
 public:
  explicit ParquetFile(std::ostream& out) : out_(out) { write("PAR1"); }

  void add(int rank, const std::string& metric, const std::vector<Point>& points) {
    for (std::size_t at = 0; at < points.size();) {
      const std::size_t count = std::min(points.size() - at, kRowsOfGroup - static_cast<std::size_t>(rows_));
      runs_.push_back({number_of(metric), static_cast<std::int64_t>(count)});
      for (std::size_t i = at; i < at + count; ++i) {
        put<std::int32_t>(values_[0], rank);
        put<std::int64_t>(values_[1], points[i].step);
        put<std::int64_t>(values_[2], static_cast<std::int64_t>(points[i].time * 1e6));
        put<double>(values_[4], points[i].value);
      }
      rows_ += static_cast<std::int64_t>(count);
      at += count;
      if (rows_ == static_cast<std::int64_t>(kRowsOfGroup)) end_group();
    }
  }

  void finish(const telemetry::RunRow& run) {
    end_group();
    const std::string footer = metadata(run);
    write(footer);
    std::string size;
    put<std::uint32_t>(size, static_cast<std::uint32_t>(footer.size()));
    write(size + "PAR1");
  }

 private:
  void write(std::string_view bytes) {
    out_.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    written_ += static_cast<std::int64_t>(bytes.size());
  }

  std::uint32_t number_of(const std::string& metric) {
    const auto [place, is_new] = numbers_.try_emplace(metric, static_cast<std::uint32_t>(numbers_.size()));
    if (is_new) {
      put<std::uint32_t>(dictionary_, static_cast<std::uint32_t>(metric.size()));
      dictionary_ += metric;
    }
    return place->second;
  }

  // Numbers of names as runs: a byte that says how many bits a number has, then each run's length and number.
  std::string encoded_runs() const {
    int bits = 1;
    while ((std::size_t{1} << bits) < numbers_.size()) ++bits;
    std::string out(1, static_cast<char>(bits));
    for (const auto& [number, count] : runs_) {
      put_number(out, static_cast<std::uint64_t>(count) << 1);
      for (int at = 0; at < bits; at += 8) out.push_back(static_cast<char>(number >> at));
    }
    return out;
  }

  void write_page(Page page, std::int64_t values, Encoding encoding, const std::string& body) {
    Thrift header;
    header.i32(1, static_cast<int>(page));
    header.i32(2, static_cast<std::int64_t>(body.size()));
    header.i32(3, static_cast<std::int64_t>(body.size()));
    header.field(page == Page::kData ? 5 : 7, Thrift::kStruct);
    header.begin();
    header.i32(1, values);
    header.i32(2, static_cast<int>(encoding));
    if (page == Page::kData) {
      header.i32(3, static_cast<int>(Encoding::kRle));
      header.i32(4, static_cast<int>(Encoding::kRle));
    }
    header.end();
    header.end();
    write(header.bytes());
    write(body);
  }

  void end_group() {
    if (rows_ == 0) return;
    GroupPlace group{rows_, {}};
    for (std::size_t i = 0; i < std::size(kColumns); ++i) {
      ColumnPlace place{written_, written_, 0};
      if (kColumns[i].type == Type::kBytes) {
        write_page(Page::kDictionary, static_cast<std::int64_t>(numbers_.size()), Encoding::kPlain, dictionary_);
        place.data = written_;
        write_page(Page::kData, rows_, Encoding::kRleDictionary, encoded_runs());
      } else {
        write_page(Page::kData, rows_, Encoding::kPlain, values_[i]);
      }
      place.end = written_;
      values_[i].clear();
      group.columns.push_back(place);
    }
    groups_.push_back(std::move(group));
    all_rows_ += std::exchange(rows_, 0);
    runs_.clear();
    numbers_.clear();
    dictionary_.clear();
  }

  static void write_schema(Thrift& out) {
    out.list(2, Thrift::kStruct, std::size(kColumns) + 1);
    out.begin();
    out.text(4, "run");
    out.i32(5, static_cast<std::int64_t>(std::size(kColumns)));
    out.end();
    for (const Column& column : kColumns) {
      out.begin();
      out.i32(1, static_cast<int>(column.type));
      out.i32(3, 0);  // required
      out.text(4, column.name);
      if (column.converted != kNotConverted) out.i32(6, column.converted);
      out.end();
    }
  }

  static void write_column(Thrift& out, const Column& column, const ColumnPlace& place, std::int64_t rows) {
    const bool by_dictionary = place.data != place.begin;
    out.begin();
    out.i64(2, place.begin);
    out.field(3, Thrift::kStruct);
    out.begin();
    out.i32(1, static_cast<int>(column.type));
    out.list(2, Thrift::kI32, by_dictionary ? 2 : 1);
    out.zigzag(static_cast<int>(Encoding::kPlain));
    if (by_dictionary) out.zigzag(static_cast<int>(Encoding::kRleDictionary));
    out.list(3, Thrift::kBinary, 1);
    out.text(column.name);
    out.i32(4, 0);  // not compressed
    out.i64(5, rows);
    out.i64(6, place.end - place.begin);
    out.i64(7, place.end - place.begin);
    out.i64(9, place.data);
    if (by_dictionary) out.i64(11, place.begin);
    out.end();
    out.end();
  }

  std::string metadata(const telemetry::RunRow& run) const {
    Thrift out;
    out.i32(1, 1);
    write_schema(out);
    out.i64(3, all_rows_);
    out.list(4, Thrift::kStruct, groups_.size());
    for (const GroupPlace& group : groups_) {
      out.begin();
      out.list(1, Thrift::kStruct, std::size(kColumns));
      for (std::size_t i = 0; i < std::size(kColumns); ++i)
        write_column(out, kColumns[i], group.columns[i], group.rows);
      out.i64(2, group.columns.back().end - group.columns.front().begin);
      out.i64(3, group.rows);
      out.end();
    }
    out.list(5, Thrift::kStruct, 2);
    for (const auto& [key, value] :
         {std::pair("lockstep.run", utf8_text(run.info.id)), std::pair("lockstep.name", utf8_text(run.info.name))}) {
      out.begin();
      out.text(1, key);
      out.text(2, value);
      out.end();
    }
    out.text(6, "lockstep");
    out.end();
    return out.bytes();
  }

  std::ostream& out_;
  std::int64_t written_ = 0, rows_ = 0, all_rows_ = 0;
  std::string values_[std::size(kColumns)];
  std::vector<std::pair<std::uint32_t, std::int64_t>> runs_;  // number of the name, rows
  std::map<std::string, std::uint32_t> numbers_;              // of names, of this group
  std::string dictionary_;
  std::vector<GroupPlace> groups_;
};

}  // namespace

void export_parquet(const telemetry::RunStore& store, const telemetry::RunRow& run, const ExportSelection& selection,
                    std::ostream& out) {
  ParquetFile file(out);
  for (const std::string& metric : selected_metrics(store, run.info.id, selection)) {
    for (const int rank : selected_ranks(store, run.info.id, metric, selection))
      file.add(rank, utf8_text(metric), selected_points(store, run.info.id, metric, rank, selection));
  }
  file.finish(run);
}

}  // namespace lockstep::report
