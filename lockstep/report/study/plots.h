// The plots of a study.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lockstep/report/canvas/canvas.h"
#include "lockstep/report/recipe/recipe.h"

namespace lockstep::report {

struct StudyPlot {
  std::string name;  // of a file: "convergence"
  std::string title;
  std::string caption;  // how to read it
  double width = 0, height = 0;
  std::function<void(Canvas&)> draw;  // uses the study it was made from
};

// The front where there are several objectives, convergence, effect of each knob, importance (two panels, two
// questions), parallel coordinates, cost against throughput, and where trials failed when some did. Plots that a study
// has no data for are omitted. `study` outlives them.
std::vector<StudyPlot> study_plots(const StudyView& study);

// The first of them on a page of another size. The study has at least one trial.
void draw_convergence_in(Canvas& canvas, const Box& box, const StudyView& study);

StudyPlot convergence_plot(const StudyView& study);
StudyPlot front_plot(const StudyView& study);  // of the first two objectives
StudyPlot effects_plot(const StudyView& study);
StudyPlot importance_plot(const StudyView& study);
StudyPlot parallel_plot(const StudyView& study);
StudyPlot cost_plot(const StudyView& study);
StudyPlot failure_plot(const StudyView& study);

}  // namespace lockstep::report
