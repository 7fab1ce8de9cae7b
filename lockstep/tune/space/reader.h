// Reading of space files, as far as YAML goes; space_builder.cpp makes a Space of it.
#pragma once

#include <string>
#include <vector>

#include "lockstep/base/yaml.h"
#include "lockstep/tune/space/domain.h"

namespace lockstep::tune {

struct WrittenExpression {
  std::string text;
  SourcePlace place;
};

struct SpaceText {
  std::string name;
  std::string description;
  std::vector<Knob> knobs;
  std::vector<SourcePlace> knob_places;  // by knob
  std::vector<SourcePlace> when_places;  // by knob
  std::vector<WrittenExpression> constraints;
  NcclFacts facts;
  bool nccl_rules = true;
};

// The keys of a space file.
const std::vector<std::string>& space_file_keys();

// Throws UserError (exit 2) with file:line:column. `strict`: other keys are errors.
SpaceText read_space_text(const YamlNode& node, const NcclFacts& facts, bool strict);

// Where the text of an expression begins.
SourcePlace expression_place(const YamlNode& node);

}  // namespace lockstep::tune
