// Components: knobs that constraints and `when` tie together. What is valid in one says nothing about another, so each
// is listed, drawn from and repaired alone.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "lockstep/tune/space/domain.h"

namespace lockstep::tune {

struct SpaceParts {
  std::vector<Domain> domains;                   // by knob
  std::vector<std::optional<Expression>> whens;  // by knob
  std::vector<Expression> constraints;
};

struct Component {
  std::vector<std::size_t> members;      // knobs; the ones a `when` names stand before its knob
  std::vector<std::size_t> constraints;  // indices into SpaceParts::constraints
  bool tied = false;                     // false: one knob, always active, free to take any value
  bool listed = false;                   // `combinations` holds all valid ones
  bool has_reals = false;
  bool rejection = false;                           // not listed: drawing until a draw is valid is quick
  std::size_t count = 0;                            // combinations
  std::vector<std::int32_t> combinations;           // [count, members]; -1: inactive
  std::vector<double> cumulative;                   // of their weights; empty: all weigh the same
  std::vector<std::vector<std::int32_t>> possible;  // by member: levels that occur, ascending

  std::span<const std::int32_t> combination(std::size_t index) const {
    return std::span(combinations).subspan(index * members.size(), members.size());
  }
};

inline constexpr std::size_t kMostCombinations = 2'000'000;

struct ActivityOrder {
  std::vector<std::size_t> knobs;    // those named by a `when` come before its knob
  std::optional<std::size_t> cycle;  // a knob whose activity depends on itself
};
ActivityOrder order_by_activity(const std::vector<std::optional<Expression>>& whens);
std::vector<Component> find_components(const SpaceParts& parts, const std::vector<std::size_t>& order);
// What reading a file may cost, all components together: a hostile one must end too.
struct SpaceBudget {
  std::uint64_t nodes = 40'000'000;  // of expressions evaluated, half a second
  std::uint64_t cells = 24'000'000;  // of combinations kept
};
// Fills combinations where there are no reals and not too many of them.
void list_combinations(const SpaceParts& parts, Component& component, SpaceBudget& budget);

// `cells` by knob: are the activity and the constraints of this component as they should be?
bool holds(const SpaceParts& parts, const Component& component, std::span<const double> cells);

// Visits the valid combinations within a box, in the order of the levels; halves the box and skips what no constraint
// can accept, so that `a * b * c == 64` costs little more than its solutions.
class BoxSearch {
 public:
  struct Interval {
    double first = 0;
    double last = 0;
  };
  // The visitor gets cells by member and returns false to stop.
  using Visitor = std::function<bool(std::span<const double>)>;

  // `parts` and `component` outlive the search.
  BoxSearch(const SpaceParts& parts, const Component& component);

  // Takes the halves in random order: the first combination visited is a random one.
  void shuffle(Random& random) { random_ = &random; }
  // Takes the half nearer to these cells (by knob) first: the first combination visited is a near one.
  void prefer(std::span<const double> cells) { preferred_ = cells; }

  // `box` by member. Returns false when `budget` (constraints evaluated) was spent before the end.
  bool run(std::span<const Interval> box, std::uint64_t budget, const Visitor& visit);
  std::uint64_t spent() const { return total_ - budget_; }  // by the last run
  // Limits to the first `count` constraints of the component.
  void use_constraints(std::size_t count) { used_ = count; }

  std::vector<Interval> whole_box() const;

 private:
  void visit_member(std::size_t index);
  void visit_interval(std::size_t index, Interval interval);
  bool can_hold(std::size_t index);
  void put(std::size_t index, double cell);

  const SpaceParts& parts_;
  const Component& component_;
  Random* random_ = nullptr;
  std::span<const double> preferred_;
  std::vector<std::vector<std::size_t>> constraints_of_;  // by member: those that name it
  std::size_t used_;
  std::vector<Interval> box_;
  std::vector<CodeRange> ranges_;  // by knob
  std::vector<double> codes_;      // by knob
  std::vector<double> cells_;      // by member
  const Visitor* visit_ = nullptr;
  std::uint64_t budget_ = 0;
  std::uint64_t total_ = 0;
  bool stopped_ = false;
  bool spent_ = false;
};

}  // namespace lockstep::tune
