// A document as plain lines, for a terminal; pictures are told by their words.
#pragma once

#include <string>

#include "lockstep/report/document/document.h"

namespace lockstep::report {

std::string to_text(const Document& document);

}  // namespace lockstep::report
