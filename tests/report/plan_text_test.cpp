#include "lockstep/report/plan_text.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "lockstep/base/text.h"
#include "lockstep/telemetry/progress.h"

namespace lockstep::report {
namespace {

planner::SearchRequest request_of(const std::string& model, const std::string& cluster) {
  planner::SearchRequest request;
  request.model = spec::load_model(model);
  request.cluster = spec::load_cluster(cluster);
  request.profile = cost::profile_for(request.cluster.groups.front().device.kind);
  request.global_sequences = 64;
  return request;
}

const planner::Explained& with_pipeline() {
  static const planner::Explained explained = [] {
    planner::SearchRequest request = request_of("llama2-7b", "2x8xH100");
    request.constraints.fixed["pp"] = 4;
    request.tokens = 1e9;
    return planner::explain(request);
  }();
  return explained;
}

bool is_ascii(const std::string& text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(PlanText, has_a_bar_per_term_and_per_stage_and_a_row_of_the_timeline_per_stage) {
  const std::string text = to_text(with_pipeline(), {.style = {.width = 100}});
  for (const char* term : {"parameters", "gradients", "optimizer", "activations", "buffers", "overhead"}) {
    EXPECT_NE(text.find(std::string("\n  ") + term), std::string::npos) << term;
  }
  for (int stage = 0; stage < 4; ++stage) {
    EXPECT_EQ(count(text, "stage  " + std::to_string(stage)), 2u) << "once for memory, once for time";
  }
}

TEST(PlanText, plain_style_is_ascii_without_colours) {
  const std::string text = to_text(
      with_pipeline(), {.style = {.width = 80, .colour = false, .unicode = false}, .passes = true, .pareto = true});
  EXPECT_TRUE(is_ascii(text));
  EXPECT_EQ(text.find('\033'), std::string::npos);
}

TEST(PlanText, colours_change_nothing_but_the_colours) {
  const std::string coloured = to_text(with_pipeline(), {.style = {.width = 100, .colour = true}});
  EXPECT_NE(coloured.find("\033["), std::string::npos);
  std::string plain;
  for (std::size_t i = 0; i < coloured.size(); ++i) {
    if (coloured[i] == '\033') {
      i = coloured.find('m', i);
    } else {
      plain += coloured[i];
    }
  }
  for (const char* piece : {"What lost", "What if", "Why", "bottleneck", "USD", "forward of a micro-batch"}) {
    EXPECT_NE(plain.find(piece), std::string::npos) << piece;
  }
}

TEST(PlanText, prose_keeps_to_the_width) {
  const std::string text = to_text(with_pipeline(), {.style = {.width = 90}});
  const std::size_t why = text.find("\nWhy\n"), lost = text.find("\nWhat lost\n");
  ASSERT_NE(why, std::string::npos);
  for (const std::string& line : split(text.substr(why, lost - why), '\n')) {
    EXPECT_LE(telemetry::display_width(line), 90) << line;
  }
}

TEST(PlanText, a_comparison_shows_who_does_not_fit_and_why) {
  const std::string text =
      to_text(planner::compare({request_of("llama2-70b", "1x1xA10G"), request_of("llama2-70b", "8x8xH100")}));
  EXPECT_NE(text.find("! llama2-70b does not fit 1x1xA10G"), std::string::npos) << text;
  EXPECT_NE(text.find("Verdict"), std::string::npos);
}

TEST(PlanText, scaling_marks_the_first_size_below_90_percent) {
  const planner::Scaling scaling = planner::scale(request_of("gpt2-124m", "1x8xA100"), {8, 16, 32, 64}, false);
  const std::string text = to_text(scaling, {.width = 80});
  ASSERT_TRUE(scaling.falls_below);
  EXPECT_EQ(count(text, "<- below 90% from here"), 1u);
  EXPECT_NE(text.find("line at 90%"), std::string::npos);
}

}  // namespace
}  // namespace lockstep::report
