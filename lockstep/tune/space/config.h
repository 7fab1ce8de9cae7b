// Config: one value per knob of a Space. A knob whose `when` is false has no value (it is inactive).
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include <nlohmann/json.hpp>

namespace lockstep::tune {

// monostate: the knob is inactive in this configuration.
using Value = std::variant<std::monostate, bool, std::int64_t, double, std::string>;

inline bool is_active(const Value& value) { return !std::holds_alternative<std::monostate>(value); }

// "Ring", "8", "0.25", "true"; "" when inactive. What goes into arguments and environment variables.
std::string to_text(const Value& value);
nlohmann::json to_json(const Value& value);  // null when inactive

struct Config {
  std::vector<Value> values;  // in the order of Space::knobs()
  bool operator==(const Config&) const = default;
};

}  // namespace lockstep::tune
