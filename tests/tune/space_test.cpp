#include "lockstep/tune/space/space.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <set>

#include "../base/expect_user_error.h"
#include "lockstep/base/file.h"
#include "lockstep/spec/presets.h"

namespace lockstep::tune {
namespace {

using lockstep::testing::user_error;

Space parse(const std::string& text, const NcclFacts& facts = {}) { return Space::parse(text, "space.yaml", facts); }

std::string error(const std::string& text) {
  return user_error([&] { parse(text); });
}

const Knob& knob(const Space& space, const std::string& name) { return space.knobs()[space.find(name).value()]; }

Config config(const Space& space, const char* json) { return space.from_json(nlohmann::json::parse(json), "test"); }

const char* const kDesign = R"(
knobs:
  NCCL_ALGO: {choices: [Ring, Tree], default: Ring}
  num_workers: {int: [0, 16], default: 2}
  bucket_mib: {log_int: [1, 256]}
  prefetch_factor: {int: [1, 8], when: "num_workers > 0"}
  dropout: {float: [0.0, 0.5]}
  micro_batch: {choices: [1, 2, 4, 8, 16, 32], default: 4}
  accumulation: {int: [1, 32]}
constraints: ["micro_batch * accumulation == 32"]
)";

TEST(Space, reads_every_kind_of_knob) {
  const Space space = parse(R"(
name: all kinds
knobs:
  word: {choices: [Ring, "8", 'true'], default: "8", target: env}
  size: {choices: [1, 2, 4, 8]}
  even: {choices: [2, 4, 6]}
  share: {choices: [0.5, 1]}
  mixed: {choices: [auto, 1, 2]}
  flag: {choices: [true, false]}
  short: {bool: true, target: arg}
  threads: {int: [0, 16], default: 2}
  bucket: {log_int: [1, 256], target: communication.bucket_mib}
  rate: {float: [0, 0.5]}
  decay: {log_float: [0.0001, 1]}
  backend: {fixed: gloo}
)");
  EXPECT_EQ(space.name(), "all kinds");
  EXPECT_EQ(knob(space, "word").choices,
            (std::vector<Value>{std::string("Ring"), std::string("8"), std::string("true")}));
  EXPECT_EQ(knob(space, "word").default_value, Value(std::string("8")));
  EXPECT_TRUE(knob(space, "word").default_given);
  EXPECT_FALSE(knob(space, "word").ordered);
  EXPECT_EQ(knob(space, "word").target, "env");
  EXPECT_TRUE(knob(space, "size").ordered);
  EXPECT_TRUE(knob(space, "size").log);
  EXPECT_EQ(knob(space, "size").default_value, Value(std::int64_t{1}));
  EXPECT_FALSE(knob(space, "even").log);
  EXPECT_TRUE(knob(space, "share").ordered);
  EXPECT_FALSE(knob(space, "mixed").ordered);
  EXPECT_FALSE(knob(space, "flag").ordered);
  EXPECT_EQ(knob(space, "short").default_value, Value(true));
  EXPECT_EQ(knob(space, "threads").kind, KnobKind::kInteger);
  EXPECT_EQ(knob(space, "bucket").default_value, Value(std::int64_t{1}));
  EXPECT_TRUE(knob(space, "bucket").log);
  EXPECT_EQ(knob(space, "rate").default_value, Value(0.25));
  EXPECT_NEAR(std::get<double>(knob(space, "decay").default_value), 0.01, 1e-12);
  EXPECT_EQ(knob(space, "backend").choices.size(), 1u);
  EXPECT_FALSE(space.find("nothing").has_value());
}

TEST(Space, choices_are_logarithmic_when_they_grow_by_ratios) {
  const auto is_log = [](const std::string& choices) {
    return knob(parse("knobs: {k: {choices: " + choices + "}}"), "k").log;
  };
  EXPECT_TRUE(is_log("[1, 2, 4, 8]"));
  EXPECT_TRUE(is_log("[8, 4, 2, 1]"));
  EXPECT_TRUE(is_log("[1, 10, 100]"));
  EXPECT_TRUE(is_log("[4, 8, 16, 25, 50, 100]"));
  EXPECT_FALSE(is_log("[1, 2, 4]")) << "less than a factor of 8";
  EXPECT_FALSE(is_log("[1, 64]")) << "two numbers";
  EXPECT_FALSE(is_log("[0, 1, 2, 4, 8]")) << "zero has no ratio";
  EXPECT_FALSE(is_log("[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]"));
  EXPECT_FALSE(is_log("[1, 30, 31, 32]"));
}

TEST(Space, default_config_keeps_written_defaults_and_moves_the_others) {
  const Space space = parse(kDesign);
  const Config& config = space.default_config();
  EXPECT_TRUE(space.is_valid(config));
  EXPECT_EQ(space.to_text(config),
            "NCCL_ALGO=Ring num_workers=2 bucket_mib=1 prefetch_factor=1 dropout=0.25 micro_batch=4 accumulation=8");
}

TEST(Space, default_config_leaves_inactive_knobs_out) {
  const Space space = parse("knobs: {w: {int: [0, 4]}, p: {int: [1, 8], when: w > 0}}");
  EXPECT_EQ(space.to_text(space.default_config()), "w=0");
}

TEST(Space, is_valid_says_what_is_wrong) {
  const Space space = parse(kDesign);
  const auto why = [&](std::size_t index, Value value) {
    Config config = space.default_config();
    config.values[index] = std::move(value);
    std::string reason;
    EXPECT_FALSE(space.is_valid(config, &reason));
    return reason;
  };
  EXPECT_EQ(why(0, std::string("NVLS")), "NCCL_ALGO cannot be NVLS");
  EXPECT_EQ(why(1, std::int64_t{17}), "num_workers cannot be 17");
  EXPECT_EQ(why(1, std::int64_t{0}), "prefetch_factor is only there when num_workers > 0");
  EXPECT_EQ(why(3, {}), "prefetch_factor has no value");
  EXPECT_EQ(why(4, 0.75), "dropout cannot be 0.75");
  EXPECT_EQ(why(5, std::int64_t{8}), "not so: micro_batch * accumulation == 32");
  EXPECT_FALSE(space.is_valid({})) << "values are missing";
}

TEST(Space, knobs_named_after_nccl_bring_its_rules) {
  const std::string knobs = R"(
knobs:
  NCCL_ALGO: {choices: [Ring, Tree, NVLS, NVLSTree]}
  NCCL_PROTO: {choices: [LL, LL128, Simple]}
)";
  EXPECT_EQ(parse(knobs).count(), 8u);
  EXPECT_EQ(parse(knobs, {23007, 1, true, true}).count(), 7u);
  EXPECT_EQ(parse(knobs + "nccl: {version: 2.30.7, nodes: 1, hopper: false, ll128_safe: false}").count(), 4u);
  EXPECT_EQ(parse(knobs + "nccl: {nodes: 4}", {23007, 1, true, true}).count(), 8u) << "the file comes first";
  EXPECT_EQ(parse(knobs + "nccl_rules: false").count(), 12u);
  EXPECT_EQ(parse(knobs).constraints().size(), 2u);
  EXPECT_EQ(parse("knobs: {NCCL_ALGO: {choices: [Ring, NVLS]}}").count(), 2u) << "one of the two alone";
  EXPECT_EQ(parse("knobs: {NCCL_PROTO: {choices: [LL, Simple]}}").count(), 2u);
}

