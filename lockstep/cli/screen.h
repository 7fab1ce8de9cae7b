// A terminal as a full screen: an alternate page that is left as it was found, keys, and lines that are only rewritten
// where they changed, so that nothing flickers.
#pragma once

#include <termios.h>

#include <optional>
#include <string>
#include <vector>

#include "lockstep/report/watch/frame.h"

namespace lockstep::cli {

enum class Key { kNone, kQuit, kLeft, kRight, kUp, kDown, kDigit };

struct KeyPress {
  Key key = Key::kNone;
  int digit = 0;
};

// Takes stdin and stdout over until it is destroyed. Used from one thread. Only where stdout is a terminal.
class Screen {
 public:
  Screen();
  ~Screen();
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  static report::ScreenSize size();  // of the terminal now; 80x24 where it does not say
  // `lines` are those of watch_frame() for `size`.
  void paint(const std::vector<std::string>& lines, const report::ScreenSize& size);
  // Waits at most `timeout_seconds` for a key.
  KeyPress wait_for_key(double timeout_seconds);

 private:
  std::optional<termios> before_;  // of stdin; nothing: it is no terminal
  bool hears_keys_ = true;         // stdin is open
  std::vector<std::string> painted_;
  report::ScreenSize painted_size_{0, 0};
};

}  // namespace lockstep::cli
