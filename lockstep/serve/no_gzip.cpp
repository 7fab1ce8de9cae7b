#include "lockstep/serve/gzip.h"

namespace lockstep::serve {

std::optional<std::string> gzipped(std::string_view, int) { return std::nullopt; }

}  // namespace lockstep::serve