TEST(Space, count_and_enumerate_collapse_what_is_inactive) {
  const Space space = parse("knobs: {w: {int: [0, 3]}, p: {int: [1, 8], when: w > 0}, f: {bool: true}}");
  EXPECT_EQ(space.count(), (1u + 3 * 8) * 2);
  EXPECT_EQ(space.count(49), std::nullopt);
  EXPECT_EQ(space.enumerate()->size(), 50u);
  EXPECT_FALSE(space.enumerate(49).has_value());
  EXPECT_FALSE(parse(kDesign).count().has_value()) << "a real knob cannot be counted";
  EXPECT_FALSE(parse(kDesign).enumerate().has_value());
}

TEST(Space, when_may_depend_on_a_knob_that_is_itself_inactive) {
  const Space space =
      parse("knobs: {a: {int: [0, 1]}, b: {int: [0, 1], when: a == 1}, c: {int: [0, 2], when: b == 1}}");
  EXPECT_EQ(space.count(), 1u + 1 + 3);
  EXPECT_EQ(config(space, R"({"a": 0})").values[2], Value());
}

TEST(Space, knobs_may_be_written_before_those_they_depend_on) {
  const Space space =
      parse("knobs: {c: {int: [0, 2], when: b == 1}, b: {int: [0, 1], when: a == 1}, a: {int: [0, 1]}}");
  EXPECT_EQ(space.count(), 5u);
}

