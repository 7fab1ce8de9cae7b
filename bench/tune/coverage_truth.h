// What a study's conclusions are held against: the surface itself, by enumeration, and the rule that says when a list
// of the three dearest knobs is right.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "bench/tune/surfaces.h"
#include "lockstep/tune/study/conclusion.h"

namespace lockstep::bench {

// Percent of the variance of log throughput over the configurations that obey the rules and run, each counted once.
// main: Var(E[f | knob]) / Var(f). total: E[Var(f | all other knobs)] / Var(f), at least main (of knobs that rules tie
// to others it would be less). "Inactive" is a value like any other.
struct VarianceTruth {
  std::vector<double> main;
  std::vector<double> total;
};
VarianceTruth variance_truth(const Surface& surface);

// By knob, in percent of the winner's throughput: 0 for knobs at their default or inactive, 100 where the set-back does
// not run. May be negative: the winner is not the optimum.
std::map<std::string, double> set_back_truth(const Surface& surface, const tune::Space& space,
                                             const tune::Config& winner);

// The true three dearest are the three largest costs (with an equal cost at the end either will do; knobs that cost
// exactly nothing may be left out). Without a tie `top` must be these. With one, top and tied have at most four knobs
// together, the three are among them, all of top belong to the three, and the costs of the tied differ by less than a
// point.
enum class Verdict { kRight, kRightByTie, kWrongSet, kWrongTie };
Verdict judge_top(const std::map<std::string, double>& truth, const tune::Conclusion& conclusion);

}  // namespace lockstep::bench
