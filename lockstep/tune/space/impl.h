// What a Space holds. Everything is computed while reading; afterwards it is only read.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "lockstep/tune/space/components.h"
#include "lockstep/tune/space/reader.h"

namespace lockstep::tune {

struct Space::Impl {
  std::string name;
  std::string description;
  std::vector<Knob> knobs;
  std::map<std::string, std::size_t> index;  // of knobs, by name
  NcclFacts facts;
  bool nccl_rules = true;
  std::vector<std::string> constraints;  // the user's, then NCCL's
  std::size_t written_constraints = 0;   // the user's
  SpaceParts parts;
  std::vector<std::size_t> order;  // parents of `when` first
  std::vector<Component> components;
  Config default_config;
  std::vector<double> default_cells;

  // space_builder.cpp. Throws UserError (exit 2) for expressions that are wrong, cycles and impossible constraints.
  static std::shared_ptr<const Impl> build(const SpaceText& text);

  // Cells by knob; NaN for inactive knobs and for values that the knob does not have.
  std::vector<double> cells_of(const Config& config) const;
  Config config_of(std::span<const double> cells) const;
  // Is the knob active, going by the cells of the knobs its `when` names?
  bool is_active(std::size_t knob, std::span<const double> codes) const {
    return !parts.whens[knob] || parts.whens[knob]->truth(codes) == Truth::kTrue;
  }

  // space_sample.cpp
  void draw(const Component& component, Random& random, std::span<double> cells) const;
  void draw_freely(std::span<const std::size_t> members, Random& random, std::span<double> cells) const;
  // Does drawing until it fits work well enough for a component that is not listed?
  bool rejection_works(const Component& component) const;

  // space_moves.cpp
  void find_default_config();  // components are ready
  // The valid cells of the component that have `cell` at `member` and differ least from `cells`: fewest other knobs,
  // then nearest. `effort` bounds the search where combinations are not listed.
  bool move(const Component& component, std::size_t member, double cell, std::span<double> cells,
            std::uint64_t effort) const;
};

}  // namespace lockstep::tune