TEST(Space, constraints_on_inactive_knobs_do_not_count) {
  const Space space = parse("knobs: {w: {int: [0, 2]}, p: {int: [1, 8], when: w > 0}}\nconstraints: [w * p >= 8]");
  EXPECT_EQ(space.count(), 1u + 1 + 5);
}

TEST(Space, coordinates_are_positions_in_the_scale_of_the_knob) {
  const Space space = parse(R"(
knobs:
  word: {choices: [a, b, c]}
  size: {choices: [8, 1, 2, 4]}
  n: {int: [10, 20]}
  big: {log_int: [1, 256]}
  rate: {log_float: [0.01, 1]}
  w: {int: [0, 1]}
  p: {int: [1, 8], when: w > 0}
  one: {fixed: 3}
)");
  const auto at = space.coordinates(
      config(space, R"({"word": "c", "size": 4, "n": 15, "big": 16, "rate": 0.1, "w": 0, "one": 3})"));
  EXPECT_EQ(at[0], 2);
  EXPECT_NEAR(at[1], 2.0 / 3, 1e-12);
  EXPECT_NEAR(at[2], 0.5, 1e-12);
  EXPECT_NEAR(at[3], 0.5, 1e-12);
  EXPECT_NEAR(at[4], 0.5, 1e-12);
  EXPECT_EQ(at[5], 0);
  EXPECT_TRUE(std::isnan(at[6]));
  EXPECT_EQ(at[7], 0);
}

TEST(Space, neighbours_follow_equality_constraints) {
  const Space space = parse(kDesign);
  const Config from = config(space, R"({"NCCL_ALGO": "Ring", "num_workers": 2, "bucket_mib": 8, "prefetch_factor": 2,
                                        "dropout": 0.1, "micro_batch": 4, "accumulation": 8})");
  std::set<std::string> found;
  for (const Config& neighbour : space.neighbours(from)) {
    EXPECT_TRUE(space.is_valid(neighbour));
    EXPECT_TRUE(found.insert(space.to_text(neighbour, &from)).second) << "twice: " << space.to_text(neighbour, &from);
  }
  EXPECT_EQ(found.count(""), 0u);
  for (const char* wanted : {"NCCL_ALGO=Tree", "num_workers=1", "num_workers=3", "bucket_mib=7", "bucket_mib=9",
                             "prefetch_factor=1", "prefetch_factor=3", "micro_batch=2 accumulation=16",
                             "micro_batch=8 accumulation=4", "micro_batch=16 accumulation=2"}) {
    EXPECT_EQ(found.count(wanted), 1u) << wanted;
  }
}

TEST(Space, neighbours_wake_knobs_at_their_defaults) {
  const Space space = parse("knobs: {w: {choices: [0, 4]}, p: {int: [1, 8], default: 3, when: w > 0}}");
  const std::vector<Config> neighbours = space.neighbours(config(space, R"({"w": 0})"));
  ASSERT_EQ(neighbours.size(), 1u);
  EXPECT_EQ(space.to_text(neighbours[0]), "w=4 p=3");
}

TEST(Space, set_back_moves_as_little_as_it_can) {
  const Space space = parse(kDesign);
  const Config best = config(space, R"({"NCCL_ALGO": "Tree", "num_workers": 6, "bucket_mib": 8, "prefetch_factor": 4,
                                        "dropout": 0.1, "micro_batch": 16, "accumulation": 2})");
  std::vector<std::size_t> moved;
  auto back = space.set_back(best, *space.find("NCCL_ALGO"), &moved);
  EXPECT_EQ(space.to_text(back.value(), &best), "NCCL_ALGO=Ring");
  EXPECT_TRUE(moved.empty());
  back = space.set_back(best, *space.find("micro_batch"), &moved);
  EXPECT_EQ(space.to_text(back.value(), &best), "micro_batch=4 accumulation=8");
  EXPECT_EQ(moved, std::vector<std::size_t>{*space.find("accumulation")});
  back = space.set_back(best, *space.find("accumulation"), &moved);
  EXPECT_EQ(space.to_text(back.value(), &best), "micro_batch=4 accumulation=8")
      << "back to the default configuration's";
  back = space.set_back(space.default_config(), *space.find("micro_batch"), &moved);
  EXPECT_EQ(back, space.default_config());
  EXPECT_TRUE(moved.empty());
}

