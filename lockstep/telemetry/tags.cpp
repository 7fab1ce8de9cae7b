#include "lockstep/telemetry/tags.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::telemetry {

std::vector<std::string> checked_tags(std::vector<std::string> tags) {
  constexpr std::size_t kMostTags = 32, kMostBytes = 64;
  for (const std::string& tag : tags) {
    if (tag.empty() || tag.size() > kMostBytes || !is_printable(tag))
      throw bad_input(fmt::format("'{}' is not a tag", printable(tag)), "1 to 64 bytes, no control characters");
  }
  std::sort(tags.begin(), tags.end());
  tags.erase(std::unique(tags.begin(), tags.end()), tags.end());
  if (tags.size() > kMostTags) throw bad_input(fmt::format("{} tags", tags.size()), "at most 32 for one run");
  return tags;
}

}  // namespace lockstep::telemetry
