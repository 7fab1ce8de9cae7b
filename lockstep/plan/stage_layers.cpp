#include "lockstep/plan/stage_layers.h"

#include <algorithm>
#include <limits>

#include "lockstep/base/error.h"
#include "lockstep/plan/pipeline_schedule.h"

namespace lockstep::plan {
namespace {

// Where a position may begin: the first unit, and those that one tensor enters.
std::vector<std::size_t> places_to_cut(const spec::ScriptFacts& facts) {
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < facts.units.size(); ++i) {
    if (i == 0 || !facts.units[i].entering.empty()) places.push_back(i);
  }
  return places;
}

// Units of `positions` consecutive parts whose most expensive one costs the least. By dynamic programming:
// least[p][i] is that cost for the units before place i in p parts.
std::vector<std::int64_t> balanced_units(const spec::ScriptFacts& facts, std::size_t positions) {
  std::vector<std::size_t> places = places_to_cut(facts);
  LOCKSTEP_ASSERT(positions <= places.size(), "more stages than places to cut");
  places.push_back(facts.units.size());
  std::vector<double> before(facts.units.size() + 1, 0.0);  // cost of the units before one
  for (std::size_t i = 0; i < facts.units.size(); ++i) {
    // A unit without weights or time still takes its turn.
    before[i + 1] = before[i] + facts.units[i].share + 1e-9 * static_cast<double>(1 + facts.units[i].parameters);
  }
  const std::size_t ends = places.size();
  std::vector least(positions + 1, std::vector<double>(ends, std::numeric_limits<double>::infinity()));
  std::vector from(positions + 1, std::vector<std::size_t>(ends, 0));
  least[0][0] = 0.0;
  for (std::size_t part = 1; part <= positions; ++part) {
    for (std::size_t end = 1; end < ends; ++end) {
      for (std::size_t begin = 0; begin < end; ++begin) {
        const double cost = std::max(least[part - 1][begin], before[places[end]] - before[places[begin]]);
        if (cost >= least[part][end]) continue;
        least[part][end] = cost;
        from[part][end] = begin;
      }
    }
  }
  std::vector<std::int64_t> units(positions);
  for (std::size_t part = positions, end = ends - 1; part > 0; --part) {
    const std::size_t begin = from[part][end];
    units[part - 1] = static_cast<std::int64_t>(places[end] - places[begin]);
    end = begin;
  }
  return units;
}

}  // namespace

std::int64_t most_positions(const spec::ScriptFacts& facts) {
  return static_cast<std::int64_t>(places_to_cut(facts).size());
}

std::vector<std::int64_t> layers_by_position(const Layout& layout, const spec::Model& model) {
  if (!model.is_scripted()) return layers_by_position(layout, model.layers);
  if (!layout.stage_layers.empty()) return layout.stage_layers;
  if (layout.pp == 1) return {static_cast<std::int64_t>(model.script.facts.units.size())};
  return balanced_units(model.script.facts, static_cast<std::size_t>(layout.pp * layout.virtual_stages));
}

std::vector<std::int64_t> layers_by_position(const Layout& layout, std::int64_t layers) {
  std::vector<std::int64_t> result;
  for (std::int64_t i = 0; i < layout.pp * layout.virtual_stages; ++i) result.push_back(layers_at(layout, layers, i));
  return result;
}

}  // namespace lockstep::plan