TEST(Space, set_back_takes_the_nearest_of_the_least_changes) {
  const Space space = parse(R"(
knobs:
  a: {choices: [1, 2, 4, 8], default: 1}
  b: {choices: [1, 2, 4, 8], default: 8}
  c: {choices: [1, 4, 16], default: 1}
constraints: ["a * b * c >= 8", "a * b * c <= 16"]
)");
  // 1 * 1 * 4 is too little. One knob is enough: b to 2 (a third of its scale), b to 4, or c to 16 (half of its scale).
  const Config from = config(space, R"({"a": 2, "b": 1, "c": 4})");
  EXPECT_EQ(space.to_text(space.set_back(from, 0).value(), &from), "a=1 b=2");
}

TEST(Space, set_back_of_a_switch_takes_its_dependants_along) {
  const Space space = parse("knobs: {w: {int: [0, 4]}, p: {int: [1, 8], default: 2, when: w > 0}}");
  const Config from = config(space, R"({"w": 3, "p": 5})");
  std::vector<std::size_t> moved;
  EXPECT_EQ(space.to_text(space.set_back(from, 0, &moved).value()), "w=0");
  EXPECT_EQ(moved, std::vector<std::size_t>{1});
  EXPECT_EQ(space.to_text(space.set_back(from, 1, &moved).value()), "w=3 p=2");
  const Config asleep = config(space, R"({"w": 0})");
  EXPECT_EQ(space.set_back(asleep, 1, &moved), asleep) << "an inactive knob cannot be reverted";
}

TEST(Space, set_back_says_so_when_the_default_is_impossible) {
  const Space space =
      parse("knobs: {a: {int: [0, 4], default: 1}, b: {int: [0, 4], when: a == 0}}\nconstraints: [b != 0]");
  EXPECT_EQ(space.to_text(space.default_config()), "a=1");
  const Config from = config(space, R"({"a": 0, "b": 3})");
  EXPECT_FALSE(space.set_back(from, 1).has_value());
  EXPECT_EQ(space.to_text(space.set_back(from, 0).value()), "a=1");
}

TEST(Space, json_round_trip_leaves_inactive_knobs_out) {
  const Space space = parse(kDesign);
  Random random(3);
  for (int i = 0; i < 200; ++i) {
    const Config config = space.sample(random);
    const nlohmann::json document = space.to_json(config);
    EXPECT_EQ(document.contains("prefetch_factor"), document["num_workers"] != 0);
    EXPECT_EQ(space.from_json(document, "x"), config);
    EXPECT_EQ(space.from_json(nlohmann::json::parse(document.dump()), "x"), config);
  }
}

TEST(Space, json_takes_numbers_of_either_kind_and_drops_what_is_inactive) {
  const Space space = parse("knobs: {w: {int: [0, 4]}, p: {int: [1, 8], when: w > 0}, r: {float: [0, 4]}}");
  EXPECT_EQ(space.to_text(config(space, R"({"w": 0.0, "p": 3, "r": 2})")), "w=0 r=2");
  EXPECT_EQ(space.to_text(config(space, R"({"w": 0, "p": null, "r": 2})")), "w=0 r=2");
}

TEST(Space, json_errors_name_file_knob_and_the_nearest) {
  const Space space = parse("knobs: {workers: {int: [0, 4]}, algo: {choices: [Ring, Tree]}}");
  const auto error = [&](const char* text) { return user_error([&] { config(space, text); }); };
  EXPECT_HAS(error(R"({"workes": 1, "algo": "Ring"})"), "test: there is no knob `workes`; did you mean `workers`?");
  EXPECT_HAS(error(R"({"workers": 5, "algo": "Ring"})"), "`workers` cannot be 5");
  EXPECT_HAS(error(R"({"workers": 1.5, "algo": "Ring"})"), "`workers` cannot be 1.5");
  EXPECT_HAS(error(R"({"workers": 1, "algo": "ring"})"), "`algo` cannot be \"ring\"");
  EXPECT_HAS(error(R"({"workers": [1], "algo": "Ring"})"), "`workers` cannot be [1]");
  EXPECT_HAS(error(R"({"algo": "Ring"})"), "the knob `workers` is missing");
  EXPECT_HAS(error("[1]"), "an object of knobs");
}

