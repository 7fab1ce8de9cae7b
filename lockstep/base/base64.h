// Any bytes as letters, digits, '+', '/' and '=' (RFC 4648).
#pragma once

#include <string>
#include <string_view>

namespace lockstep {

std::string base64_of(std::string_view bytes);

}  // namespace lockstep
