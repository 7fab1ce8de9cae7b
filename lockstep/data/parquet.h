// Columns of text in Parquet files, read by Apache Arrow: a Python helper process with the package pyarrow
// (docs/decisions/0016-parquet.md). `python3` is the first in PATH. Throws environment_error (exit 4) when there is no
// pyarrow, bad_input for a file that is damaged or has no such column of strings.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::data {

// Bytes of the column's values in each row group, uncompressed.
std::vector<std::uint64_t> parquet_row_groups(const std::filesystem::path& file, const std::string& column);

// Calls `take` with every value of row groups [first, last), in order; none where it is null.
void for_each_parquet_text(const std::filesystem::path& file, const std::string& column, std::uint64_t first,
                           std::uint64_t last, const std::function<void(std::optional<std::string_view>)>& take);

}  // namespace lockstep::data