TEST(Space, yaml_round_trip_gives_the_same_space) {
  const Space space = parse(std::string(kDesign) + R"(
name: "quoted: name"
description: "two words, \"quotes\""
nccl: {version: 2.30.7, nodes: 2, hopper: false}
)",
                            {0, 0, {}, true});
  const Space again = Space::parse(space.to_yaml(), "again.yaml");
  EXPECT_EQ(again.to_yaml(), space.to_yaml());
  EXPECT_EQ(again.constraints(), space.constraints());
  EXPECT_EQ(again.default_config(), space.default_config());
  Random random(5);
  Random same(5);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(space.sample(random), again.sample(same));
  const Space odd = parse("knobs: {k: {choices: [\"8\", \"true\", \"\", \"a\\nb\", 1.0, 2.5, true]}}");
  EXPECT_EQ(Space::parse(odd.to_yaml(), "x").knobs()[0].choices, odd.knobs()[0].choices);
}

TEST(Space, read_takes_a_map_with_other_keys) {
  const YamlNode node = parse_yaml("trials: 30\nknobs: {a: {int: [1, 2]}}\n", "job.yaml");
  EXPECT_EQ(Space::read(node).count(), 2u);
  EXPECT_HAS(user_error([] { parse("trials: 30\nknobs: {a: {int: [1, 2]}}\n"); }),
             "space.yaml:1:1: unknown key `trials`");
}

struct BadFile {
  const char* text;
  const char* message;
};

TEST(Space, bad_files_are_told_with_their_place_and_the_nearest_key) {
  const std::vector<BadFile> files = {
      {"knbos: {a: {int: [1, 2]}}", "space.yaml:1:1: unknown key `knbos`; did you mean `knobs`?"},
      {"name: x", "the key `knobs` is missing"},
      {"knobs: {}", "space.yaml:1:8: `knobs` names no knob"},
      {"knobs: [a]", "`knobs` names no knob"},
      {"knobs:\n  a: {choises: [1]}", "space.yaml:2:7: unknown key `choises` in knobs.a; did you mean `choices`?"},
      {"knobs:\n  a: {default: 1}", "space.yaml:2:3: the knob `a` has no values"},
      {"knobs:\n  a: {int: [1, 2], choices: [1]}", "the knob `a` has both choices and int"},
      {"knobs:\n  a: 3", "space.yaml:2:6"},
      {"knobs: {a: {choices: []}}", "`knobs.a.choices` has no choices"},
      {"knobs: {a: {choices: 3}}", "`knobs.a.choices` has no choices"},
      {"knobs: {a: {choices: [1, [2]]}}", "space.yaml:1:26: `knobs.a.choices` holds a list"},
      {"knobs: {a: {choices: [1, 2, 1.0]}}", "space.yaml:1:29: `knobs.a.choices` has 1 twice"},
      {"knobs: {a: {choices: [x, x]}}", "has x twice"},
      {"knobs: {a: {int: [5, 2]}}", "space.yaml:1:18: `knobs.a.int` is empty: 5 is above 2"},
      {"knobs: {a: {int: [5]}}", "`knobs.a.int` needs two ends"},
      {"knobs: {a: {int: [1, 2.5]}}", "space.yaml:1:22: `knobs.a.int` cannot end at `2.5`"},
      {"knobs: {a: {int: [1, x]}}", "cannot end at `x`"},
      {"knobs: {a: {int: [1, 1e300]}}", "too large"},
      {"knobs: {a: {int: [1, 99999999999999999]}}", "too large"},
      {"knobs: {a: {log_int: [0, 8]}}", "space.yaml:1:22: `knobs.a.log_int` starts at 0"},
      {"knobs: {a: {log_float: [0, 8]}}", "use float instead"},
      {"knobs: {a: {int: [1, 8], default: 9}}", "space.yaml:1:35: `knobs.a.default` cannot be 9; it must be 1 to 8"},
      {"knobs: {a: {choices: [Ring, Tree], default: Rign}}", "did you mean `Ring`?"},
      {"knobs: {a: {bool: true, default: false}}", "`knobs.a.bool` says the default already"},
      {"knobs: {a: {bool: yes}}", "write true or false"},
      {"knobs: {a: {int: [1, 2], target: 'a b'}}", "write env, arg, or a field of the job"},
      {"knobs: {a: {int: [1, 2], when: \"b > 0\"}, bb: {int: [0, 1]}}",
       "space.yaml:1:33: in `b > 0`: there is no knob `b`"},
      {"knobs: {a: {int: [1, 2], when: a > 1}}", "whether `a` is active depends on itself"},
      {"knobs: {a: {int: [1, 2], when: b > 1}, b: {int: [1, 2], when: a > 1}}", "depends on itself"},
      {"knobs: {a: {int: [1, 2]}}\nconstraints: a > 1", "space.yaml:2:14: `constraints` holds a value"},
      {"knobs: {a: {int: [1, 2]}}\nconstraints: [[a]]", "an expression was expected"},
      {"knobs: {a: {int: [1, 2]}}\nconstraints: [\"a > \"]", "space.yaml:2:20: in `a > `"},
      {"knobs: {a: {int: [1, 2]}}\nconstraints: [a > 0, a + 1]", "space.yaml:2:22: in `a + 1`"},
      {"knobs: {a: {int: [1, 2]}}\nconstraints: [a > 2]", "space.yaml:2:15: no configuration satisfies `a > 2`"},
      {"knobs: {a: {int: [1, 9]}}\nconstraints: [a > 2, a < 3]", "2:22: no configuration satisfies `a < 3` together"},
      {"knobs: {a: {int: [1, 2]}}\nconstraints: [1 > 2]", "`1 > 2` is never true"},
      {"knobs: {a: {float: [0, 1]}}\nconstraints: [a > 2]", "no configuration satisfies `a > 2`"},
      {"knobs: {a: {int: [1, 2]}}\nnccl: {version: newest}", "space.yaml:2:17: `newest` is not a version of NCCL"},
      {"knobs: {a: {int: [1, 2]}}\nnccl: {node: 2}", "unknown key `node` in nccl; did you mean `nodes`?"},
      {"knobs: {NCCL_PROTO: {choices: [LL128]}}\nnccl: {ll128_safe: false}", "no configuration satisfies `NCCL_PROTO"},
      {"knobs: {a: {int: [1, 2]}, a: {int: [1, 2]}}", "space.yaml:1:27"},
      {"knobs: {a: {int: [1, 2]}}\nnccl_rules: maybe", "write true or false"},
  };
  for (const BadFile& file : files) EXPECT_HAS(error(file.text), file.message);
}

