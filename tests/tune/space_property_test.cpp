// Properties of every space, checked on random ones against brute force.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "lockstep/base/error.h"
#include "lockstep/base/yaml.h"
#include "lockstep/tune/space/space.h"

namespace lockstep::tune {
namespace {

int draw(Random& random, int low, int high) {
  return low + static_cast<int>(random() % static_cast<std::uint64_t>(high - low + 1));
}

std::string random_condition(Random& random, int knobs) {
  const auto name = [&] { return fmt::format("k{}", draw(random, 0, knobs - 1)); };
  const std::string a = name();
  const std::string b = name();
  const std::string c = name();
  switch (draw(random, 0, 7)) {
    case 0:
      return fmt::format("{} * {} == {}", a, b, draw(random, 1, 12));
    case 1:
      return fmt::format("{} + {} <= {}", a, b, draw(random, 3, 9));
    case 2:
      return fmt::format("{} % 2 == 0 or {} > {}", a, b, draw(random, 0, 3));
    case 3:
      return fmt::format("{} in [1, {}]", a, b);
    case 4:
      return fmt::format("not ({} == {} and {} > 1)", a, b, c);
    case 5:
      return fmt::format("{} * {} * {} == 12", a, b, c);
    case 6:
      return fmt::format("min({}, {}) < 3", a, b);
    default:
      return fmt::format("{} >= {}", a, b);
  }
}

// At most six knobs with few levels, a few constraints and conditions; many cannot be satisfied.
std::string random_space(Random& random) {
  const int knobs = draw(random, 2, 5);
  std::string text = "knobs:\n";
  for (int i = 0; i < knobs; ++i) {
    text += fmt::format("  k{}: {{", i);
    switch (draw(random, 0, 3)) {
      case 0:
        text += "choices: [4, 1, 2, 6]";
        break;
      case 1:
        text += fmt::format("int: [0, {}]", draw(random, 0, 4));
        break;
      case 2:
        text += fmt::format("log_int: [1, {}]", draw(random, 1, 6));
        break;
      default:
        text += "choices: [1, 2, 3]";
        break;
    }
    // Only earlier knobs, so that there is no circle.
    if (i > 0 && draw(random, 0, 3) == 0) text += fmt::format(", when: {}", yaml_quote(random_condition(random, i)));
    text += "}\n";
  }
  text += "constraints:\n  - \"1 == 1\"\n";
  for (int i = draw(random, 0, 3); i > 0; --i)
    text += fmt::format("  - {}\n", yaml_quote(random_condition(random, knobs)));
  return text;
}

std::vector<Value> levels(const Knob& knob) {
  std::vector<Value> values = knob.choices;
  for (double level = knob.low; knob.kind == KnobKind::kInteger && level <= knob.high; ++level) {
    values.emplace_back(static_cast<std::int64_t>(level));
  }
  values.emplace_back();  // inactive
  return values;
}

// Every combination of levels, inactive included, that is_valid() accepts.
std::vector<Config> brute_force(const Space& space) {
  std::vector<Config> all = {Config{}};
  for (const Knob& knob : space.knobs()) {
    std::vector<Config> longer;
    for (const Config& config : all) {
      for (const Value& value : levels(knob)) {
        longer.push_back(config);
        longer.back().values.push_back(value);
      }
    }
    all = std::move(longer);
  }
  std::erase_if(all, [&](const Config& config) { return !space.is_valid(config); });
  return all;
}

std::set<std::string> texts(const Space& space, const std::vector<Config>& configs) {
  std::set<std::string> result;
  for (const Config& config : configs) result.insert(space.to_text(config));
  return result;
}

int changes(const Config& from, const Config& to) {
  int count = 0;
  for (std::size_t i = 0; i < from.values.size(); ++i) {
    count += is_active(from.values[i]) && is_active(to.values[i]) && from.values[i] != to.values[i] ? 1 : 0;
  }
  return count;
}

// Calls `check` with `wanted` random spaces that can be satisfied.
template <class Check>
void for_random_spaces(int wanted, Check check) {
  Random random(20);
  int satisfiable = 0;
  for (int i = 0; satisfiable < wanted; ++i) {
    const std::string text = random_space(random);
    std::optional<Space> space;
    try {
      space = Space::parse(text, "random.yaml");
    } catch (const UserError& error) {
      ASSERT_NE(std::string(error.what()).find("no configuration satisfies"), std::string::npos)
          << error.what() << text;
      continue;
    }
    ++satisfiable;
    SCOPED_TRACE(text);
    check(*space, random);
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(SpaceProperties, enumerate_agrees_with_brute_force) {
  for_random_spaces(300, [](const Space& space, Random&) {
    const std::vector<Config> all = brute_force(space);
    const auto enumerated = space.enumerate().value();
    EXPECT_EQ(texts(space, enumerated), texts(space, all));
    EXPECT_EQ(enumerated.size(), all.size()) << "no duplicates";
    EXPECT_EQ(space.count(), all.size());
  });
}

TEST(SpaceProperties, spaces_are_refused_only_when_brute_force_finds_nothing) {
  Random random(21);
  int refused = 0;
  for (int i = 0; i < 300; ++i) {
    const std::string text = random_space(random);
    try {
      Space::parse(text, "random.yaml");
    } catch (const UserError&) {
      ++refused;
      // The same knobs without constraints, constraints checked by hand.
      const YamlNode node = parse_yaml(text, "random.yaml");
      const Space free = Space::parse(text.substr(0, text.find("constraints:")), "free.yaml");
      for (const Config& config : brute_force(free)) {
        bool valid = true;
        for (const YamlNode& constraint : node.find("constraints")->items) {
          std::string fixed = "knobs:\n";
          for (std::size_t k = 0; k < free.size(); ++k) {
            const Value value = is_active(config.values[k]) ? config.values[k] : Value(std::int64_t{0});
            fixed += fmt::format("  k{}: {{fixed: {}{}}}\n", k, to_text(value),
                                 is_active(config.values[k]) ? "" : ", when: \"1 == 2\"");
          }
          try {
            Space::parse(fixed + fmt::format("constraints: [{}]\n", yaml_quote(constraint.scalar)), "one.yaml");
          } catch (const UserError&) {
            valid = false;
            break;
          }
        }
        ASSERT_FALSE(valid) << text << free.to_text(config);
      }
    }
  }
  EXPECT_GT(refused, 10);
}

TEST(SpaceProperties, samples_are_valid) {
  for_random_spaces(100, [](const Space& space, Random& random) {
    for (int i = 0; i < 50; ++i) {
      std::string why;
      const Config config = space.sample(random);
      ASSERT_TRUE(space.is_valid(config, &why)) << why << ": " << space.to_text(config);
    }
  });
}

TEST(SpaceProperties, unconstrained_samples_break_constraints_only) {
  for_random_spaces(60, [](const Space& space, Random& random) {
    for (int i = 0; i < 20; ++i) {
      std::string why;
      const Config config = space.sample_unconstrained(random);
      EXPECT_TRUE(space.is_valid(config, &why) || why.starts_with("not so: ")) << why;
    }
  });
}

TEST(SpaceProperties, neighbours_are_valid_distinct_and_other) {
  for_random_spaces(150, [](const Space& space, Random& random) {
    const Config config = space.sample(random);
    const std::vector<Config> neighbours = space.neighbours(config);
    std::set<std::string> seen = {space.to_text(config)};
    for (const Config& neighbour : neighbours) {
      std::string why;
      EXPECT_TRUE(space.is_valid(neighbour, &why)) << why;
      EXPECT_TRUE(seen.insert(space.to_text(neighbour)).second) << "twice: " << space.to_text(neighbour);
    }
    // Whatever one knob away is valid, and a next level, is among them.
    for (const Config& other : brute_force(space)) {
      if (changes(config, other) == 0) continue;
      for (std::size_t i = 0; i < space.size(); ++i) {
        Config back = other;
        back.values[i] = config.values[i];
        const bool one_knob = back == config && is_active(other.values[i]) && is_active(config.values[i]);
        if (!one_knob || std::fabs(space.coordinates(other)[i] - space.coordinates(config)[i]) > 0.01) continue;
        EXPECT_TRUE(seen.count(space.to_text(other))) << space.to_text(other);
      }
    }
  });
}

TEST(SpaceProperties, set_back_changes_as_few_knobs_as_brute_force) {
  for_random_spaces(150, [](const Space& space, Random& random) {
    const std::vector<Config> all = brute_force(space);
    const Config config = space.sample(random);
    for (std::size_t knob = 0; knob < space.size(); ++knob) {
      std::vector<std::size_t> moved;
      const auto back = space.set_back(config, knob, &moved);
      const Value& in_default = space.default_config().values[knob];
      const Value target = is_active(in_default) ? in_default : space.knobs()[knob].default_value;
      if (!is_active(config.values[knob])) {
        EXPECT_EQ(back, config);
        continue;
      }
      int fewest = 1000;
      for (const Config& other : all) {
        if (other.values[knob] == target) fewest = std::min(fewest, changes(config, other));
      }
      ASSERT_EQ(back.has_value(), fewest < 1000);
      if (!back) continue;
      EXPECT_TRUE(space.is_valid(*back)) << space.to_text(*back);
      EXPECT_EQ(back->values[knob], target);
      EXPECT_EQ(changes(config, *back), fewest) << space.to_text(config) << " -> " << space.to_text(*back);
      std::vector<std::size_t> differing;
      for (std::size_t i = 0; i < space.size(); ++i) {
        if (i != knob && back->values[i] != config.values[i]) differing.push_back(i);
      }
      EXPECT_EQ(moved, differing);
    }
  });
}

TEST(SpaceProperties, default_config_is_valid_and_nearest_to_the_defaults) {
  for_random_spaces(150, [](const Space& space, Random&) {
    EXPECT_TRUE(space.is_valid(space.default_config()));
    Config defaults;
    for (const Knob& knob : space.knobs()) defaults.values.push_back(knob.default_value);
    int fewest = 1000;
    for (const Config& other : brute_force(space)) fewest = std::min(fewest, changes(defaults, other));
    EXPECT_LE(changes(defaults, space.default_config()), fewest + 1);
  });
}

// Chi-square against the uniform distribution; 5 standard deviations above the mean is not an accident.
void expect_uniform(const Space& space, int draws_per_config) {
  const auto all = space.enumerate().value();
  Random random(11);
  std::map<std::string, int> hits;
  const int draws = draws_per_config * static_cast<int>(all.size());
  for (int i = 0; i < draws; ++i) ++hits[space.to_text(space.sample(random))];
  double chi = 0;
  for (const Config& config : all) {
    const double off = hits[space.to_text(config)] - draws_per_config;
    chi += off * off / draws_per_config;
  }
  const double freedom = static_cast<double>(all.size()) - 1;
  EXPECT_LT(chi, freedom + 5 * std::sqrt(2 * freedom)) << all.size() << " configurations";
  EXPECT_GT(chi, freedom - 5 * std::sqrt(2 * freedom)) << "too even to be random";
}

TEST(SpaceProperties, samples_are_uniform_over_valid_configurations) {
  expect_uniform(Space::parse(R"(
knobs:
  ranks: {choices: [1, 2, 4, 8]}
  micro: {choices: [1, 2, 4, 8, 16, 32]}
  accumulation: {int: [1, 64]}
  workers: {int: [0, 4]}
  prefetch: {int: [1, 5], when: workers > 0}
  word: {choices: [a, b, c]}
constraints: [ranks * micro * accumulation == 64]
)",
                              "uniform.yaml"),
                 40);
}

TEST(SpaceProperties, a_constraint_leaves_logarithmic_integers_uniform_where_it_leaves_powers_of_two) {
  expect_uniform(Space::parse("knobs: {a: {log_int: [1, 64]}, b: {log_int: [1, 64]}, c: {int: [1, 64]}}\n"
                              "constraints: [a * b * c == 64]",
                              "powers.yaml"),
                 100);
}

TEST(SpaceProperties, free_logarithmic_integers_are_drawn_by_their_ratios) {
  const Space space = Space::parse("knobs: {a: {log_int: [1, 256]}}", "log.yaml");
  Random random(2);
  int small = 0;
  for (int i = 0; i < 10000; ++i) small += std::get<std::int64_t>(space.sample(random).values[0]) <= 16 ? 1 : 0;
  EXPECT_NEAR(small / 10000.0, std::log(16.5 / 0.5) / std::log(256.5 / 0.5), 0.03);
}

// Over two million combinations: drawn, not listed.
const char* const kLarge = R"(
knobs:
  a: {int: [0, 199]}
  b: {int: [0, 199]}
  c: {int: [0, 199]}
  d: {int: [0, 199], when: c > 100}
constraints: [a + b + c <= 300, a != b]
)";

TEST(SpaceProperties, large_spaces_are_drawn_without_a_list) {
  const Space space = Space::parse(kLarge, "large.yaml");
  EXPECT_FALSE(space.count().has_value());
  Random random(4);
  double inactive = 0;
  for (int i = 0; i < 3000; ++i) {
    const Config config = space.sample(random);
    ASSERT_TRUE(space.is_valid(config)) << space.to_text(config);
    inactive += is_active(config.values[3]) ? 0 : 1;
  }
  // 200 active configurations for each one that is not: about 1 in 200 at equal shares.
  EXPECT_LT(inactive / 3000, 0.03);
}

TEST(SpaceProperties, large_and_real_spaces_can_be_moved_in) {
  const std::vector<std::string> files = {
      kLarge,
      "knobs: {x: {float: [0, 1]}, y: {float: [0, 1]}, n: {int: [1, 8]}}\nconstraints: [x + y <= 1, n * x >= 0.5]",
      "knobs: {x: {log_float: [0.001, 1]}, n: {int: [0, 8]}, y: {float: [0, 1], when: n > 3}}\nconstraints: [y > x]",
      "knobs: {a: {log_int: [1, 1000000]}, b: {log_int: [1, 1000000]}, c: {int: [1, 1000000]}}\nconstraints: [a * b == "
      "c]"};
  for (const std::string& file : files) {
    const Space space = Space::parse(file, "moves.yaml");
    EXPECT_TRUE(space.is_valid(space.default_config())) << file;
    Random random(6);
    int moves = 0;
    for (int i = 0; i < 25; ++i) {
      const Config config = space.sample(random);
      ASSERT_TRUE(space.is_valid(config)) << file << space.to_text(config);
      for (const Config& neighbour : space.neighbours(config)) {
        ASSERT_TRUE(space.is_valid(neighbour)) << file << space.to_text(neighbour);
        EXPECT_NE(neighbour, config);
        ++moves;
      }
      for (std::size_t knob = 0; knob < space.size(); ++knob) {
        const auto back = space.set_back(config, knob);
        ASSERT_TRUE(!back || space.is_valid(*back)) << file << space.to_text(back.value_or(config));
      }
    }
    EXPECT_GT(moves, 100) << file;
  }
}

TEST(SpaceProperties, equality_over_wide_ranges_is_found_without_trying_all) {
  // Trying all would not end: a million to the third.
  const Space space = Space::parse(
      "knobs: {a: {int: [1, 1000000]}, b: {int: [1, 1000000]}, c: {int: [1, 1000000]}}\nconstraints: [a * b * c == 64]",
      "wide.yaml");
  EXPECT_EQ(space.count(), 28u);
}

}  // namespace
}  // namespace lockstep::tune
