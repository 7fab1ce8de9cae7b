#include "lockstep/data/parquet.h"

#include <fmt/format.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/process.h"
#include "lockstep/base/text.h"

namespace lockstep::data {
namespace {

constexpr double kTimeoutSeconds = 1800;
constexpr std::size_t kMostOutput = std::size_t{16} << 30;
constexpr int kNoPackage = 86, kBadFile = 65, kBadColumn = 66;
constexpr std::int64_t kNull = -1, kEnd = -2;

// Arguments: what to do, the file, the column, and the row groups. Texts go out as a length (8 bytes, little-endian, -1
// for null) and the bytes; -2 ends them, so that a helper that died is not taken for the end of the file.
constexpr const char* kProgram = R"(
import struct, sys
try:
    import pyarrow
    import pyarrow.parquet
except ImportError as error:
    sys.stderr.write(str(error).splitlines()[0])
    sys.exit(86)
action, path, column = sys.argv[1:4]
try:
    file = pyarrow.parquet.ParquetFile(path)
    schema = file.schema_arrow
    if column not in schema.names:
        sys.stderr.write("the file has no column of that name; it has " + ", ".join(schema.names[:20]))
        sys.exit(66)
    kind = schema.field(column).type
    if pyarrow.types.is_dictionary(kind):
        kind = kind.value_type
    if not (pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)):
        sys.stderr.write("the column holds %s, not strings" % kind)
        sys.exit(66)
    if action == "groups":
        parts = []
        for number in range(file.num_row_groups):
            group = file.metadata.row_group(number)
            chunks = [group.column(i) for i in range(group.num_columns)]
            parts.append(sum(c.total_uncompressed_size for c in chunks if c.path_in_schema.split(".")[0] == column))
        sys.stdout.write(str(parts))
    else:
        out = sys.stdout.buffer
        groups = list(range(int(sys.argv[4]), int(sys.argv[5])))
        for batch in file.iter_batches(batch_size=4096, row_groups=groups, columns=[column]):
            for value in batch.column(0).to_pylist():
                if value is None:
                    out.write(struct.pack("<q", -1))
                else:
                    data = value.encode("utf-8", "surrogatepass")
                    out.write(struct.pack("<q", len(data)) + data)
        out.write(struct.pack("<q", -2))
        out.flush()
except (pyarrow.ArrowException, OSError, ValueError, UnicodeError, MemoryError) as error:
    sys.stderr.write((str(error).splitlines() or [type(error).__name__])[0])
    sys.exit(65)
)";

std::string run_helper(const std::filesystem::path& file, std::vector<std::string> arguments) {
  const SourcePlace place{file.string()};
  SpawnOptions options;
  options.argv = {"python3", "-c", kProgram};
  options.argv.insert(options.argv.end(), arguments.begin(), arguments.end());
  CommandResult result = run_command(std::move(options), kTimeoutSeconds, kMostOutput);
  if (result.timed_out) {
    throw environment_error(fmt::format("pyarrow did not read the file within {} s", kTimeoutSeconds),
                            "check the disk it lies on", place);
  }
  const std::string said = printable(trim(result.error), 200);
  if (result.status.code == kNoPackage) {
    throw environment_error(
        "Parquet is read with the Python package pyarrow, which `python3` does not find (" + said + ")",
        "install it (`python3 -m pip install pyarrow`, in the environment that is active here), or "
        "write the column as JSONL",
        place);
  }
  if (result.status.code == kBadColumn)
    throw bad_input(said, "name the column that holds the text (--field, data.field)", place);
  if (result.status.code == kBadFile)
    throw bad_input("pyarrow cannot read this Parquet file: " + said, "write it again", place);
  if (!result.status.ok()) {
    throw bad_input(fmt::format("pyarrow ended with {} on this file ({})", result.status.to_string(), said),
                    "write the file again", place);
  }
  return std::move(result.output);
}

}  // namespace

std::vector<std::uint64_t> parquet_row_groups(const std::filesystem::path& file, const std::string& column) {
  const std::string answer = run_helper(file, {"groups", file.string(), column});
  const auto parsed = nlohmann::json::parse(answer, nullptr, false);
  LOCKSTEP_ASSERT(parsed.is_array(), "the Parquet helper answered " + printable(answer));
  std::vector<std::uint64_t> groups;
  for (const auto& bytes : parsed) groups.push_back(bytes.get<std::uint64_t>());
  return groups;
}

void for_each_parquet_text(const std::filesystem::path& file, const std::string& column, std::uint64_t first,
                           std::uint64_t last, const std::function<void(std::optional<std::string_view>)>& take) {
  const std::string texts =
      run_helper(file, {"texts", file.string(), column, std::to_string(first), std::to_string(last)});
  std::string_view rest = texts;
  while (true) {
    std::int64_t length = kEnd - 1;
    if (rest.size() >= sizeof length) {
      std::memcpy(&length, rest.data(), sizeof length);
      rest.remove_prefix(sizeof length);
    }
    if (length == kEnd) return;
    if (length == kNull) {
      take(std::nullopt);
      continue;
    }
    if (length < 0 || static_cast<std::uint64_t>(length) > rest.size()) {
      throw environment_error("the Parquet helper's answer is cut off", "run it again with smaller row groups",
                              {file.string()});
    }
    take(rest.substr(0, static_cast<std::size_t>(length)));
    rest.remove_prefix(static_cast<std::size_t>(length));
  }
}

}  // namespace lockstep::data