TEST(Space, load_finds_files_and_ready_made_spaces) {
  const std::filesystem::path path = std::filesystem::path(::testing::TempDir()) / "lockstep_space_test.yaml";
  std::ofstream(path) << kDesign;
  EXPECT_EQ(Space::load(path.string()).size(), 7u);
  std::filesystem::remove(path);
  EXPECT_HAS(user_error([] { Space::load("pytorch-dpp"); }),
             "there is no space `pytorch-dpp`; did you mean `pytorch-ddp`?");
  EXPECT_HAS(user_error([] { Space::load("missing.yaml"); }, ExitCode::kEnvironment), "missing.yaml");
}

TEST(Space, ready_made_spaces_are_valid_and_big_enough_to_search) {
  ASSERT_GE(spec::embedded_spaces().size(), 5u);
  for (const spec::EmbeddedSpec& preset : spec::embedded_spaces()) {
    const Space space = Space::load(std::string(preset.name));
    EXPECT_EQ(space.name(), preset.name);
    EXPECT_FALSE(space.description().empty()) << preset.name;
    EXPECT_GE(space.size(), 6u) << preset.name;
    EXPECT_TRUE(space.is_valid(space.default_config())) << preset.name;
    for (const Knob& knob : space.knobs()) {
      EXPECT_TRUE(knob.default_given) << preset.name << " " << knob.name;
      EXPECT_FALSE(knob.target.empty()) << preset.name << " " << knob.name;
    }
    Random random(1);
    for (int i = 0; i < 200; ++i) EXPECT_TRUE(space.is_valid(space.sample(random))) << preset.name;
    for (const Config& neighbour : space.neighbours(space.default_config())) EXPECT_TRUE(space.is_valid(neighbour));
    EXPECT_GT(space.neighbours(space.default_config()).size(), space.size()) << preset.name;
  }
}

}  // namespace
}  // namespace lockstep::tune
