// The accuracy report: the same figures as a terminal page, Markdown and HTML.
#pragma once

#include <string>
#include <vector>

#include "lockstep/report/terminal/draw.h"
#include "validation/accuracy.h"

namespace lockstep::validation {

struct Target {
  std::string what;
  double reached = 0;
  double least = 0;  // the claim holds where least <= reached <= most
  double most = 0;
  bool percent = true;
  bool holds() const { return reached >= least && reached <= most; }
};

struct AccuracyReport {
  std::string method;                   // how the predictions were made: folds, constants, date
  std::vector<Scored> rates;            // runs whose throughput is scored
  std::vector<Scored> grid;             // the grid with its failures: memory, fits, ranking
  std::vector<HeldOutColumn> left_out;  // what a new user's first predictions are like
  std::vector<std::string> remarks;     // what is not reached, and why
};

// The claims of docs/reference/accuracy.md against what was reached.
std::vector<Target> targets_of(const AccuracyReport& report);

// Terminal: targets, then errors by source, hardware, scale and binding term, then the grid's groups.
std::string to_text(const AccuracyReport& report, const telemetry::TerminalStyle& style);

// `picture` is the file name the Markdown refers to; "": none.
std::string to_markdown(const AccuracyReport& report, const std::string& picture);
// One file, pictures inside.
std::string to_html(const AccuracyReport& report);

// Predicted against measured tokens/s/GPU, a colour per source; and memory of the grid, a colour per model.
std::string rate_picture(const AccuracyReport& report);
std::string memory_picture(const AccuracyReport& report);

}  // namespace lockstep::validation
