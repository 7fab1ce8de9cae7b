// Surface: a synthetic training job whose throughput is known for every configuration, so that a tuner's answer can be
// held against the truth. Knows nothing of the tuner: levels are numbers into tables, and the space goes out as YAML.
//
// A surface is a pure function of (kind, instance). Its spaces are small enough to be enumerated. Immutable after
// construction, so threads may share one.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "bench/tune/counter_random.h"
#include "lockstep/tune/models/prior.h"
#include "lockstep/tune/space/config.h"
#include "lockstep/tune/study/trial.h"

namespace lockstep::bench {

// One level per knob, -1 where the knob is inactive.
using Point = std::vector<int>;
using PointView = std::span<const int>;

struct SurfaceKnob {
  std::string name;
  std::vector<tune::Value> levels;
  int default_level = 0;
  enum class Written { kChoices, kInt, kLogInt } written = Written::kChoices;  // in the space file
  std::string when;                // text for the space file; "": always active
  int parent = -1;                 // the knob that `when` is about, an earlier one
  std::vector<int> parent_levels;  // active when the parent has one of these
};

// What a rule-abiding program refuses before anything runs. Known to every tool that can express it.
struct SurfaceRule {
  std::string text;        // of the space file; "" for NCCL's rules, which a space knows by itself
  std::vector<int> knobs;  // that it ties together; always active ones
  std::function<bool(PointView)> holds;
};

struct SurfaceTruth {
  tune::Outcome outcome = tune::Outcome::kMeasured;  // measured, oom, invalid, timeout
  double throughput = 0;                             // without noise; 0 unless measured
  std::string message = {};                          // of a failure, as a program would print it
  double launch_seconds = 20;                        // or all that a failed trial costs
  double sample_seconds = 4;
  double memory = 0;  // share of the device's that it takes; 0: the surface does not say
};

struct SurfaceMeasurement {
  tune::Outcome outcome = tune::Outcome::kMeasured;
  std::vector<double> samples;
  double seconds = 0;
  std::string message = {};
};

class Surface {
 public:
  Surface(std::string kind, int instance);
  virtual ~Surface() = default;
  Surface(const Surface&) = delete;
  Surface& operator=(const Surface&) = delete;

  const std::string& kind() const { return kind_; }
  int instance() const { return instance_; }
  const std::vector<SurfaceKnob>& knobs() const { return knobs_; }
  const std::vector<SurfaceRule>& rules() const { return rules_; }
  std::string space_yaml() const;
  nlohmann::json describe() const;  // the same for tools that do not read it: levels, activity, rules as valid tuples

  Point default_point() const;
  bool is_active(std::size_t knob, PointView levels) const;
  bool obeys_rules(PointView levels) const;
  // Whether the space file and describe() tell the defaults. Without them nobody knows default_point().
  bool tells_defaults() const { return tells_defaults_; }
  // From now on knobs are k0, k1, ... and words w0, w1, ... in everything that leaves the surface, so that knowing what
  // they usually do helps nobody. Numbers and truth values stay, and with them order and arithmetic; so do points.
  void hide_names();
  virtual SurfaceTruth at(PointView levels) const;
  SurfaceTruth at(const tune::Config& config) const { return at(point_of(config)); }

  // The truth times a lognormal factor of the launch (2.8%) and of the sample (2% with autocorrelation 0.3): about 3%
  // in all, mean 1. The factors depend on (kind, instance, noise_seed, trial) alone, never on the configuration.
  SurfaceMeasurement measure(PointView levels, std::uint64_t noise_seed, std::int64_t trial) const;

  // Log of how fast the machine is at that trial, for whatever runs on it: the samples of every tool share it.
  virtual double log_drift(std::uint64_t noise_seed, std::int64_t trial) const;

  // What a planner with wrong constants would say: the same formulas with distorted numbers and without the terms
  // that nobody models.
  tune::Belief believe(PointView levels) const;

  // Every configuration that obeys the rules, in a fixed order.
  void for_each(const std::function<void(PointView)>& visit) const;
  // Uniform over combinations of levels, as a tool without rules would draw; with `rules` redrawn until they hold.
  Point draw(Draws& draws, bool rules) const;

  Point point_of(const tune::Config& config) const;    // values in the order of knobs()
  Point point_of(const nlohmann::json& config) const;  // {"knob": value}; throws UserError for what does not exist
  tune::Config config_of(PointView levels) const;
  nlohmann::json json_of(PointView levels) const;

  // A tool would try at most this many combinations of levels, whether or not rules allow them.
  double combinations() const;

 protected:
  struct Prediction {
    double step_seconds = 1;  // per unit of useful work, so throughput is 1 over it
    double memory = 0;        // in units of the surface's own
    bool refused = false;     // fails for a reason that no rule tells
  };
  // `as_believed`: with the distorted constants.
  virtual Prediction predict(PointView levels, bool as_believed) const = 0;

  // For constructors. Names are looked up once, by find(); fit_memory() sets the capacity so that `share` of the
  // rule-abiding configurations need more (the default always fits) and scales throughput; call it last.
  int add_knob(SurfaceKnob knob);
  void add_rule(SurfaceRule rule) { rules_.push_back(std::move(rule)); }
  void fit_memory(double share);
  Draws draws(std::uint64_t purpose) const { return Draws(key_of({seed_, purpose})); }
  void keep_defaults_secret() { tells_defaults_ = false; }
  bool names_hidden() const { return names_hidden_; }
  std::string nccl_facts_yaml_;  // "nccl: {...}" line, or ""

 private:
  bool tells_defaults_ = true;
  bool names_hidden_ = false;
  std::string kind_;
  int instance_;
  std::uint64_t seed_;
  std::vector<SurfaceKnob> knobs_;
  std::vector<SurfaceRule> rules_;
  double capacity_ = 0;
  double scale_ = 1;  // throughput of the default is a round figure of the instance
};

// Levels from numbers and words.
std::vector<tune::Value> levels_of(std::initializer_list<std::int64_t> numbers);
std::vector<tune::Value> levels_of(std::initializer_list<const char*> words);
std::vector<tune::Value> levels_between(std::int64_t low, std::int64_t high);
std::vector<tune::Value> levels_bool();
double number_of(const tune::Value& value);  // of a numeric level

}  // namespace lockstep::bench
