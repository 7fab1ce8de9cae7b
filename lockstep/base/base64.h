// Any bytes as letters, digits, '+', '/' and '=' (RFC 4648).
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace lockstep {

std::string base64_of(std::string_view bytes);
// Nothing for a text that is not base64: other characters, or a length that is no multiple of four.
std::optional<std::string> base64_decode(std::string_view text);

}  // namespace lockstep
