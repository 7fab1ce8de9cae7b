// LabSurface: a surface of the laboratory. What it adds to Surface: memory of the host beside the device's, trials that
// run out of time, programs that refuse a combination without any rule that says so, messages as real programs print
// them, defaults that are told for even instances alone, and a truth for spaces too large to enumerate.
//
// The families are split by mechanism and before any result was seen: dev_* for work on the tuner, final_* for the
// figure that is reported. docs: bench/tune/README.md.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bench/tune/surface.h"

namespace lockstep::bench {

class LabSurface : public Surface {
 public:
  LabSurface(std::string kind, int instance);
  using Surface::at;
  SurfaceTruth at(PointView levels) const override;

 protected:
  struct Load {
    double step_seconds = 1;  // per unit of useful work, so throughput is 1 over it
    double wall_seconds = 0;  // of what is timed as one sample; 0: step_seconds
    double device = 0;        // memory, in units of the surface's own
    double host = 0;
    std::string refused = {};  // what the program says instead of running; "": it runs
  };
  virtual Load load(PointView levels) const = 0;

  // For constructors, last. Shares of the combinations that the program accepts which need more memory than there is;
  // the default runs. Sets the scale of throughput and the time after which a trial is given up.
  void fit(double device_share, double host_share);

  // The value of an active numeric knob; 0 where it is inactive.
  double number(PointView levels, int knob) const;
  bool on(PointView levels, int knob) const { return levels[static_cast<std::size_t>(knob)] == 1; }
  int level(PointView levels, int knob) const { return levels[static_cast<std::size_t>(knob)]; }

 private:
  Prediction predict(PointView levels, bool as_believed) const final;
  double device_capacity_ = 1e300;
  double host_capacity_ = 1e300;
  double throughput_scale_ = 1;
  double sample_scale_ = 1;
};

// Knobs, short to write.
SurfaceKnob choices_knob(std::string name, std::vector<tune::Value> levels, int default_level = 0);
SurfaceKnob int_knob(std::string name, std::int64_t low, std::int64_t high, std::int64_t default_value);
SurfaceKnob log_int_knob(std::string name, std::int64_t low, std::int64_t high, std::int64_t default_value);
// The knob exists only where the parent has one of these levels; `when` says so in the space file.
SurfaceKnob only_when(SurfaceKnob knob, std::string when, int parent, std::vector<int> parent_levels);
std::vector<int> levels_from(int first, int count);

// The best of a surface: by trying everything up to two million combinations, else by many ascents over single and
// paired changes. Deterministic.
struct SurfaceOptimum {
  double throughput = 0;
  Point point;
  bool enumerated = false;
};
SurfaceOptimum find_optimum(const Surface& surface);

}  // namespace lockstep::bench
