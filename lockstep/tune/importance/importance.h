// Importance: what it costs to revert each knob from the best, and what share of the variance over the space it
// explains. Two questions, two answers. The method and its definitions are in docs/reference/tuning-statistics.md.
//
// Everything here is a pure function of its arguments: the same trials give the same figures.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/tune/models/acquisition.h"
#include "lockstep/tune/models/statistics.h"
#include "lockstep/tune/models/surrogate.h"
#include "lockstep/tune/study/conclusion.h"

namespace lockstep::tune {

// Draws from a posterior over a few points: [draw][point].
struct Draws {
  std::size_t points = 0;
  std::vector<double> values;
  std::size_t count() const { return points == 0 ? 0 : values.size() / points; }
  std::span<const double> operator[](std::size_t draw) const {
    return std::span<const double>(values).subspan(draw * points, points);
  }
  Estimate estimate(std::size_t point) const;  // mean and the middle 95%
};

// Posterior of log throughput at a few points: what the search data say (`model`, from trials before the choice;
// nullptr: nothing) combined with fresh launches at the same points (`log_launches[point]`, may be empty). The model is
// believed as far as the fresh launches agree with it: each point may deviate from it by an own amount, of a size that
// is learned too. The launch spread is as uncertain as its degrees of freedom say.
Draws posterior_draws(const Surrogate::Joint* model, std::span<const std::vector<double>> log_launches,
                      const PooledSpread& spread, std::size_t draws, std::uint64_t seed);

// Which knobs are the three most costly to revert, from draws of their costs in percent; `free_knobs` others cost
// exactly nothing (they are at their default). An answer without a tie is right when it has the three most costly,
// where knobs that cost nothing need not be named; one with a tie has four knobs, `top` and `tied`, and is right when
// the three most costly are among them, all of `top` included, and the tied ones lie within kTiePoints. The answer most
// probably right is given; of two about equally probable ones that without a tie.
struct TopKnobs {
  std::vector<std::size_t> top;   // highest cost first
  std::vector<std::size_t> tied;  // none, or 4 - top.size()
  double probability = 0;         // that it is right
};
inline constexpr double kTiePoints = 1.0;
TopKnobs choose_top(const Draws& costs, std::size_t free_knobs = 0);

// The spread between launches of one configuration that the trials show. Launches that a search chose because they
// were fast are excluded, and so are those stopped early.
PooledSpread launch_spread(std::span<const Trial> history);

// The winner with one knob back at its default.
struct SetBack {
  std::size_t knob = 0;
  Config config;
  std::vector<std::string> moved_along;
  std::vector<double> log_launches;  // fresh ones
  bool fails = false;                // it was launched, and never ran
};

// One for each active knob of `winner` that is not at its default and can go back, in the order of the space; knobs
// that constraints tie together, so that they go back at once, have one between them.
std::vector<SetBack> set_backs(const Space& space, const Config& winner, std::span<const Trial> history);

struct SetBackCosts {
  std::vector<SetBack> set_backs;
  Draws percent;  // [draw][revert]: 100 for those that fail
};
SetBackCosts set_back_costs(const Beliefs& search, const Config& winner, std::span<const Trial> history,
                            std::size_t draws);

// The revert whose next launch does most to find the three most costly: of those near third place the one that is known
// least. nullopt when none is worth launching, as when the three are known. `search` are the beliefs from before
// the choice.
std::optional<SetBack> next_set_back(const Beliefs& search, const Config& winner, std::span<const Trial> history,
                                     std::span<const Trial> pending);

// Functional analysis of variance of log throughput, uniform over the configurations that are valid and run.
struct VarianceShares {
  std::vector<Estimate> main;   // by knob, percent
  std::vector<Estimate> total;  // by knob, percent
  std::vector<Interaction> interactions;
};
// `beliefs` from all trials of `history`. The search looks closely at little of the space: levels of knobs that it
// never measured make the upper ends of the intervals high, and what the model only allows for does not lift the lower
// ends.
VarianceShares variance_shares(const Beliefs& beliefs, std::span<const Trial> history, std::uint64_t seed);

}  // namespace lockstep::tune
