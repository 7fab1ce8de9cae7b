// Files of labelled sentences: TSV, CSV and JSON lines.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

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
// without one the label comes first and the sentence second. Labels are whole numbers. Throws UserError with file:line.
void for_each_labelled_sentence(
    const MappedFile& file,
    const std::function<void(std::int64_t label, std::string_view sentence, const SourcePlace& place)>& take);

}  // namespace lockstep::data
