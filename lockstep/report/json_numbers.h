// Figures as JSON: what is unknown is null, never NaN or a made-up 0.
#pragma once

#include <cmath>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>

namespace lockstep::report {

inline nlohmann::json number_or_null(double value) {
  return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json();
}
inline nlohmann::json positive_or_null(double value) { return value > 0.0 ? number_or_null(value) : nlohmann::json(); }

// The number along `keys`; 0 when it is not there. Plans and summaries come from files.
inline double number_at(const nlohmann::json& root, std::initializer_list<std::string> keys) {
  const nlohmann::json* at = &root;
  for (const std::string& key : keys) {
    if (!at->is_object()) return 0.0;
    const auto found = at->find(key);
    if (found == at->end()) return 0.0;
    at = &*found;
  }
  return at->is_number() ? at->get<double>() : 0.0;
}

}  // namespace lockstep::report
