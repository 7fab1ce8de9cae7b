#include "lockstep/telemetry/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "lockstep/base/clock.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"

namespace lockstep::telemetry {
namespace {

constexpr int kDefaultWidth = 80;
constexpr int kNarrowest = 20;
constexpr int kBarWidth = 16;
constexpr const char* kBold = "\033[1m";
constexpr const char* kDim = "\033[2m";
constexpr const char* kReset = "\033[0m";
constexpr const char* kEraseLine = "\r\033[K";

// A piece of the line; the pieces of the largest `rank` are the first to go when there is no room.
struct Field {
  std::string name;
  std::string value;
  int rank = 0;
};

std::string share(double value) { return fmt::format("{:.1f}%", 100.0 * value); }

std::string bar(const ProgressSample& sample) {
  const double done = std::clamp(double(sample.step) / double(sample.steps_total), 0.0, 1.0);
  const int full = static_cast<int>(done * kBarWidth);
  std::string text;
  for (int i = 0; i < kBarWidth; ++i) text += i < full ? "━" : "╌";
  return text;
}

std::vector<Field> fields_of(const ProgressSample& sample) {
  std::vector<Field> fields;
  const auto add = [&](const char* name, const std::optional<double>& value, int rank, auto format) {
    if (value) fields.push_back({name, format(*value), rank});
  };
  const auto plain = [](const char* format) {
    return [format](double value) { return fmt::format(fmt::runtime(format), value); };
  };
  add("loss", sample.loss, 0, plain("{:.4f}"));
  add("", sample.per_second, 1, [&](double value) { return format_rate(value, sample.unit); });
  add("MFU", sample.mfu, 3, share);
  add("eff", sample.efficiency, 3, share);
  add("norm", sample.gradient_norm, 5, plain("{:.3g}"));
  add("lr", sample.learning_rate, 6, plain("{:.2e}"));
  add("mem", sample.memory_bytes, 4, [](double value) { return format_bytes(value); });
  add("ETA", sample.eta_seconds, 2, [](double value) { return format_seconds(std::round(value)); });
  return fields;
}

std::string join_fields(const std::string& head, const std::vector<Field>& fields, bool colour) {
  std::string text = head;
  for (const Field& field : fields) {
    if (!text.empty()) text += "  ";
    if (!field.name.empty()) text += colour ? kDim + field.name + kReset + " " : field.name + " ";
    text += field.value;
  }
  return text;
}

// Cuts plain text to `width` columns, never inside a character.
std::string cut(const std::string& text, int width) {
  std::string result;
  int columns = 0;
  for (std::size_t i = 0; i < text.size();) {
    std::size_t end = i + 1;
    while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) ++end;
    if (++columns > width) break;
    result.append(text, i, end - i);
    i = end;
  }
  return result;
}

// UTF-8 by the variables that name the locale; first set wins (POSIX). Unset means the C locale.
bool terminal_is_utf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    const std::string lower = to_lower(value);
    return lower.find("utf-8") != std::string::npos || lower.find("utf8") != std::string::npos;
  }
  return false;
}

}  // namespace

int display_width(const std::string& text) {
  int columns = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte == '\033') {
      while (i < text.size() && text[i] != 'm' && text[i] != 'K') ++i;
    } else if ((byte & 0xc0) != 0x80 && byte >= 0x20) {
      ++columns;
    }
  }
  return columns;
}

TerminalStyle detect_style(std::FILE* stream) {
  TerminalStyle style;
  style.width = kDefaultWidth;
  const int descriptor = ::fileno(stream);
  const char* terminal = std::getenv("TERM");
  const bool dumb = !terminal || !*terminal || std::strcmp(terminal, "dumb") == 0;
  style.live = descriptor >= 0 && ::isatty(descriptor) == 1 && !dumb;
  const char* no_colour = std::getenv("NO_COLOR");  // https://no-color.org: set and not empty
  style.colour = style.live && !(no_colour && *no_colour);
  style.unicode = terminal_is_utf8();
  winsize size{};
  if (style.live && ::ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) style.width = size.ws_col;
  if (const char* columns = std::getenv("COLUMNS")) {
    if (const int given = std::atoi(columns); given > 0) style.width = given;
  }
  style.width = std::max(style.width, kNarrowest);
  return style;
}

