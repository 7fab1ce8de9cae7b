#include "lockstep/base/yaml.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "expect_user_error.h"
#include "lockstep/base/map_reader.h"

namespace lockstep {
namespace {

using testing::user_error;

YamlNode parse(const std::string& text) { return parse_yaml(text, "f.yaml"); }

TEST(Yaml, values_know_their_line_and_column) {
  const YamlNode root = parse("a: 1\nb:\n  c: [x, 'true', {d: 2}]\n");
  const YamlNode& list = *root.find("b")->find("c");
  EXPECT_EQ(list.place().to_string(), "f.yaml:3:6");
  EXPECT_EQ(list.items[0].place().to_string(), "f.yaml:3:7");
  EXPECT_TRUE(list.items[1].quoted);
  EXPECT_EQ(list.items[2].find("d")->place().to_string(), "f.yaml:3:22");
  EXPECT_EQ(root.entries[1].key_place.to_string(), "f.yaml:2:1");
}

TEST(Yaml, syntax_errors_name_the_place) {
  EXPECT_EQ(user_error([] { parse("a: 1\nb: [1, 2\nc: 3\n"); }).rfind("f.yaml:", 0), 0u);
  EXPECT_HAS(user_error([] { parse("a: @x\n"); }), "bad YAML");
  EXPECT_HAS(user_error([] { parse("a: b: c\n"); }), "f.yaml:1:5");
}

TEST(Yaml, duplicate_keys_are_refused_at_the_second) {
  const std::string error = user_error([] { parse("a: 1\nb: 2\n'a': 3\n"); });
  EXPECT_HAS(error, "f.yaml:3:1: the key `a` is given twice (first in line 1)");
}

TEST(Yaml, second_documents_tags_and_odd_keys_are_refused) {
  EXPECT_HAS(user_error([] { parse("a: 1\n---\nb: 2\n"); }), "second document");
  EXPECT_HAS(user_error([] { parse("a: !!python/object x\n"); }), "tag");
  EXPECT_HAS(user_error([] { parse("{a: 1}: 2\n"); }), "key must be plain text");
  EXPECT_HAS(user_error([] { parse("? [a]\n: 2\n"); }), "key must be plain text");
  EXPECT_HAS(user_error([] { parse(std::string("a: \0", 4)); }), "control character 0x00");
}

TEST(Yaml, anchors_work_within_reason) {
  const YamlNode root = parse("a: &x {b: 1}\nc: *x\n");
  EXPECT_EQ(root.find("c")->find("b")->scalar, "1");
  EXPECT_HAS(user_error([] { parse("a: &x [*x]\n"); }), "f.yaml:1:8");
}

TEST(Yaml, an_alias_bomb_is_refused) {
  std::string bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 12; ++i) {
    std::string line = fmt::format("a{0}: &a{0} [", i);
    for (int k = 0; k < 10; ++k) line += fmt::format("{}*a{}", k == 0 ? "" : ", ", i - 1);
    bomb += line + "]\n";
  }
  EXPECT_HAS(user_error([&] { parse(bomb); }), "too many values");
}

TEST(Yaml, one_long_scalar_aliased_many_times_is_refused) {
  std::string bomb = "a: &a " + std::string(100'000, 'x') + "\nb: [*a";
  for (int i = 0; i < 5000; ++i) bomb += ", *a";
  EXPECT_HAS(user_error([&] { parse(bomb + "]\n"); }), "too many values");
}

TEST(Yaml, deep_nesting_is_refused) {
  for (const int depth : {40, 400, 4000, 100'000}) {
    user_error([&] { parse(std::string(static_cast<std::size_t>(depth), '[')); });
    user_error([&] { parse(std::string(static_cast<std::size_t>(depth), '{')); });
  }
  std::string dashes;
  for (int i = 0; i < 1000; ++i) dashes += "- ";
  user_error([&] { parse(dashes); });
}

TEST(Yaml, a_huge_file_is_refused_before_it_is_parsed) {
  EXPECT_HAS(user_error([] { parse(std::string(kMaxYamlBytes + 1, '#')); }), "the most that is read");
}

TEST(Yaml, quoting_reads_back_to_the_same_text) {
  for (const std::string& text :
       {std::string(), std::string("plain"), std::string("true"), std::string("~"), std::string("a: b"),
        std::string("-x"), std::string("# no"), std::string("a\"b\\c\n\t"), std::string("/data/ü/x y"),
        std::string("12"), std::string("null"), std::string("*a"), std::string("...")}) {
    EXPECT_EQ(parse("k: " + yaml_quote(text) + "\n").find("k")->scalar, text) << yaml_quote(text);
  }
}

TEST(MapReader, unknown_keys_name_the_place_and_the_nearest_key) {
  const YamlNode root = parse("batch:\n  mciro: 4\n");
  const std::string error = user_error([&] {
    MapReader reader(*root.find("batch"), "batch");
    std::int64_t micro = 0, accumulation = 0;
    reader.count("micro", micro);
    reader.count("accumulation", accumulation);
    reader.finish();
  });
  EXPECT_EQ(error, "f.yaml:2:3: unknown key `mciro` in batch; did you mean `micro`?");
}

TEST(MapReader, a_missing_key_is_reported_after_unknown_ones) {
  const YamlNode misspelt = parse("modle: x\n"), empty = parse("other: x\n");
  const auto read = [](const YamlNode& root, bool other) {
    MapReader reader(root, "");
    reader.require("model");
    if (other) reader.find("other");
    reader.finish();
  };
  EXPECT_HAS(user_error([&] { read(misspelt, false); }), "did you mean `model`?");
  EXPECT_HAS(user_error([&] { read(empty, true); }), "the key `model` is missing");
}

TEST(MapReader, wrong_types_units_and_ranges_name_the_value) {
  const YamlNode root = parse("n: [1]\nm: 80Gb\nb: yes\nr: 2.5\nc: ring\nt: 5\ne:\ni: 1e3\n");
  MapReader reader(root, "");
  std::int64_t n = 0;
  double d = 0;
  bool b = false;
  int c = 0;
  EXPECT_HAS(user_error([&] { reader.count("n", n); }), "f.yaml:1:4: `n` is a list, a value was expected");
  EXPECT_HAS(user_error([&] { reader.bytes("m", d); }),
             "f.yaml:2:4: `m`: `80Gb` is not a size: unknown unit `Gb`; write");
  EXPECT_HAS(user_error([&] { reader.boolean("b", b); }), "f.yaml:3:4: `b` cannot be `yes`; write true or false");
  EXPECT_HAS(user_error([&] { reader.real("r", d, 0.0, 1.0); }), "f.yaml:4:4: `r` is 2.5; it must be 0 to 1");
  EXPECT_HAS(user_error([&] {
               reader.choice("c", c, {{"rings", 1}, {"tree", 2}});
             }),
             "f.yaml:5:4: `c` cannot be `ring`; choose one of rings, tree (did you mean `rings`?)");
  EXPECT_HAS(user_error([&] { reader.seconds("t", d); }),
             "f.yaml:6:4: `t`: `5` is not a duration: the unit is missing");
  EXPECT_HAS(user_error([&] { reader.count("e", n); }), "`e` has no value");
  EXPECT_HAS(user_error([&] { reader.integer("i", n); }), "`i`: `1e3` is not a whole number");
  EXPECT_TRUE(reader.count("i", n));
  EXPECT_EQ(n, 1000);
}

TEST(MapReader, absent_keys_leave_the_default) {
  const YamlNode root = parse("{}");
  MapReader reader(root, "");
  std::int64_t n = 42;
  EXPECT_FALSE(reader.count("n", n));
  EXPECT_EQ(n, 42);
  reader.finish();
}

TEST(Override, sets_adds_and_replaces_values) {
  YamlNode root = parse("batch: {micro: 1}\n");
  apply_override(root, "batch.micro=8");
  apply_override(root, "optimizer.betas=[0.9, 0.95]");
  apply_override(root, "note=a=b");
  EXPECT_EQ(root.find("batch")->find("micro")->scalar, "8");
  EXPECT_EQ(root.find("optimizer")->find("betas")->items.size(), 2u);
  EXPECT_EQ(root.find("note")->scalar, "a=b");
}

TEST(Override, a_value_can_become_a_map_where_there_is_a_shorthand) {
  YamlNode root = parse("model: gpt2-124m\ncluster: 1x4xcpu\n");
  apply_override(root, "model.layers=2", {{"model", "preset"}});
  EXPECT_EQ(root.find("model")->find("preset")->scalar, "gpt2-124m");
  EXPECT_EQ(root.find("model")->find("layers")->scalar, "2");
  const std::string error = user_error([&] { apply_override(root, "cluster.nodes=2", {{"model", "preset"}}); });
  EXPECT_HAS(error, "override cluster.nodes=2: `cluster` is a value, not a map");
}

TEST(Override, malformed_ones_are_refused) {
  YamlNode root = parse("a: 1\n");
  for (const char* text : {"", "a", "=1", "a..b=1", ".a=1", "a.=1", "a=[1", "a={"}) {
    EXPECT_HAS(user_error([&] { apply_override(root, text); }), std::string("override ") + text);
  }
}

}  // namespace
}  // namespace lockstep
