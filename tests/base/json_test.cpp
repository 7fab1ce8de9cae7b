#include "lockstep/base/json.h"

#include <gtest/gtest.h>

#include "expect_user_error.h"

namespace lockstep {
namespace {

using testing::user_error;

TEST(Json, syntax_errors_name_line_and_column) {
  EXPECT_EQ(user_error([] { parse_json("{\n  \"a\": 1,\n  oops\n}", "c.json"); }).rfind("c.json:3:3: bad JSON", 0), 0u);
  user_error([] { parse_json("", "c.json"); });
  user_error([] { parse_json("{\"a\": 1e999}", "c.json"); });
}

TEST(Json, deep_nesting_is_refused) {
  EXPECT_HAS(user_error([] { parse_json(std::string(200'000, '['), "c.json"); }), "nested too deeply");
}

TEST(JsonReader, getters_name_the_path_of_what_is_wrong) {
  const auto json = parse_json(R"({"a": {"b": "x", "c": 1.5, "n": null, "big": 18446744073709551615}})", "c.json");
  const JsonReader top(json, "c.json");
  const JsonReader a = top.object("a");
  EXPECT_EQ(a.text("b"), "x");
  EXPECT_EQ(a.integer_or("n", 7), 7);
  EXPECT_HAS(user_error([&] { a.integer("b"); }), "c.json: `a.b` is not a whole number");
  EXPECT_HAS(user_error([&] { a.integer("c"); }), "`a.c` is not a whole number");
  EXPECT_HAS(user_error([&] { a.integer("big"); }), "`a.big` is not a whole number");
  EXPECT_HAS(user_error([&] { a.text("n"); }), "`a.n` is missing");
  EXPECT_HAS(user_error([&] { top.object("z"); }), "`z` is missing");
  EXPECT_HAS(user_error([&] { a.object("b"); }), "a.b is not a JSON object");
  EXPECT_HAS(user_error([&] { JsonReader(nlohmann::json::array(), "c.json"); }), "top level");
}

}  // namespace
}  // namespace lockstep
