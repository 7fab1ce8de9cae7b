#include "lockstep/cli/screen.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <string_view>

namespace lockstep::cli {
namespace {

// Alternate page, no cursor; and back. Begin and end of one picture, for terminals that know to wait for its end.
constexpr std::string_view kEnter = "\033[?1049h\033[?25l\033[2J", kLeave = "\033[?25h\033[?1049l";
constexpr std::string_view kBeginPicture = "\033[?2026h", kEndPicture = "\033[?2026l";

void put(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

KeyPress key_of(std::string_view read) {
  if (read.empty()) return {};
  if (read.size() >= 3 && read[0] == '\033' && (read[1] == '[' || read[1] == 'O')) {
    switch (read[2]) {
      case 'A':
        return {Key::kUp};
      case 'B':
        return {Key::kDown};
      case 'C':
        return {Key::kRight};
      case 'D':
        return {Key::kLeft};
      default:
        return {};
    }
  }
  switch (read[0]) {
    case 'q':
    case 'Q':
      return {Key::kQuit};
    case '\t':
    case 'l':
      return {Key::kRight};
    case 'h':
      return {Key::kLeft};
    case 'k':
      return {Key::kUp};
    case 'j':
      return {Key::kDown};
    default:
      break;
  }
  if (read[0] >= '1' && read[0] <= '9') return {Key::kDigit, read[0] - '0'};
  return {};
}

}  // namespace

Screen::Screen() {
  termios mode{};
  if (tcgetattr(STDIN_FILENO, &mode) == 0) {
    before_ = mode;
    mode.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
    mode.c_cc[VMIN] = 0;
    mode.c_cc[VTIME] = 0;
    mode.c_cc[VSUSP] = _POSIX_VDISABLE;  // a suspended full screen would leave the terminal in a mess
    tcsetattr(STDIN_FILENO, TCSANOW, &mode);
  }
  put(kEnter);
}

Screen::~Screen() {
  put(kLeave);
  if (before_) tcsetattr(STDIN_FILENO, TCSANOW, &*before_);
}

report::ScreenSize Screen::size() {
  winsize found{};
  report::ScreenSize size;
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &found) == 0 && found.ws_col > 0 && found.ws_row > 0) {
    size = {found.ws_col, found.ws_row};
  }
  return size;
}

void Screen::paint(const std::vector<std::string>& lines, const report::ScreenSize& size) {
  const bool anew = size.columns != painted_size_.columns || size.rows != painted_size_.rows;
  std::string picture(anew ? "\033[2J" : "");
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (!anew && i < painted_.size() && painted_[i] == lines[i]) continue;
    picture += fmt::format("\033[{};1H{}\033[K", i + 1, lines[i]);
  }
  painted_ = lines;
  painted_size_ = size;
  if (!picture.empty()) put(fmt::format("{}{}{}", kBeginPicture, picture, kEndPicture));
}

KeyPress Screen::wait_for_key(double timeout_seconds) {
  const int milliseconds = static_cast<int>(timeout_seconds * 1000.0);
  pollfd in{hears_keys_ ? STDIN_FILENO : -1, POLLIN, 0};
  if (poll(&in, 1, milliseconds) <= 0 || in.revents == 0) return {};
  char buffer[16];
  const ssize_t got = read(STDIN_FILENO, buffer, sizeof buffer);
  if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) hears_keys_ = false;  // closed: never ready again
  return got > 0 ? key_of({buffer, static_cast<std::size_t>(got)}) : KeyPress{};
}

}  // namespace lockstep::cli
