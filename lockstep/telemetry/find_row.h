// One lookup for runs and studies.
#pragma once

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::telemetry {

// The row that `id` names: "last", a whole id, or the beginning of one when only one matches; UserError (bad input)
// when several do. `rows(limit, beginning)` lists them, newest first; `what` is "runs" or "studies".
template <class Rows>
auto find_row(const std::string& id, const char* what, const Rows& rows)
    -> std::optional<typename decltype(rows(std::size_t{1}, std::string()))::value_type> {
  if (id.empty()) return std::nullopt;
  const bool newest = id == "last";
  auto found = rows(newest ? 1 : std::numeric_limits<std::size_t>::max(), newest ? std::string() : id);
  if (found.empty()) return std::nullopt;
  for (auto& row : found) {
    if (row.info.id == id) return std::move(row);
  }
  if (!newest && found.size() > 1) {
    throw bad_input("several " + std::string(what) + " begin with '" + printable(id) + "': " +
                        printable(found.back().info.id, 100) + ", " + printable(found.front().info.id, 100) + ", ...",
                    "give more of the id");
  }
  return std::move(found.front());
}

// Newest first, at most `limit`; `time` is the member of info that says when it began.
template <class Row, class Info>
void keep_newest(std::vector<Row>& rows, double Info::*time, std::size_t limit) {
  std::stable_sort(rows.begin(), rows.end(), [time](const Row& a, const Row& b) {
    return std::pair(a.info.*time, a.info.id) > std::pair(b.info.*time, b.info.id);
  });
  if (rows.size() > limit) rows.resize(limit);
}

}  // namespace lockstep::telemetry
