#include "lockstep/schedulers/yaml_writer.h"

#include <gtest/gtest.h>

namespace lockstep::schedulers {
namespace {

using nlohmann::ordered_json;

ordered_json read_back(const ordered_json& value) { return json_of(parse_yaml(yaml_text(value), "test")); }

TEST(YamlTree, texts_come_back_as_they_were_and_never_as_something_else) {
  for (const char* text : {"",           "plain",
                           "true",       "null",
                           "~",          "12",
                           "1e3",        "0x10",
                           "2026-11-16", "&anchor",
                           "*alias",     "!!tag x",
                           "- a",        "a: b",
                           "{a: b}",     "[a]",
                           "# c",        "'",
                           "\"",         "\\",
                           "\\n",        "a\nb",
                           "a\nb\n",     "\na",
                           " a\nb",      "a\n\nb\n\n",
                           "a\r\nb",     "\t",
                           "%x",         "@x",
                           "`x`",        "$(x)",
                           "${{ x }}",   "a\n---\nb: c",
                           "a\n...\n",   "key: |\n  x",
                           "\xc2\x85",   "\xe2\x80\xa8",
                           "\xc3\xa9",   "\xf0\x9f\x98\x80",
                           "\x01\x7f"}) {
    const ordered_json value = {{"first", text}, {"list", {text, {{"inner", text}}}}, {"last", 1}};
    EXPECT_EQ(read_back(value), value) << yaml_text(value);
  }
}

TEST(YamlTree, keys_are_texts_too) {
  const ordered_json value = {{"a: b", 1}, {"&x", {{"*y", "z"}}}, {"true", 2}, {"", 3}};
  EXPECT_EQ(read_back(value), value) << yaml_text(value);
}

TEST(YamlTree, numbers_booleans_and_empty_things_keep_their_kind) {
  const ordered_json value = {{"n", 3}, {"r", 0.5}, {"t", true}, {"deep", {{"list", {1, {2, 3}, {{"a", 4}}}}}}};
  EXPECT_EQ(read_back(value), value) << yaml_text(value);
  EXPECT_EQ(yaml_text(ordered_json{{"m", ordered_json::object()}, {"l", ordered_json::array()}}), "m: {}\nl: []\n");
}

TEST(YamlTree, quoted_numbers_of_a_file_stay_texts) {
  EXPECT_EQ(json_of(parse_yaml("{a: 4, b: \"4\", c: 4+, d: true, e: 'true'}", "test")),
            (ordered_json{{"a", 4}, {"b", "4"}, {"c", "4+"}, {"d", true}, {"e", "true"}}));
}

}  // namespace
}  // namespace lockstep::schedulers
