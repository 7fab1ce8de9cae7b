#include "lockstep/report/run_page/run_page.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/report/canvas/svg_canvas.h"
#include "lockstep/report/figures.h"
#include "lockstep/report/run_page/words.h"
#include "lockstep/report/run_sections.h"
#include "made_up_run.h"

namespace lockstep::report {
namespace {

using nlohmann::json;

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// Cells of the row whose first cell is `name`, in order; empty when there is none.
std::vector<std::string> row_of(const std::string& html, const std::string& name) {
  std::vector<std::string> cells;
  const std::size_t start = html.find("<tr><td>" + name + "</td>");
  if (start == std::string::npos) return cells;
  const std::string row = html.substr(start, html.find("</tr>", start) - start);
  for (std::size_t at = row.find("<td"); at != std::string::npos; at = row.find("<td", at + 1)) {
    const std::size_t begin = row.find('>', at) + 1;
    cells.push_back(row.substr(begin, row.find("</td>", begin) - begin));
  }
  return cells;
}

class ThePage : public ::testing::Test {
 protected:
  RunPage made(std::optional<diagnose::Diagnosis> diagnosis = std::nullopt) {
    return make_run_page(*run_.store(folder_), "last", std::move(diagnosis));
  }
  MadeUpRun run_;
  TemporaryFolder folder_;
};

TEST_F(ThePage, has_every_figure_of_the_json) {
  const RunPage page = made();
  const std::string html = to_html(run_document(page));
  const json report = to_json(page.report);
  for (const json& loss : report.at("waterfall").at("losses")) {
    const double measured = loss.at("measured").at("percent"), predicted = loss.at("predicted").at("percent");
    if (std::abs(measured) < 0.05 && std::abs(predicted) < 0.05) continue;
    const std::vector<std::string> row = row_of(html, loss.at("name"));
    ASSERT_EQ(row.size(), 6u) << loss.at("name");
    EXPECT_EQ(row[1], percent_words(-predicted));
    EXPECT_EQ(row[2], percent_words(-measured));
    EXPECT_EQ(row[3], seconds_words(loss.at("predicted").at("seconds")));
    EXPECT_EQ(row[4], seconds_words(loss.at("measured").at("seconds")));
    EXPECT_EQ(row[5], format_dollars(loss.at("measured").at("usd_per_day")));
  }
  const std::vector<std::string> mfu = row_of(html, "MFU");
  ASSERT_GE(mfu.size(), 5u);
  EXPECT_EQ(mfu[2], percent_words(report.at("waterfall").at("achieved_percent").at("measured")));
  EXPECT_EQ(mfu[2], percent_words(100 * report.at("mfu").get<double>())) << "the card and the waterfall are one";
  for (const json& rank : report.at("ranks")) {
    const bool straggler = rank.at("straggler");
    const std::string name = fmt::format("{}{}", rank.at("rank").get<int>(), straggler ? " (straggler)" : "");
    const std::vector<std::string> row = row_of(html, name);
    ASSERT_EQ(row.size(), 11u) << name;
    EXPECT_EQ(row[1], seconds_words(rank.at("step_seconds")));
    EXPECT_EQ(row[2], seconds_words(rank.at("compute_seconds")));
    EXPECT_EQ(row[4], seconds_words(rank.at("wait_seconds")));
    EXPECT_EQ(row[9], fmt::format("{:+.1f}%", 100 * rank.at("slowdown").get<double>()));
    EXPECT_EQ(row[10], bytes_words(rank.at("memory_bytes")));
  }
  for (const char* term : {"parameters", "gradients", "optimizer", "activations", "buffers", "overhead"}) {
    const double bytes = report.at("memory").at("predicted").at(std::string(term) + "_bytes");
    EXPECT_TRUE(has(html, "<td>" + bytes_words(bytes) + "</td>")) << term;
  }
  for (const json& incident : report.at("incidents")) {
    EXPECT_TRUE(has(html, escape_markup(incident.at("what").get<std::string>())));
    EXPECT_TRUE(has(html, "<td>" + seconds_words(incident.at("down_seconds")) + "</td>"));
  }
  EXPECT_TRUE(has(html, format_rate(report.at("measured_per_second"), "tokens")));
  EXPECT_TRUE(has(html, percent_words(100 * report.at("goodput").at("goodput").get<double>())));
}

TEST_F(ThePage, is_one_file_without_scripts_or_anything_from_elsewhere) {
  std::string html = to_html(run_document(made()));
  constexpr std::string_view kNamespace = "http://www.w3.org/2000/svg";  // a name; nothing is fetched
  for (std::size_t at = html.find(kNamespace); at != std::string::npos; at = html.find(kNamespace)) {
    html.erase(at, kNamespace.size());
  }
  EXPECT_TRUE(has(html, "<!DOCTYPE html>"));
  EXPECT_TRUE(has(html, "default-src 'none'"));
  for (const char* bad : {"<script", "http://", "https://", "<link", "<img", "src=", "@import", "url("}) {
    EXPECT_FALSE(has(html, bad)) << bad;
  }
  for (const char* part :
       {"Curves", "From peak to MFU", "Plan and actual", "Ranks", "Memory by term", "Incidents and goodput",
        "Environment", "Do it again", "The job", "prefers-color-scheme:dark", "Loss", "Throughput", "Gradient norm",
        "rank 5 was killed", "gpt2-124m"}) {
    EXPECT_TRUE(has(html, part)) << part;
  }
  EXPECT_TRUE(has(html, "lockstep report " + run_.id + " --job &gt; again.yaml"));
}

TEST_F(ThePage, shows_findings_or_that_there_are_none) {
  diagnose::Diagnosis diagnosis;
  EXPECT_TRUE(has(to_html(run_document(made(diagnosis))), "finds nothing"));
  diagnosis.findings.push_back({.cause = diagnose::Cause::kSlowRank,
                                .confidence = 0.9,
                                .cost_percent = 12.5,
                                .ranks = {3},
                                .evidence = "rank 3 computes 17% longer",
                                .fix = "lockstep doctor --nodes"});
  const TemporaryFolder other;
  const std::string html = to_html(run_document(make_run_page(*run_.store(other), "last", diagnosis)));
  for (const char* part : {"slow rank (ranks 3)", "12.5%", "90.0%", "rank 3 computes 17% longer", "doctor --nodes"})
    EXPECT_TRUE(has(html, part)) << part;
}

TEST_F(ThePage, survives_hostile_names) {
  const std::string evil = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>\033[31m\n(\\) Tj ET";
  run_.name = evil;
  run_.job_yaml = "name: \"" + evil + "\"\nmodel: x";
  run_.more = {telemetry::Event{MadeUpRun::kStart + 40,
                                telemetry::Level::kError,
                                "alert",
                                1,
                                30,
                                evil,
                                {{"rule", evil}, {"state", "firing"}, {"fix", evil}}},
               telemetry::Event{MadeUpRun::kStart + 41, telemetry::Level::kError, evil, 1, 30, evil}};
  const RunPage page = made();
  const std::string html = to_html(run_document(page));
  EXPECT_FALSE(has(html, "<script"));
  EXPECT_FALSE(has(html, "<img"));
  EXPECT_EQ(html.find('\033'), std::string::npos);
  EXPECT_TRUE(has(html, "&lt;script&gt;"));
  const std::string pdf = to_pdf(run_document(page));
  EXPECT_EQ(pdf.find('\033'), std::string::npos);
  EXPECT_FALSE(has(pdf, "\n(\\) Tj ET")) << "a text cannot end its own string";
  const std::string text = to_text(page.report, {.width = 100, .colour = false});
  EXPECT_EQ(text.find('\033'), std::string::npos);
}

TEST_F(ThePage, is_a_pdf_of_a_few_pages) {
  const RunPage page = made();
  const std::string pdf = to_pdf(run_document(page));
  EXPECT_EQ(pdf.rfind("%PDF-1.4", 0), 0u);
  std::size_t pages = 0;
  for (std::size_t at = pdf.find("/Type /Page "); at != std::string::npos; at = pdf.find("/Type /Page ", at + 1))
    ++pages;
  EXPECT_GE(pages, 2u);
  EXPECT_LE(pages, 6u);
  EXPECT_TRUE(has(pdf, "1 of "));
  EXPECT_TRUE(pdf == to_pdf(run_document(page))) << "the same run gives the same bytes";
}

// What is drawn at the right of the page's edge is lost on paper.
TEST_F(ThePage, keeps_long_findings_on_paper) {
  diagnose::Diagnosis diagnosis;
  std::string words;
  for (int i = 0; i < 60; ++i) words += "evidence ";
  diagnosis.findings.push_back({.cause = diagnose::Cause::kOversubscription, .evidence = words, .fix = words + "end."});
  const std::string pdf = to_pdf(run_document(made(diagnosis)));
  std::size_t texts = 0;
  for (std::size_t at = pdf.find("1 0 0 1 "); at != std::string::npos; at = pdf.find("1 0 0 1 ", at + 1), ++texts) {
    EXPECT_LT(std::stod(pdf.substr(at + 8)), 562.0);
  }
  EXPECT_GT(texts, 100u);
  EXPECT_TRUE(has(pdf, "oversubscription"));
}

TEST_F(ThePage, breaks_long_tables_and_jobs_over_pages) {
  for (int i = 0; i < 50; ++i) {
    run_.more.push_back(telemetry::Event{MadeUpRun::kStart + 40 + i * 0.1, telemetry::Level::kWarning, "node_health",
                                         -1, -1, fmt::format("node finding number {}", i)});
  }
  run_.job_yaml = "a: 1\nb:\n  indented: 2\n";
  for (int i = 0; i < 300; ++i) run_.job_yaml += fmt::format("key{}: value\n", i);
  const std::string pdf = to_pdf(run_document(made()));
  EXPECT_TRUE(has(pdf, "finding number 0"));
  EXPECT_TRUE(has(pdf, "finding number 49"));
  EXPECT_TRUE(has(pdf, "key299: value"));
  EXPECT_TRUE(has(pdf, "(  indented: 2)"));
}

TEST_F(ThePage, copes_with_a_run_that_recorded_nothing) {
  const auto store = telemetry::make_json_lines_run_store(folder_.path());
  store->write("empty", std::vector<telemetry::Record>{telemetry::RunInfo{.id = "empty", .started_at = 1e9}});
  const Document document = run_document(make_run_page(*store, "last"));
  EXPECT_TRUE(has(to_html(document), "Run: empty"));
  EXPECT_FALSE(to_pdf(document).empty());
}

TEST_F(ThePage, of_a_foreign_program_has_no_empty_columns) {
  const auto store = telemetry::make_json_lines_run_store(folder_.path());
  telemetry::RunInfo info{.id = "foreign", .name = "train.py", .started_at = 1e9, .world = 2, .backend = "command"};
  info.job_yaml = "command: [python, train.py]\n";
  std::vector<telemetry::Record> records{info};
  for (int rank = 0; rank < 2; ++rank) {
    records.push_back(telemetry::MetricBatch{
        rank, 5, 1e9 + 5, {{"cpu_percent", 87.0}, {"resident_bytes", 2e9}, {"memory_bytes", 2e9}}});
  }
  store->write("foreign", records);
  const RunPage page = make_run_page(*store, "last");
  const std::string html = to_html(run_document(page));
  EXPECT_TRUE(has(html, "87%"));
  EXPECT_FALSE(has(html, "Throughput"));
  const std::string text = to_text(page.report);
  EXPECT_TRUE(has(text, "87%")) << text;
  EXPECT_TRUE(has(text, "CPU"));
  for (const char* empty : {"predicted", "residual", "step", "compute", "vs median"})
    EXPECT_FALSE(has(text, empty)) << text;
}

TEST_F(ThePage, has_a_heat_map_that_shows_the_slow_rank) {
  const RunPage page = made();
  ASSERT_EQ(page.heat.ranks.size(), 8u);
  ASSERT_EQ(page.heat.steps.size(), 40u);
  EXPECT_NEAR(page.heat.values[3][10], 0.95, 1e-9);
  EXPECT_NEAR(page.heat.values[2][10], 0.85, 1e-9);
  EXPECT_TRUE(has(page.heat.what, "busy"));
}

TEST(PercentWords, never_say_minus_nothing) {
  EXPECT_EQ(percent_words(-0.01), "0.0%");
  EXPECT_EQ(percent_words(std::nan("")), "-");
  EXPECT_EQ(percent_words(-4.04), "-4.0%");
}

}  // namespace
}  // namespace lockstep::report
