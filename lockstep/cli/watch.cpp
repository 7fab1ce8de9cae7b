// `lockstep watch [RUN]`: a run while it goes on, in the terminal.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/cli/screen.h"
#include "lockstep/cli/signals.h"
#include "lockstep/cli/verbs.h"
#include "lockstep/report/watch/frame.h"
#include "lockstep/telemetry/progress.h"
#include "lockstep/telemetry/recorder.h"

namespace lockstep::cli {
namespace {

using report::WatchTab;

constexpr double kLookForKeys = 0.25;  // seconds; a terminal that is resized is noticed as fast
constexpr double kLeastEvery = 0.1;

struct WatchOptions {
  std::string run = "last";
  std::string tab = "overview";
  std::string every = "1s";
  bool once = false, json = false;
};

// The newest view; of a store that cannot be read for a moment, the one before.
class Watched {
 public:
  Watched(const WatchOptions& options, double every)
      : store_(telemetry::open_run_store(telemetry::home_directory())), run_(options.run), every_(every) {}

  // The first time it throws when there is no such run.
  const report::WatchView& view(int columns) {
    const double now = monotonic_seconds();
    if (view_ && now < next_) return *view_;
    try {
      view_ = report::read_watch_view(*store_, run_, static_cast<std::size_t>(std::clamp(2 * columns, 40, 1000)));
    } catch (const UserError&) {
      if (!view_) throw;
    }
    // A store that is slow to read is read less often: watching takes a tenth of a core at most.
    const double took = monotonic_seconds() - now;
    next_ = now + std::max(every_, 10.0 * took);
    return *view_;
  }

 private:
  std::unique_ptr<telemetry::RunStore> store_;
  std::string run_;
  double every_;
  std::optional<report::WatchView> view_;
  double next_ = 0.0;  // when it is read again
};

WatchTab tab_named(const std::string& name) {
  for (int i = 0; i < report::kWatchTabs; ++i) {
    const auto tab = static_cast<WatchTab>(i);
    if (name == to_string(tab) || name == std::to_string(i + 1)) return tab;
  }
  std::vector<std::string> names;
  names.reserve(report::kWatchTabs);
  for (int i = 0; i < report::kWatchTabs; ++i) names.emplace_back(to_string(static_cast<WatchTab>(i)));
  throw bad_input("there is no page '" + printable(name) + "'", did_you_mean(name, names));
}

int watch_screen(Watched& watched, WatchTab tab) {
  count_stop_signals(SecondSignal::kExits);
  survive_closed_pipes();
  telemetry::TerminalStyle style = telemetry::detect_style(stdout);
  watched.view(style.width);  // an error is printed on the ordinary screen
  Screen screen;
  int scroll = 0;
  while (stop_signals() == 0) {
    const report::ScreenSize size = Screen::size();
    screen.paint(report::watch_frame(watched.view(size.columns), tab, size, style, scroll), size);
    const KeyPress pressed = screen.wait_for_key(kLookForKeys);
    const int now = static_cast<int>(tab);
    switch (pressed.key) {
      case Key::kQuit:
        return 0;
      case Key::kDigit:
        if (pressed.digit <= report::kWatchTabs) tab = static_cast<WatchTab>(pressed.digit - 1), scroll = 0;
        break;
      case Key::kLeft:
        tab = static_cast<WatchTab>((now + report::kWatchTabs - 1) % report::kWatchTabs), scroll = 0;
        break;
      case Key::kRight:
        tab = static_cast<WatchTab>((now + 1) % report::kWatchTabs), scroll = 0;
        break;
      case Key::kUp:
        scroll = std::max(0, scroll - 1);
        break;
      case Key::kDown:
        ++scroll;
        break;
      case Key::kNone:
        break;
    }
  }
  return 0;
}

// Where stdout is no terminal: a line when there is something new, until the run ends.
int watch_lines(Watched& watched, const WatchOptions& options, double every) {
  count_stop_signals(SecondSignal::kExits);
  survive_closed_pipes();
  const telemetry::TerminalStyle style = telemetry::detect_style(stdout);
  std::string run;
  std::int64_t step = -1;
  std::size_t incidents = 0;
  while (stop_signals() == 0 && !nobody_reads_stdout()) {
    const report::WatchView& view = watched.view(style.width);
    const bool over = !view.facts.runs();
    const std::size_t known = view.incidents.incidents.size();
    if (run != view.facts.run.info.id) run = view.facts.run.info.id, step = -1, incidents = 0;
    if (view.facts.last_step != step || known != incidents || over) {
      for (; incidents < known && !options.json; ++incidents) {
        const report::Incident& incident = view.incidents.incidents[incidents];
        fmt::print("{}: {}\n", to_string(incident.kind), printable(incident.what, 400));
      }
      incidents = known;
      step = view.facts.last_step;
      if (options.json) {
        fmt::print("{}\n", report::to_json(view).dump());
      } else {
        fmt::print("{}\n",
                   telemetry::format_progress(view.now, std::max(style.width, 120), false, view.facts.run.info.name));
      }
      std::fflush(stdout);
    }
    if (over) {
      if (!options.json) fmt::print("{}\n", telemetry::to_string(view.facts.run.status));
      break;
    }
    std::this_thread::sleep_for(std::chrono::duration<double>(every));
  }
  return 0;
}

int watch(const WatchOptions& options) {
  const double every = std::max(kLeastEvery, parse_seconds(options.every));
  const WatchTab tab = tab_named(options.tab);
  Watched watched(options, every);
  const telemetry::TerminalStyle style = telemetry::detect_style(stdout);
  if (options.once) {
    const report::WatchView& view = watched.view(style.width);
    report::ScreenSize size = Screen::size();
    size.columns = style.width;
    if (options.json) {
      fmt::print("{}\n", report::to_json(view).dump());
    } else {
      fmt::print("{}", report::watch_page(view, tab, size, style));
    }
    return 0;
  }
  if (options.json || !style.live) return watch_lines(watched, options, every);
  return watch_screen(watched, tab);
}

}  // namespace

void add_watch(CLI::App& app, Outcome& outcome) {
  auto options = std::make_shared<WatchOptions>();
  CLI::App* verb = app.add_subcommand("watch", "Shows a run while it goes on: curves, waterfall, ranks, incidents");
  verb->add_option("run", options->run, "Run id, its beginning, or `last`, which follows the newest");
  verb->add_option("--tab", options->tab,
                   "Page to begin with: overview, waterfall, ranks, timeline, incidents, memory");
  verb->add_option("--every", options->every, "How often to look (default 1s, at least 100ms)");
  verb->add_flag("--once", options->once, "Print one page and end");
  verb->add_flag("--json", options->json, "A JSON object per change on stdout (lockstep.watch/1)");
  set_examples(*verb,
               "  lockstep watch                         the newest run; 1-6 or arrows change the page, q ends\n"
               "  lockstep watch 20261115 --tab ranks\n"
               "  lockstep watch --once --tab waterfall\n"
               "  lockstep watch last --json | jq .loss");
  verb->callback([options, &outcome] {
    outcome.json = options->json;
    outcome.exit_code = watch(*options);
  });
}

}  // namespace lockstep::cli
