#include "lockstep/data/tokenizer_json.h"

#include <fmt/format.h>

#include "lockstep/base/text.h"

namespace lockstep::data {

using nlohmann::json;

UserError refuse_tokenizer(const std::string& place, const std::string& what) {
  return bad_input("the tokenizer uses " + what + ", which lockstep does not reproduce",
                   "use a BPE, WordPiece or Unigram tokenizer of a known kind, or tokenise elsewhere into token shards "
                   "(data.kind: tokens)",
                   {place});
}

UserError malformed_tokenizer(const std::string& place, const std::string& what) {
  return bad_input(what, "take the file from the model's folder again", {place});
}

bool json_flag(const json& object, const char* key, bool fallback, const std::string& place) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return fallback;
  if (!found->is_boolean()) throw malformed_tokenizer(place, fmt::format("`{}` is not true or false", key));
  return found->get<bool>();
}

std::string json_text(const json& object, const char* key, const std::string& fallback, const std::string& place) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return fallback;
  if (!found->is_string()) throw malformed_tokenizer(place, fmt::format("`{}` is not a string", key));
  return found->get<std::string>();
}

const json& json_part(const json& object, const char* key) {
  static const json kNothing;
  const auto found = object.find(key);
  return found == object.end() ? kNothing : *found;
}

std::string json_type(const json& object, const std::string& what, const std::string& place) {
  if (!object.is_object()) throw malformed_tokenizer(place, what + " is not an object");
  return json_text(object, "type", "", place);
}

TokenId json_id(const json& value, const std::string& token, const std::string& place) {
  // get<uint64_t> of a negative number would wrap.
  if (!value.is_number_integer() || value.get<std::int64_t>() < 0 || value.get<std::int64_t>() >= kMaxTokenId ||
      (value.is_number_unsigned() && value.get<std::uint64_t>() >= static_cast<std::uint64_t>(kMaxTokenId))) {
    throw malformed_tokenizer(place, fmt::format("the id of `{}` is not a whole number below 2^24", printable(token)));
  }
  return value.get<TokenId>();
}

}  // namespace lockstep::data
