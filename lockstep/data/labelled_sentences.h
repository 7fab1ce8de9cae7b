// Files of labelled sentences: TSV, CSV and JSON lines.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/data/mapped_file.h"

namespace lockstep::data {

// Calls `take` for every record, in order, with where it begins. By the end of the file's name:
//
//   .csv             fields by RFC 4180: commas, quotes doubled inside quotes, line breaks inside quotes
//   .jsonl, .json    one object per line, with `label` and one of `sentence`, `text`, `content`
//   anything else    fields between tabs, never quoted; the last column takes the rest of the line
//
// A table may begin with a line of column names, among them `label` and one of those three, in any order and case;
// without one the label comes first and the sentence second. Labels are whole numbers, or, where `names` are given,
// those names: their place is the label. Throws UserError with file:line.
void for_each_labelled_sentence(
    const MappedFile& file,
    const std::function<void(std::int64_t label, std::string_view sentence, const SourcePlace& place)>& take,
    const std::vector<std::string>& names = {});

// The distinct labels of the file in their order; none where its first label is a whole number. A table needs column
// names then, for its first line would be taken for them.
std::vector<std::string> label_names_of(const MappedFile& file);

}  // namespace lockstep::data
