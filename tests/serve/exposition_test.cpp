#include "lockstep/serve/exposition.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "lockstep/base/file.h"
#include "lockstep/serve/dcgm.h"

namespace lockstep::serve {
namespace {

TEST(Exposition, keeps_families_together_and_escapes_labels) {
  Exposition out(ExpositionFormat::kText);
  out.add("a", "gauge", "first\nline", {{"run", "x\"y\\z\n"}}, 1.5);
  out.add("b_total", "counter", "second", {}, 2);
  out.add("a", "gauge", "first", {{"run", "other"}}, NAN);
  EXPECT_EQ(out.text(),
            "# HELP a first\\nline\n# TYPE a gauge\n"
            "a{run=\"x\\\"y\\\\z\\\\x0a\"} 1.5\n"
            "a{run=\"other\"} NaN\n"
            "# HELP b_total second\n# TYPE b_total counter\nb_total 2\n");
}

TEST(Exposition, reads_back_what_it_writes) {
  Exposition out(ExpositionFormat::kOpenMetrics);
  out.add("a", "gauge", "help", {{"run", "}{,=\"\\"}, {"rank", "0"}}, 1e300);
  out.add("c_total", "counter", "help", {}, -INFINITY);
  EXPECT_NE(out.text().find("# TYPE c counter\n"), std::string::npos);
  const auto samples = parse_exposition(out.text());
  ASSERT_EQ(samples.size(), 2u);
  EXPECT_EQ(samples[0].labels, (Labels{{"run", "}{,=\"\\"}, {"rank", "0"}}));
  EXPECT_EQ(samples[0].value, 1e300);
  EXPECT_EQ(samples[1].value, -INFINITY);
}

TEST(Exposition, leaves_out_lines_that_are_none) {
  const auto samples = parse_exposition(
      "a 1\nb{ 2\nc{x=\"1} 3\nd{x=y} 4\n{} 5\ne five\nf\n\n# a 6\ng{x=\"1\",} 7 123\n h 8 \r\ni{x=\"1\" y=\"2\"} 9");
  std::vector<std::string> names;
  for (const Sample& sample : samples) names.push_back(sample.name);
  EXPECT_EQ(names, (std::vector<std::string>{"a", "g", "h"}));
}

TEST(Exposition, format_is_what_the_scraper_asks_for) {
  EXPECT_EQ(format_for(""), ExpositionFormat::kText);
  EXPECT_EQ(format_for("text/plain"), ExpositionFormat::kText);
  EXPECT_EQ(format_for("application/openmetrics-text;version=1.0.0,text/plain;q=0.5"), ExpositionFormat::kOpenMetrics);
}

TEST(Dcgm, blanks_are_told_from_values) {
  for (const double blank : {9223372036854775792.0, 9223372036854775794.0, 9223372036854775807.0, 2147483632.0,
                             2147483635.0, 140737488355328.0, 140737488355331.0, static_cast<double>(NAN)}) {
    EXPECT_TRUE(is_blank_of_dcgm(blank)) << blank;
  }
  for (const double value : {0.0, -1.0, 79.0, 2147483631.0, 2147483636.0, 140737488355327.0, 1e15}) {
    EXPECT_FALSE(is_blank_of_dcgm(value)) << value;
  }
}

TEST(Dcgm, the_exporters_own_example_has_two_fields_that_are_known) {
  const std::filesystem::path file =
      std::filesystem::path(LOCKSTEP_SOURCE_DIR) / "../shared/data/ops/dcgm/sample_output_from_readme.prom";
  if (!std::filesystem::exists(file)) GTEST_SKIP() << file << " is not there";
  const nlohmann::json gpus = gpus_of_dcgm(parse_exposition(read_file(file)));
  ASSERT_EQ(gpus.size(), 1u);
  EXPECT_EQ(gpus[0]["uuid"], "GPU-604ac76c-d9cf-fef3-62e9-d92044ab6e52");
  EXPECT_EQ(gpus[0]["values"], (nlohmann::json{{"DCGM_FI_DEV_SM_CLOCK", 139.0}, {"DCGM_FI_DEV_MEM_CLOCK", 405.0}}));
}

}  // namespace
}  // namespace lockstep::serve
