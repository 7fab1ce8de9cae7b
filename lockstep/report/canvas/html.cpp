#include "lockstep/report/canvas/html.h"

#include <fmt/format.h>

#include "lockstep/report/canvas/svg_canvas.h"

namespace lockstep::report {
namespace {

// Sizes are in em of the body's, so that printing can shrink everything at once.
constexpr const char* kStyle = R"css(
:root{color-scheme:light dark;--paper:#fff;--text:#1c2026;--muted:#5f6770;--grid:#dee2e6;--shade:#f5f7f9;
--strong:#e8ecf0;--accent:#0063a0;--second:#c85a00;--soft:#fdf0e4}
@media screen and (prefers-color-scheme:dark){:root{--paper:#16181c;--text:#e8eaed;--muted:#9aa2ab;--grid:#34393f;
--shade:#1f2227;--strong:#2a2e34;--accent:#56b4e9;--second:#f09646;--soft:#3a2a1c}}
*{box-sizing:border-box}
body{margin:0 auto;padding:1.6em;max-width:64em;font:15px/1.38 Helvetica,Arial,'Liberation Sans',sans-serif;
background:var(--paper);color:var(--text)}
header{display:flex;align-items:center;justify-content:space-between;gap:1em}
h1{font-size:1.7em;margin:0;overflow-wrap:anywhere}
h2{font-size:1.12em;margin:0 0 .35em;padding-bottom:.15em;color:var(--accent);border-bottom:1px solid var(--grid)}
section{margin:0 0 1em;min-width:0}
p{margin:.25em 0}p.strong{font-weight:bold;margin:.7em 0 0}.muted,footer,.detail,.label{color:var(--muted)}footer{margin-top:.6em;font-size:.85em}
.badge{background:var(--accent);color:var(--paper);font-weight:bold;font-size:.85em;padding:.25em .7em;
border-radius:.3em}.badge.unsure{background:var(--second)}
.warning{background:var(--soft);border:1px solid var(--second);border-radius:.3em;padding:.35em .7em;font-weight:bold}
.cards{display:grid;grid-template-columns:repeat(3,1fr);gap:.7em;margin:.8em 0 1em}
.card{background:var(--shade);border-radius:.4em;padding:.6em .8em;min-width:0;overflow-wrap:anywhere}
.card .figure{font-size:1.75em;font-weight:bold;line-height:1.25}.card .detail,.card .label{font-size:.88em}
.card.strong{background:var(--accent);color:var(--paper)}.card.strong div{color:var(--paper)}
.columns{display:grid;grid-template-columns:57.5fr 42.5fr;gap:1.6em}.columns>div{min-width:0}
table{border-collapse:collapse;width:100%;font-size:.95em}th{text-align:left;background:var(--strong);color:var(--muted)}
td,th{padding:.22em .45em;border-bottom:1px solid var(--grid);overflow-wrap:anywhere;vertical-align:top}
td.best{font-weight:bold}td.n,th.n{text-align:right;white-space:nowrap}
pre{background:var(--shade);border:1px solid var(--grid);border-radius:.3em;margin:.4em 0;padding:.5em .6em;
white-space:pre-wrap;overflow-wrap:anywhere;font:.85em/1.35 'Courier New',Courier,'Liberation Mono',monospace}
ul,ol{margin:.25em 0;padding-left:1.3em}li{margin:.15em 0;overflow-wrap:anywhere}li::marker{color:var(--accent)}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.1em .8em;margin:.25em 0}dt{color:var(--muted)}
dd{margin:0;overflow-wrap:anywhere}
figure{margin:0 0 1.8em}figure svg.ls{width:100%}figcaption{color:var(--muted);font-size:.92em;margin-top:.4em;max-width:60em}
.plots{border-top:1px solid var(--grid);margin-top:1.6em;padding-top:1.2em}
.pair{display:grid;grid-template-columns:1fr 1fr;gap:0 1.6em}.wide{overflow-x:auto}
.wide td,.wide th{overflow-wrap:break-word}
@media(max-width:46em){.columns,.cards,.pair{grid-template-columns:1fr}}
)css";

constexpr double kPrintPoints = 7.9;

}  // namespace

std::string html_page(const std::string& title, const std::string& body, double print_scale) {
  const std::string print = fmt::format(
      "@page{{size:A4;margin:11mm}}@media print{{body{{font-size:{:.2f}pt;line-height:1.27;padding:0;max-width:none}}"
      ".cards{{grid-template-columns:repeat(3,1fr)}}.columns{{grid-template-columns:57.5fr 42.5fr;gap:1.4em}}"
      ".pair{{grid-template-columns:1fr 1fr}}section{{margin-bottom:.7em}}h2{{break-after:avoid}}"
      "figure,tr,.card{{break-inside:avoid}}"
      "*{{-webkit-print-color-adjust:exact;print-color-adjust:exact}}}}",
      kPrintPoints * print_scale);
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
      "<title>{}</title>\n<style>{}{}\n{}</style></head>\n<body>\n{}</body></html>\n",
      escape_markup(title), kStyle, drawing_style(), print, body);
}

}  // namespace lockstep::report
