// Incidents of BLOOM-176B as its logbook has them: the lines of the log are replayed after steps without incident, and
// the rules must tell within five steps. The constants of the rules come from simulations (bench/reports/alerts.md),
// not from these lines. And a month without incident, which nothing is told of.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <regex>

#include "lockstep/base/file.h"
#include "lockstep/telemetry/alerts.h"
#include "lockstep/telemetry/robust.h"
#include "tests/telemetry/simulated_run.h"

namespace lockstep::telemetry {
namespace {

using spec::AlertRule;

const std::filesystem::path kLogbook =
    std::filesystem::path(LOCKSTEP_SOURCE_DIR) / "../shared/data/ops/logbooks/bloom176b_chronicles.md";

struct LogLine {
  double seconds = 0.0, loss = 0.0, norm = 0.0;
};

// By iteration. Some lines are broken into three.
std::map<std::int64_t, LogLine> read_logbook() {
  std::string text = read_file(kLogbook);
  for (char& c : text) c = c == '\n' ? ' ' : c;
  const std::regex line(
      "iteration +([0-9]+)/ *[0-9]+ \\|[^\\[]{0,200}elapsed time per iteration \\(s\\): ([0-9.]+) \\|[^\\[]{0,120}"
      "lm loss: ([0-9.E+-]+) \\| +grad norm: ([0-9.]+)");
  std::map<std::int64_t, LogLine> lines;
  for (std::sregex_iterator at(text.begin(), text.end(), line), end; at != end; ++at) {
    lines[std::stoll((*at)[1])] = {std::stod((*at)[2]), std::stod((*at)[3]), std::stod((*at)[4])};
  }
  return lines;
}

class Logbook : public testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(kLogbook)) {
      GTEST_SKIP() << "the logbooks are not beside this repository: " << kLogbook << " is not there";
    }
    lines = read_logbook();
    ASSERT_TRUE(lines.contains(42784) && lines.contains(31222)) << lines.size() << " lines were read";
    std::vector<double> seconds;
    for (std::int64_t i = 31214; i <= 31222; ++i) seconds.push_back(std::log(lines.at(i).seconds));
    deviation = 1.4826 * median_deviation(seconds, median_of(seconds));
    EXPECT_GT(deviation, 5e-4);
    EXPECT_LT(deviation, 0.02);
  }

  // A step like those of the simulation, at this level.
  static StepSample at(const StepSample& like, std::int64_t iteration, const LogLine& level) {
    StepSample sample = like;
    sample.step = iteration;
    sample.seconds = level.seconds * like.seconds / 105.0;
    sample.loss = level.loss + 0.02 * (2.0 * (like.time - std::floor(like.time)) - 1.0);
    sample.gradient_norm = level.norm * *like.gradient_norm / 0.3;
    return sample;
  }
  static StepSample exactly(StepSample sample, std::int64_t iteration, const LogLine& line) {
    sample.step = iteration;
    sample.seconds = line.seconds;
    sample.loss = line.loss;
    sample.gradient_norm = line.norm;
    return sample;
  }

  std::map<std::int64_t, LogLine> lines;
  double deviation = 0.0;  // of the step times, as the log's own lines show it
};

struct Told {
  std::map<AlertRule, std::int64_t> fired, over;  // iterations

  void add(const std::vector<Alert>& alerts) {
    for (const Alert& one : alerts) (one.firing ? fired : over).try_emplace(one.rule, one.step);
  }
};

TEST_F(Logbook, the_silent_slow_down_of_five_percent_is_told_within_five_steps) {
  for (int noise = 0; noise <= static_cast<int>(StepNoise::kWandering); ++noise) {
    for (std::uint64_t seed = 1; seed <= 10; ++seed) {
      SimulatedRun run({.seed = seed, .noise = static_cast<StepNoise>(noise), .deviation = deviation, .begins = false});
      StepAlerts alerts(AlertContext{});
      Told told;
      for (std::int64_t i = 42780 - 600; i < 42780; ++i) told.add(alerts.observe(at(run.next(), i, lines.at(42780))));
      for (std::int64_t i = 42780; i <= 42784; ++i) told.add(alerts.observe(exactly(run.next(), i, lines.at(i))));
      for (std::int64_t i = 42785; i < 42810; ++i) told.add(alerts.observe(at(run.next(), i, lines.at(42784))));
      ASSERT_TRUE(told.fired.contains(AlertRule::kSlowDown)) << noise << " " << seed;
      EXPECT_EQ(told.fired.size(), 1u);
      EXPECT_GE(told.fired.at(AlertRule::kSlowDown), 42783);
      EXPECT_LE(told.fired.at(AlertRule::kSlowDown), 42783 + 4) << noise << " " << seed;
    }
  }
}

TEST_F(Logbook, the_loss_spike_is_told_within_five_steps_and_is_over) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SimulatedRun run({.seed = seed, .deviation = deviation, .begins = false});
    StepAlerts alerts(AlertContext{});
    Told told;
    for (std::int64_t i = 31214 - 600; i < 31214; ++i) told.add(alerts.observe(at(run.next(), i, lines.at(31214))));
    EXPECT_TRUE(told.fired.empty());
    for (std::int64_t i = 31214; i <= 31222; ++i) told.add(alerts.observe(exactly(run.next(), i, lines.at(i))));
    // The first loss that is high is that of 31216.
    ASSERT_TRUE(told.fired.contains(AlertRule::kLossSpike)) << seed;
    EXPECT_GE(told.fired.at(AlertRule::kLossSpike), 31216);
    EXPECT_LE(told.fired.at(AlertRule::kLossSpike), 31216 + 4) << seed;
    EXPECT_TRUE(told.fired.contains(AlertRule::kGradientOutlier));  // norms of 16 to 960, 0.2 is usual
    EXPECT_FALSE(told.fired.contains(AlertRule::kSlowDown));
    for (std::int64_t i = 31250; i < 31300; ++i) told.add(alerts.observe(at(run.next(), i, lines.at(31250))));
    EXPECT_TRUE(told.over.contains(AlertRule::kLossSpike));
    EXPECT_TRUE(told.over.contains(AlertRule::kGradientOutlier));
  }
}

TEST_F(Logbook, a_month_without_incident_and_with_its_noise_raises_nothing) {
  for (int noise = 0; noise <= static_cast<int>(StepNoise::kWandering); ++noise) {
    SimulatedRun run({.seed = 100, .noise = static_cast<StepNoise>(noise), .deviation = deviation, .begins = false});
    StepAlerts alerts(AlertContext{});
    for (std::int64_t step = 0; step < SimulatedRun::kMonth; ++step) {
      for (const Alert& alert : alerts.observe(run.next())) ADD_FAILURE() << noise << " " << to_text(alert);
    }
  }
}

TEST(SimulatedMonth, from_the_first_step_on_raises_nothing) {
  for (int noise = 0; noise <= static_cast<int>(StepNoise::kWandering); ++noise) {
    SimulatedRun run({.seed = 200, .noise = static_cast<StepNoise>(noise), .deviation = 0.01});
    StepAlerts alerts(AlertContext{});
    for (std::int64_t step = 0; step < SimulatedRun::kMonth; ++step) {
      for (const Alert& alert : alerts.observe(run.next())) ADD_FAILURE() << noise << " " << to_text(alert);
    }
  }
}

}  // namespace
}  // namespace lockstep::telemetry
