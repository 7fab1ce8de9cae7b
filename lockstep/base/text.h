// Small text helpers: splitting, joining, and the nearest name for "did you mean".
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

// Pieces between separators; empty pieces are kept, so join(split(t, c), c) == t. split("", c) is {""}.
std::vector<std::string> split(std::string_view text, char separator);
std::string join(const std::vector<std::string>& parts, std::string_view separator);

std::string_view trim(std::string_view text);  // ASCII white space at both ends
std::string to_lower(std::string_view text);   // ASCII

// Damerau-Levenshtein distance (insert, delete, replace, swap of neighbours, each 1). Cost O(|a| |b|); longer than
// 256 characters are compared by their first 256.
int edit_distance(std::string_view a, std::string_view b);

// The candidate nearest to `name` (letter case ignored), if it is near enough to be meant:
// - a slip of the pen: distance at most a third of the longer length, at least 1. A digit too much, too few or another
//   counts double, because numbers distinguish names (`fp4` is not `fp64`);
// - one begins with the other (3 letters at least), or the words of `name` are those of the candidate, shortened or
//   with some omitted (`llama-1b` of `llama3.2-1b`, `seq_len` of `sequence_length`).
// Ties go to the earlier candidate.
std::optional<std::string> nearest(std::string_view name, const std::vector<std::string>& candidates);

// The fix for an unknown name: "did you mean `micro`?" or "known: a, b, c" when nothing is near.
std::string did_you_mean(std::string_view name, const std::vector<std::string>& candidates);

inline constexpr std::size_t kLongestName = 255;  // bytes of a file's name

// Hostile text made fit for one line of a message: control characters and bytes that are not UTF-8
// escaped, "..." after about `max` bytes.
std::string printable(std::string_view text, std::size_t max = 60);

// Sound UTF-8: no overlong forms, no surrogates, nothing beyond U+10FFFF.
bool is_utf8(std::string_view text);

// Whether text may be shown as it is: UTF-8 without control characters, line breaks or changes of the writing
// direction. What names in files must be: they reach terminals, file names and scripts.
bool is_printable(std::string_view text);

// One word for a POSIX shell that means exactly `text`: bare when it is harmless, else in single quotes; control
// characters are written as $'\n', so that a line stays a line.
std::string shell_quoted(std::string_view text);

}  // namespace lockstep
