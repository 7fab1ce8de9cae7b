// Python's pickle, plain data only. A pickle is a program: whatever would import or call something is refused.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace lockstep::diagnose {

// Dictionaries (keys as text), lists, tuples and sets (as arrays), text, bytes (as text), numbers, True, False, None;
// of protocols 0 to 5. Throws UserError (exit 2) with the offset for anything else, for damaged data, and for data that
// is nested deeper than 100 or unfolds to more than 5 million values.
nlohmann::json read_pickle(std::string_view bytes, const std::string& name);

// Whether it looks like one: protocol 2 and later say so; older ones begin with a few letters and end with a full stop.
bool looks_like_pickle(std::string_view beginning);

}  // namespace lockstep::diagnose
