// Figures of a run in words, the same in every medium.
#pragma once

#include <string>

#include "lockstep/plan/plan.h"

namespace lockstep::report {

std::string percent_words(double percent);                        // "12.3%", "-4.0%"; "-" for what is not finite
std::string seconds_words(double seconds);                        // "120 ms"; "-" for 0
std::string bytes_words(double bytes);                            // "14.0 GiB"; "-" for 0
std::string dollars_words(double usd, bool known);                // "1.25 k"; "-" where no price is known
std::string difference_words(double measured, double predicted);  // "-5.0%"; "-" where either is missing

}  // namespace lockstep::report