std::string format_progress(const ProgressSample& sample, int width, bool colour, const std::string& title) {
  std::string steps = sample.steps_total > 0 ? fmt::format("{}/{}", sample.step, sample.steps_total)
                                             : fmt::format("step {}", sample.step);
  std::vector<Field> fields = fields_of(sample);
  const bool with_bar = sample.steps_total > 0 && width >= 100;
  std::string head = title.empty() ? "" : printable(title, 24) + "  ";
  if (colour) head = kBold + head + kReset;
  head += (with_bar ? bar(sample) + " " : "") + steps;
  while (!fields.empty() && display_width(join_fields(head, fields, false)) > width) {
    fields.erase(
        std::max_element(fields.begin(), fields.end(), [](const Field& a, const Field& b) { return a.rank < b.rank; }));
  }
  const std::string line = join_fields(head, fields, colour);
  return display_width(line) > width ? cut(steps, width) : line;
}

ProgressRenderer::ProgressRenderer(std::FILE* stream, Options options)
    : stream_(stream), options_(std::move(options)), style_(options_.style.value_or(detect_style(stream))) {}

ProgressRenderer::~ProgressRenderer() { finish(); }

void ProgressRenderer::update(const ProgressSample& sample) {
  const std::lock_guard lock(mutex_);
  const double interval = style_.live ? options_.live_interval_seconds : options_.plain_interval_seconds;
  const double now = monotonic_seconds();
  const bool last = sample.steps_total > 0 && sample.step >= sample.steps_total;
  if (last_paint_ >= 0 && now - last_paint_ < interval && !last) {
    pending_ = sample;
    return;
  }
  last_paint_ = now;
  paint(sample);
}

void ProgressRenderer::paint(const ProgressSample& sample) {
  shown_ = sample;  // `sample` may be pending_
  pending_.reset();
  // A terminal may be resized while a run lasts. One column stays free: some wrap when the last one is written.
  if (style_.live && !options_.style) style_.width = detect_style(stream_).width;
  const std::string line = format_progress(*shown_, style_.width - 1, style_.colour, options_.title);
  if (style_.live) {
    erase();
    std::fputs(line.c_str(), stream_);
    on_line_ = true;
  } else {
    std::fputs((line + "\n").c_str(), stream_);
  }
  std::fflush(stream_);
}

void ProgressRenderer::erase() {
  if (style_.live) std::fputs(kEraseLine, stream_);
  on_line_ = false;
}

void ProgressRenderer::message(const std::string& text) {
  const std::lock_guard lock(mutex_);
  std::optional<ProgressSample> under;
  if (on_line_) {
    under = pending_ ? pending_ : shown_;
    erase();
  }
  std::fputs((text + "\n").c_str(), stream_);
  if (under) paint(*under);
  std::fflush(stream_);
}

void ProgressRenderer::finish() {
  const std::lock_guard lock(mutex_);
  if (pending_) paint(*pending_);
  if (on_line_) std::fputs("\n", stream_);
  on_line_ = false;
  last_paint_ = -1.0;
  std::fflush(stream_);
}

void ProgressRenderer::summary(const std::string& title, const std::vector<std::pair<std::string, std::string>>& rows) {
  finish();
  const std::lock_guard lock(mutex_);
  int widest = 0;
  for (const auto& [name, value] : rows) widest = std::max(widest, display_width(name));
  std::string text = style_.colour ? kBold + title + kReset + "\n" : title + "\n";
  for (const auto& [name, value] : rows) {
    const std::string gap(static_cast<std::size_t>(widest - display_width(name)) + 2, ' ');
    text.append("  ").append(style_.colour ? kDim + name + kReset : name).append(gap).append(value).append("\n");
  }
  std::fputs(text.c_str(), stream_);
  std::fflush(stream_);
}

}  // namespace lockstep::telemetry
