#include "lockstep/plugin/option_map.h"

#include <fmt/format.h>

#include <span>

namespace lockstep::plugin {

std::int64_t OptionMap::integer(const std::string& key, std::int64_t fallback, std::int64_t least, std::int64_t most) {
  std::int64_t value = fallback;
  if (least >= 0) {
    map_.count(key, value, least, most);
    return value;
  }
  if (map_.integer(key, value) && (value < least || value > most)) {
    refuse(key, fmt::format("`{}` is {}", map_.full_key(key), value), fmt::format("{} to {}", least, most));
  }
  return value;
}

double OptionMap::real(const std::string& key, double fallback, double least, double most) {
  double value = fallback;
  map_.real(key, value, least, most);
  return value;
}

bool OptionMap::boolean(const std::string& key, bool fallback) {
  bool value = fallback;
  map_.boolean(key, value);
  return value;
}

std::string OptionMap::text(const std::string& key, const std::string& fallback) {
  std::string value = fallback;
  map_.text(key, value);
  return value;
}

std::string OptionMap::choice(const std::string& key, const std::string& fallback,
                              const std::vector<std::string>& choices) {
  std::vector<const char*> words;
  words.reserve(choices.size());
  for (const std::string& choice : choices) words.push_back(choice.c_str());
  std::string value = fallback;
  map_.word(key, value, words);
  return value;
}

std::string OptionMap::path(const std::string& key, const std::string& fallback) {
  std::string value = fallback;
  map_.path(key, value);
  return value;
}

std::vector<std::int64_t> OptionMap::integers(const std::string& key, const std::vector<std::int64_t>& fallback) {
  std::vector<std::int64_t> value = fallback;
  map_.counts(key, value);
  return value;
}

void OptionMap::refuse(const std::string& key, const std::string& problem, const std::string& fix) {
  throw map_.error_at(key, problem, fix);
}

}  // namespace lockstep::plugin
