// Space: what may be changed, and which combinations exist. Read from YAML (docs/reference/tuning-spaces.md):
//
//   knobs:
//     NCCL_ALGO: {choices: [Ring, Tree], default: Ring}
//     num_workers: {int: [0, 16], default: 2}
//     bucket_mib: {log_int: [1, 256]}
//     prefetch_factor: {int: [1, 8], when: "num_workers > 0"}
//     dropout: {float: [0.0, 0.5]}
//   constraints: ["micro_batch * accumulation == 32"]
//
// A Space is immutable after loading and may be shared between threads.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "lockstep/base/yaml.h"
#include "lockstep/tune/space/config.h"

namespace lockstep::tune {

using Random = std::mt19937_64;

enum class KnobKind { kChoice, kInteger, kReal };

struct Knob {
  std::string name;
  KnobKind kind = KnobKind::kChoice;
  std::vector<Value> choices;  // kChoice, in the order of the file
  bool ordered = true;         // neighbours behave similarly: true of numbers, not of words and booleans
  bool log = false;            // distances are ratios (log_int, log_float, choices like 1, 2, 4, 8)
  double low = 0;              // kInteger, kReal: inclusive
  double high = 0;
  Value default_value;  // given, else the first choice, the lower end of integers, the middle of reals
  bool default_given = false;
  std::string when;    // expression over other knobs; "": always active
  std::string target;  // where an evaluator puts it: "env", "arg", or a job field like "batch.micro"; "": it decides
};

// The NCCL facts that decide which algorithm and protocol may be combined; unknown ones rule nothing out except what
// no version allows (docs/reference/tuning-spaces.md has the table).
struct NcclFacts {
  int version = 0;                 // 23007 for 2.30.7; 0: unknown
  int nodes = 0;                   // 0: unknown
  std::optional<bool> hopper;      // NVLS needs it
  std::optional<bool> ll128_safe;  // NVLink within the node and a fabric that keeps 128-byte stores whole
};

class Space {
 public:
  // Throw UserError (exit 2) with file:line:column for unknown keys, empty ranges, defaults outside, expressions that
  // do not parse or name unknown knobs, cycles of `when`, and constraints no configuration satisfies.
  // Knobs called NCCL_ALGO and NCCL_PROTO get NCCL's rules as constraints by themselves (`nccl_rules: false` turns
  // that off; `nccl: {version, nodes, hopper, ll128_safe}` in the file makes them sharper, and overrides `facts`).
  static Space load(const std::string& path_or_preset, const NcclFacts& facts = {});
  static Space parse(const std::string& yaml_text, const std::string& name_for_errors, const NcclFacts& facts = {});
  // From the map that has `knobs` and `constraints`, for files that hold a space among other things: keys that are none
  // of a space's (space_reader.h) are the caller's to check.
  static Space read(const YamlNode& node, const NcclFacts& facts = {});

  const std::string& name() const;  // "" unless the file has them
  const std::string& description() const;
  const std::vector<Knob>& knobs() const;
  std::size_t size() const { return knobs().size(); }
  std::optional<std::size_t> find(const std::string& name) const;
  const std::vector<std::string>& constraints() const;  // as written, NCCL's rules included
  std::string to_yaml() const;                          // parse() gives the same space back

  // All knobs at their defaults, repaired to the nearest valid configuration when constraints forbid that.
  const Config& default_config() const;
  // Did the file give a default to every knob that can be chosen? Otherwise default_config() is some valid
  // configuration that nobody runs: no baseline.
  bool has_default() const;

  // Is every value in range, activity as `when` says, and every constraint true? `why` gets one line when not.
  bool is_valid(const Config& config, std::string* why = nullptr) const;

  // Uniform over the valid configurations of discrete knobs (reals and log_int uniform in their own scale). Equality
  // constraints cost nothing: knobs that constraints tie together are drawn from the list of their valid combinations.
  Config sample(Random& random) const;
  // Uniform over all combinations, constraints ignored (what a tool without constraints would draw).
  Config sample_unconstrained(Random& random) const;

  // Number of valid configurations when every knob is discrete and it can be counted (at most `limit`).
  std::optional<std::uint64_t> count(std::uint64_t limit = 50'000'000) const;
  // All of them, in a fixed order; nullopt when there are reals or more than `limit`.
  std::optional<std::vector<Config>> enumerate(std::uint64_t limit = 2'000'000) const;

  // Valid configurations that differ from `config` in one knob (plus whatever that forces): every other choice of a
  // knob; for ordered knobs the next lower and higher levels and a few farther ones. No duplicates, not `config`.
  std::vector<Config> neighbours(const Config& config) const;

  // `config` with one knob back at its default (what default_config() has, where that repaired it), and the least
  // change of other knobs that makes it valid again. `moved` gets the knobs that had to follow. nullopt when no valid
  // configuration has that default.
  std::optional<Config> set_back(const Config& config, std::size_t knob,
                                 std::vector<std::size_t>* moved = nullptr) const;

  // Where a configuration stands, one coordinate per knob: [0, 1] for ordered knobs (in log scale when `log`), the
  // index of the choice for unordered ones, NaN for inactive ones.
  std::vector<double> coordinates(const Config& config) const;

  // {"micro_batch": 4, "NCCL_ALGO": "Ring"}; inactive knobs are omitted. from_json() throws UserError for unknown
  // knobs, values that are not a level of the knob, and missing active knobs.
  nlohmann::json to_json(const Config& config) const;
  Config from_json(const nlohmann::json& document, const std::string& name_for_errors) const;
  // "micro_batch=4 NCCL_ALGO=Ring"; with `differs_from` only the knobs whose values differ.
  std::string to_text(const Config& config, const Config* differs_from = nullptr) const;

 private:
  struct Impl;
  explicit Space(std::shared_ptr<const Impl> impl);
  std::shared_ptr<const Impl> impl_;
};

}  // namespace lockstep::tune
