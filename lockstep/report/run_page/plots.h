// Drawings of a run, for HTML and PDF alike. Pure: each draws into the box it is given.
#pragma once

#include <string>
#include <vector>

#include "lockstep/report/canvas/canvas.h"
#include "lockstep/report/goodput.h"
#include "lockstep/report/incidents.h"
#include "lockstep/report/memory_terms.h"
#include "lockstep/report/waterfall.h"

namespace lockstep::report {

// What ranks did over the steps: one row per rank, one column per so many steps.
struct HeatMap {
  std::string what;                         // "busy seconds per step"
  std::vector<int> ranks;                   // of the rows
  std::vector<std::int64_t> steps;          // first of each column
  std::vector<std::vector<double>> values;  // [rank][column]; NaN: not recorded
};

struct CurveStyle {
  std::string title, unit;
  double scale = 1.0;   // values are multiplied by it: 100 for percent
  plan::Interval band;  // predicted; all zero: none
  bool from_zero = false;
};

double waterfall_height(const Waterfall& waterfall);
void draw_waterfall(Canvas& canvas, const Box& box, const Waterfall& waterfall);
void draw_curve(Canvas& canvas, const Box& box, const std::vector<telemetry::Point>& points,
                const std::vector<telemetry::Point>& second, const CurveStyle& style);
double memory_height(const MemoryTerms& memory);
void draw_memory(Canvas& canvas, const Box& box, const MemoryTerms& memory);
double heat_height(const HeatMap& heat);
void draw_heat(Canvas& canvas, const Box& box, const HeatMap& heat);
inline constexpr double kTimeLineHeight = 58;
void draw_time_line(Canvas& canvas, const Box& box, const Goodput& goodput, const Incidents& incidents, double started);

}  // namespace lockstep::report
