// What a person sees of a run: one live line on a terminal, plain lines elsewhere, messages that do not tear it.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::telemetry {

// Fields that are not set are not shown.
struct ProgressSample {
  std::int64_t step = 0;         // done
  std::int64_t steps_total = 0;  // 0: unknown
  std::optional<double> loss;
  std::optional<double> per_second;  // tokens or samples of the whole job
  std::string unit = "tokens";       // of per_second: "tokens", "samples"
  std::optional<double> efficiency;  // 0..1, or `mfu` instead
  std::optional<double> mfu;         // 0..1
  std::optional<double> gradient_norm;
  std::optional<double> memory_bytes;
  std::optional<double> eta_seconds;
  std::optional<double> learning_rate;
};

// How text may be drawn.
struct TerminalStyle {
  int width = 80;       // columns
  bool colour = false;  // SGR colours
  bool unicode = true;  // characters beyond ASCII
  bool live = false;    // rewrite one line in place
};

// What `stream` is: a terminal (colour unless NO_COLOR is set or TERM is "dumb") or something else. $COLUMNS wins.
// Unicode where the locale's name says UTF-8.
TerminalStyle detect_style(std::FILE* stream);

// Thread-safe. Writes to the stream it was given and never closes it; a stream that cannot be written is ignored.
class ProgressRenderer {
 public:
  struct Options {
    std::optional<TerminalStyle> style;   // unset: detect_style(stream)
    double live_interval_seconds = 0.1;   // at most one repaint per interval
    double plain_interval_seconds = 5.0;  // at most one plain line per interval; the last step is always shown
    std::string title;                    // shown first on the line: the run or job
  };
  explicit ProgressRenderer(std::FILE* stream) : ProgressRenderer(stream, Options()) {}
  ProgressRenderer(std::FILE* stream, Options options);
  ~ProgressRenderer();  // finish()
  ProgressRenderer(const ProgressRenderer&) = delete;
  ProgressRenderer& operator=(const ProgressRenderer&) = delete;

  void update(const ProgressSample& sample);
  // A line of its own above the live line.
  void message(const std::string& text);
  // Leaves the line as it last stood and moves below it. update() after it begins a new line.
  void finish();
  // finish(), then a table of "name  value" rows under `title`.
  void summary(const std::string& title, const std::vector<std::pair<std::string, std::string>>& rows);

 private:
  void paint(const ProgressSample& sample);
  void erase();

  std::mutex mutex_;
  std::FILE* stream_;
  Options options_;
  TerminalStyle style_;
  std::optional<ProgressSample> pending_;  // newest sample not shown yet
  std::optional<ProgressSample> shown_;    // what stands on the live line
  bool on_line_ = false;
  double last_paint_ = -1.0;
};

// The sample as one line of at most `width` columns: less important fields are left out first.
std::string format_progress(const ProgressSample& sample, int width, bool colour, const std::string& title = {});

// Columns a string takes on a terminal (UTF-8, without colour codes).
int display_width(const std::string& text);

}  // namespace lockstep::telemetry
