#include "lockstep/comm/group_settings.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep::comm {
namespace {

constexpr const char* kForm = "write dp:algorithm=Ring,protocol=LL128,channels=8;tp:protocol=Simple";

std::vector<std::string> pieces_of(const std::string& text, char between) {
  std::vector<std::string> pieces;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(between, at), text.size());
    if (end > at) pieces.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return pieces;
}

int channels_of(const std::string& text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size() && value >= 1 && value <= 64) return value;
  throw bad_input(fmt::format("[comm] \"{}\" is not a number of channels", text), "use 1 to 64");
}

void set(GroupSettings& settings, const std::string& key, const std::string& value) {
  if (key == "algorithm") {
    settings.algorithm = value;
  } else if (key == "protocol") {
    settings.protocol = value;
  } else if (key == "channels") {
    settings.min_channels = settings.max_channels = channels_of(value);
  } else if (key == "min_channels") {
    settings.min_channels = channels_of(value);
  } else if (key == "max_channels") {
    settings.max_channels = channels_of(value);
  } else {
    throw bad_input(fmt::format("[comm] \"{}\" is not a setting of a group", key),
                    "use algorithm, protocol, channels, min_channels or max_channels");
  }
}

}  // namespace

std::vector<GroupSettings> parse_group_settings(const std::string& text) {
  std::vector<GroupSettings> groups;
  for (const std::string& entry : pieces_of(text, ';')) {
    const std::size_t colon = entry.find(':');
    if (colon == std::string::npos || colon == 0) {
      throw bad_input(fmt::format("[comm] \"{}\" names no group", entry), kForm);
    }
    GroupSettings settings{.group = entry.substr(0, colon)};
    for (const std::string& pair : pieces_of(entry.substr(colon + 1), ',')) {
      const std::size_t equals = pair.find('=');
      if (equals == std::string::npos || equals + 1 == pair.size()) {
        throw bad_input(fmt::format("[comm] \"{}\" is not of the form key=value", pair), kForm);
      }
      set(settings, pair.substr(0, equals), pair.substr(equals + 1));
    }
    if (settings.max_channels > 0 && settings.min_channels > settings.max_channels) {
      throw bad_input(fmt::format("[comm] group \"{}\" wants at least {} and at most {} channels", settings.group,
                                  settings.min_channels, settings.max_channels),
                      "swap them");
    }
    groups.push_back(std::move(settings));
  }
  return groups;
}

std::vector<GroupSettings> choose_group_settings(const char* environment, const std::string& planned) {
  return parse_group_settings(environment != nullptr && *environment != '\0' ? environment : planned);
}

}  // namespace lockstep::comm
