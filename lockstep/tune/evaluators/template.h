// A command line with knobs in it: which argument and which environment variable a configuration becomes.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "lockstep/tune/evaluators/process.h"
#include "lockstep/tune/space/space.h"

namespace lockstep::tune {

// Placeholders are {knob}, {trial} and {budget_seconds}; {{knob}} stands for the text {knob}; braces around anything
// but a name stay as they are (JSON in an argument needs no care).
//
// An inactive knob disappears: an argument with no other placeholder is dropped, and so is a flag before it that
// is a word of its own (`--prefetch {prefetch_factor}`); next to other placeholders it becomes empty.
//
// Environment: knobs of target "env", and knobs named like variables (UPPER_CASE) that no placeholder uses; inactive
// ones and those at `auto` are removed from what the program inherits. Besides, every knob as LOCKSTEP_KNOB_<NAME>.
class CommandTemplate {
 public:
  // UserError (exit 2) for a command that cannot be split and for placeholders that are not a knob, with the nearest.
  CommandTemplate(const std::string& command, Space space);

  struct Filled {
    std::vector<std::string> argv;
    std::map<std::string, std::string> environment;
    std::vector<std::string> unset;
  };
  Filled fill(const Config& config, std::int64_t trial, double budget_seconds) const;

  // Where a knob goes, for people: "argument", "environment", "LOCKSTEP_KNOB_X".
  std::string place_of(std::size_t knob) const;
  // Knobs that neither an argument nor a variable of their own name carries: only programs that read LOCKSTEP_KNOB_*
  // feel them.
  std::vector<std::string> hidden_knobs() const;

 private:
  struct Piece {
    std::string text;      // literal, or the name of a placeholder
    int placeholder = -1;  // index of a knob; -1: literal; -2: trial; -3: budget_seconds
  };
  using Argument = std::vector<Piece>;

  Argument parse_argument(const std::string& text);
  int find_placeholder(const std::string& name);
  bool is_dropped(const Argument& argument, const Config& config) const;
  std::string fill_argument(const Argument& argument, const Config& config, std::int64_t trial, double budget) const;

  Space space_;
  CommandLine command_;
  std::vector<Argument> arguments_;
  std::vector<bool> in_arguments_, in_environment_;  // by knob
};

}  // namespace lockstep::tune
