// Runs something that must end in a UserError and hands back its one line.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "lockstep/base/error.h"

namespace lockstep::testing {

template <class Action>
std::string user_error(Action action, ExitCode code = ExitCode::kUsage) {
  try {
    action();
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << "more than one line: " << error.what();
    EXPECT_FALSE(error.fix().empty()) << "no fix: " << error.what();
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "not a UserError: " << error.what();
    return {};
  }
  ADD_FAILURE() << "no error was raised";
  return {};
}

inline ::testing::AssertionResult has(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "missing `" << part << "` in: " << text;
}

}  // namespace lockstep::testing

#define EXPECT_HAS(text, part) EXPECT_TRUE(::lockstep::testing::has(text, part))
