#include "lockstep/telemetry/progress.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <thread>

#include "lockstep/base/file.h"
#include "lockstep/base/text.h"

namespace lockstep::telemetry {
namespace {

ProgressSample full_sample(std::int64_t step) {
  return {.step = step,
          .steps_total = 200,
          .loss = 2.3456,
          .per_second = 51234,
          .mfu = 0.412,
          .gradient_norm = 1.25,
          .memory_bytes = 1.5 * (1 << 30),
          .eta_seconds = 75,
          .learning_rate = 3e-4};
}

// A stream whose text can be read back.
class Tape {
 public:
  Tape() : file_(std::tmpfile()) {}
  ~Tape() { std::fclose(file_); }
  std::FILE* stream() { return file_; }
  std::string text() {
    std::fflush(file_);
    std::string all(static_cast<std::size_t>(std::ftell(file_)), '\0');
    std::rewind(file_);
    const std::size_t got = std::fread(all.data(), 1, all.size(), file_);
    EXPECT_EQ(got, all.size());
    return all;
  }

 private:
  std::FILE* file_;
};

TEST(ProgressLine, shows_everything_where_there_is_room) {
  const std::string line = format_progress(full_sample(50), 160, false);
  for (const char* part :
       {"50/200", "loss 2.3456", "51.2 k tokens/s", "MFU 41.2%", "norm 1.25", "lr 3.00e-04", "mem 1.5", "ETA 1m 15s"}) {
    EXPECT_NE(line.find(part), std::string::npos) << part << " is missing in: " << line;
  }
}

TEST(ProgressLine, never_exceeds_the_width_and_keeps_the_loss_longest) {
  for (int width = 20; width < 200; ++width) {
    const std::string plain = format_progress(full_sample(50), width, false, "a-job-with-a-name");
    EXPECT_LE(display_width(plain), width);
    EXPECT_EQ(display_width(format_progress(full_sample(50), width, true, "a-job-with-a-name")), display_width(plain));
    const bool has_rate = plain.find("tokens/s") != std::string::npos,
               has_loss = plain.find("loss") != std::string::npos;
    EXPECT_TRUE(has_loss || !has_rate) << plain;
  }
}

TEST(ProgressRenderer, prints_plain_lines_at_most_once_per_interval_and_always_the_last_step) {
  Tape tape;
  {
    ProgressRenderer renderer(tape.stream(), {.plain_interval_seconds = 1000.0});
    for (int step = 1; step <= 200; ++step) renderer.update(full_sample(step));
  }
  const auto lines = split(tape.text(), '\n');
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0].substr(0, 6), "1/200 ");
  EXPECT_EQ(lines[1].substr(0, 8), "200/200 ");
  EXPECT_EQ(tape.text().find('\033'), std::string::npos);
}

TEST(ProgressRenderer, shows_the_newest_sample_when_it_finishes_early) {
  Tape tape;
  {
    ProgressRenderer renderer(tape.stream(), {.plain_interval_seconds = 1000.0});
    for (int step = 1; step <= 7; ++step) renderer.update(full_sample(step));
  }
  EXPECT_NE(tape.text().find("7/200"), std::string::npos);
}

TEST(ProgressRenderer, puts_messages_above_the_live_line) {
  Tape tape;
  {
    ProgressRenderer renderer(tape.stream(),
                              {.style = TerminalStyle{.width = 60, .live = true}, .live_interval_seconds = 0});
    renderer.update(full_sample(1));
    renderer.message("checkpoint saved");
    renderer.update(full_sample(2));
  }
  const std::string text = tape.text();
  // Erased, then the message on its own line, then the line again: nothing of "1/200" stands beside the message.
  const std::size_t message = text.find("\r\033[Kcheckpoint saved\n");
  ASSERT_NE(message, std::string::npos);
  EXPECT_NE(text.find("1/200", message), std::string::npos);
  EXPECT_EQ(text.back(), '\n');
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2);
}

TEST(ProgressRenderer, does_not_tear_lines_between_threads) {
  Tape tape;
  {
    ProgressRenderer renderer(tape.stream(),
                              {.style = TerminalStyle{.colour = true, .live = true}, .live_interval_seconds = 0});
    std::thread messages([&] {
      for (int i = 0; i < 500; ++i) renderer.message("<message>");
    });
    for (int step = 1; step <= 500; ++step) renderer.update(full_sample(step));
    messages.join();
  }
  for (const std::string& line : split(tape.text(), '\n')) {
    if (line.find("<message>") == std::string::npos) continue;
    EXPECT_EQ(line.substr(line.rfind('\r') == std::string::npos ? 0 : line.rfind("\033[K") + 3), "<message>");
  }
}

TEST(ProgressRenderer, aligns_the_summary) {
  Tape tape;
  ProgressRenderer renderer(tape.stream());
  renderer.summary("done", {{"loss", "1.0"}, {"throughput", "5 tokens/s"}});
  EXPECT_EQ(tape.text(), "done\n  loss        1.0\n  throughput  5 tokens/s\n");
}

TEST(Style, has_colour_only_on_a_terminal_without_no_color) {
  const UniqueFd master(::posix_openpt(O_RDWR | O_NOCTTY));
  if (!master || ::grantpt(master.get()) != 0 || ::unlockpt(master.get()) != 0) GTEST_SKIP() << "no pseudo-terminals";
  std::FILE* terminal = std::fopen(::ptsname(master.get()), "w");
  ASSERT_NE(terminal, nullptr);
  ::setenv("TERM", "xterm", 1);
  ::unsetenv("NO_COLOR");
  ::unsetenv("COLUMNS");
  EXPECT_TRUE(detect_style(terminal).live);
  EXPECT_TRUE(detect_style(terminal).colour);
  ::setenv("NO_COLOR", "1", 1);
  EXPECT_FALSE(detect_style(terminal).colour);
  ::unsetenv("NO_COLOR");
  ::setenv("TERM", "dumb", 1);
  EXPECT_FALSE(detect_style(terminal).live);
  ::setenv("COLUMNS", "123", 1);
  EXPECT_EQ(detect_style(terminal).width, 123);
  ::unsetenv("COLUMNS");
  std::fclose(terminal);
  Tape tape;
  EXPECT_FALSE(detect_style(tape.stream()).live);
  EXPECT_FALSE(detect_style(tape.stream()).colour);
}

}  // namespace
}  // namespace lockstep::telemetry
