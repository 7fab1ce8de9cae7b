#include "lockstep/report/study/page.h"

#include <fmt/format.h>

#include "lockstep/report/canvas/html.h"
#include "lockstep/report/canvas/svg_canvas.h"
#include "lockstep/report/study/plots.h"

namespace lockstep::report {

std::string study_page(const Recipe& recipe, const StudyView& study) {
  std::string body = recipe_body(recipe, study);
  body += "<div class=\"plots\">\n";
  for (const StudyPlot& plot : study_plots(study)) {
    SvgCanvas canvas(plot.width, plot.height);
    plot.draw(canvas);
    body += fmt::format("<figure id=\"{}\"><h2>{}</h2>\n{}\n<figcaption>{}</figcaption></figure>\n", plot.name,
                        escape_markup(plot.title), canvas.inline_svg(plot.title), escape_markup(plot.caption));
  }
  body += "</div>\n";
  return html_page(fmt::format("Study: {}", recipe.name), body, 1.0);
}

}  // namespace lockstep::report
