// Reading the JSON of tokenizer files, which may come from anywhere: types are checked, and what we do not reproduce is
// refused by name. `place` is the file.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/data/tokenizer.h"

namespace lockstep::data {

inline constexpr std::int64_t kMaxTokenId = std::int64_t{1} << 24;

UserError refuse_tokenizer(const std::string& place, const std::string& what);
UserError malformed_tokenizer(const std::string& place, const std::string& what);

// Absent and null read as the fallback; any other type than the fallback's is an error.
bool json_flag(const nlohmann::json& object, const char* key, bool fallback, const std::string& place);
std::string json_text(const nlohmann::json& object, const char* key, const std::string& fallback,
                      const std::string& place);
// Null where it is absent.
const nlohmann::json& json_part(const nlohmann::json& object, const char* key);
std::string json_type(const nlohmann::json& object, const std::string& what, const std::string& place);
TokenId json_id(const nlohmann::json& value, const std::string& token, const std::string& place);

}  // namespace lockstep::data
