// Golden texts: compared word by word, numbers with a tolerance, so that another compiler's last digit is no
// difference.
#pragma once

#include <gtest/gtest.h>

#include <string>

namespace lockstep::testing {

// Equal but for numbers that differ by less than 1% and bars and timelines whose cells moved by rounding. Set
// LOCKSTEP_UPDATE_GOLDEN=1 to write `actual` to `path` instead. A file that does not exist is a failure.
::testing::AssertionResult matches_golden(const std::string& actual, const std::string& path);

// The comparison itself: the first line that differs, or "".
std::string first_difference(const std::string& expected, const std::string& actual);

}  // namespace lockstep::testing
