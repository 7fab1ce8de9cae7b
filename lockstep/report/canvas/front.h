// The top of a page: title, badge, warnings and cards with the figures that matter most; as markup and drawn.
#pragma once

#include <string>
#include <vector>

#include "lockstep/report/canvas/canvas.h"

namespace lockstep::report {

struct Card {
  std::string label, figure;
  std::vector<std::string> details;  // "" are left out
  bool strong = false;
};

struct Front {
  std::string title, badge, subtitle;
  bool sure = true;  // the badge in the colour of what one can rely on
  std::vector<std::string> warnings;
  std::vector<Card> cards;  // three in a row
};

std::string markup_front(const Front& front);
// From the top of the page; returns where it ends.
double draw_front(Canvas& canvas, const Front& front, Position top_left, double width);

}  // namespace lockstep::report
