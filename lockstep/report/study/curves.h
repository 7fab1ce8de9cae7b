// What a study's trials say about each knob and about the leader, as numbers to draw. Computed with the tuner's own
// speed model, fitted to all trials.
#pragma once

#include <string>
#include <vector>

#include "lockstep/report/canvas/chart.h"
#include "lockstep/report/recipe/recipe.h"

namespace lockstep::report {

// A knob as an axis from 0 to 1.
struct KnobAxis {
  std::size_t knob = 0;
  std::string name;
  bool ordered = true;
  std::vector<Tick> ticks;  // values where there are few, round ones where there are many
};
KnobAxis knob_axis(const tune::Space& space, std::size_t knob);
// Where each knob of `config` is on its axis; NaN for inactive ones.
std::vector<double> axis_shares(const tune::Space& space, const tune::Config& config);

// Throughput against one knob, the others as in the best setting (or moved as constraints force), in percent of the
// best. 95% bands of the model.
struct KnobCurve {
  KnobAxis axis;
  struct Level {
    double share = 0;
    std::string value;
    double percent = 0, low = 0, high = 0;
  };
  std::vector<Level> levels;  // valid ones
  double best_share = 0;
  struct Seen {
    double share = 0, percent = 0;
    std::int64_t trial = 0;
  };
  std::vector<Seen> seen;  // trials that ran, whatever their other knobs
};
// By the order of importance; knobs that are inactive in the best setting are omitted. Empty when too little ran.
std::vector<KnobCurve> knob_curves(const StudyView& study);

// The configuration that led after each trial, as the model of all trials sees it now.
struct Leader {
  std::int64_t trial = 0;
  double estimate = 0, low = 0, high = 0;
};
std::vector<Leader> leaders_over_time(const StudyView& study);

// The two knobs that best separate failures from trials that ran (mutual information), strongest first; empty without
// failures.
std::vector<std::size_t> knobs_of_failure(const StudyView& study);

}  // namespace lockstep::report
