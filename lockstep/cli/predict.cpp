// `lockstep predict --rows FILE.csv --output OUT.csv`: a table of runs, priced row by row.
#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/cli/verbs.h"
#include "lockstep/planner/observations.h"
#include "lockstep/planner/profile_source.h"
#include "lockstep/planner/rows/csv.h"
#include "lockstep/planner/rows/predict_rows.h"
#include "lockstep/telemetry/progress.h"

namespace lockstep::cli {
namespace {

constexpr double kQuietSeconds = 2.0;  // shorter work shows no progress

struct PredictOptions {
  std::string rows, observed, output = "-", profile;
  bool json = false;
};

struct Tally {
  std::size_t rows = 0, priced = 0;
  std::vector<double> errors;  // |predicted / measured - 1| of tokens/s/GPU, where the row has a measurement
  std::map<std::string, std::size_t> unpriced;  // by reason
};

std::string number(const std::optional<double>& value) { return value ? fmt::format("{:.6g}", *value) : ""; }

// Appended columns; one that the file already has (an earlier output) is overwritten.
class OutputTable {
 public:
  explicit OutputTable(const std::vector<std::string>& columns) : columns_(columns) {
    for (const char* name : {"predicted_tokens_per_s_per_gpu", "predicted_low", "predicted_high", "predicted_mem_gib",
                             "predicted_fits", "note"}) {
      const auto found = std::find(columns_.begin(), columns_.end(), name);
      places_.push_back(static_cast<std::size_t>(found - columns_.begin()));
      if (found == columns_.end()) columns_.emplace_back(name);
    }
    text_ = planner::csv_line(columns_);
  }

  void add(const planner::PublishedRow& row, const planner::RowPrediction& prediction) {
    const auto& rate = prediction.tokens_per_second_per_gpu;
    const std::vector<std::string> values{rate ? number(rate->expected) : "",
                                          rate ? number(rate->low) : "",
                                          rate ? number(rate->high) : "",
                                          number(prediction.memory_gib),
                                          prediction.fits ? (*prediction.fits ? "true" : "false") : "",
                                          planner::spreadsheet_text(prediction.note)};
    std::vector<std::string> cells = row.cells;
    cells.resize(columns_.size());
    for (std::size_t i = 0; i < values.size(); ++i) cells[places_[i]] = values[i];
    text_ += planner::csv_line(cells);
  }

  const std::string& text() const { return text_; }

 private:
  std::vector<std::string> columns_;
  std::vector<std::size_t> places_;
  std::string text_;
};

void count(Tally& tally, const planner::PublishedRow& row, const planner::RowPrediction& prediction) {
  ++tally.rows;
  if (!prediction.tokens_per_second_per_gpu) {
    ++tally.unpriced[prediction.note];
    return;
  }
  ++tally.priced;
  if (!row.tokens_per_s_per_gpu) return;
  tally.errors.push_back(std::abs(prediction.tokens_per_second_per_gpu->expected / *row.tokens_per_s_per_gpu - 1));
}

double median(std::vector<double> values) {
  const std::size_t middle = values.size() / 2;
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(middle), values.end());
  return values[middle];
}

nlohmann::json row_json(const planner::PublishedRow& row, const planner::RowPrediction& prediction) {
  nlohmann::json object{{"id", row.id}, {"line", row.line}, {"note", prediction.note}};
  if (const auto& rate = prediction.tokens_per_second_per_gpu) {
    object["tokens_per_second_per_gpu"] = {{"low", rate->low}, {"expected", rate->expected}, {"high", rate->high}};
  }
  if (prediction.memory_gib) object["memory_gib"] = *prediction.memory_gib;
  if (prediction.fits) object["fits"] = *prediction.fits;
  if (prediction.out_of_memory_probability) {
    object["out_of_memory_probability"] = *prediction.out_of_memory_probability;
  }
  if (!prediction.profile.empty()) object["profile"] = prediction.profile;
  return object;
}

nlohmann::json summary_json(const PredictOptions& options, const Tally& tally) {
  nlohmann::json object{{"schema", "lockstep.predict/1"},
                        {"rows", tally.rows},
                        {"priced", tally.priced},
                        {"output", options.output},
                        {"measured", tally.errors.size()}};
  if (!tally.errors.empty()) object["median_absolute_error"] = median(tally.errors);
  object["not_priced"] = tally.unpriced;
  return object;
}

void show_summary(std::FILE* out, const PredictOptions& options, const Tally& tally) {
  fmt::print(out, "{} rows, {} priced\n", tally.rows, tally.priced);
  for (const auto& [reason, rows] : tally.unpriced) fmt::print(out, "  {} not: {}\n", rows, reason);
  if (!tally.errors.empty()) {
    fmt::print(out, "tokens/s/GPU against {} measurements: median absolute error {:.1f}%\n", tally.errors.size(),
               100 * median(tally.errors));
  }
  if (options.output != "-") fmt::print(out, "written to {}\n", options.output);
  fmt::print(out, "next: lockstep plan --model llama2-13b --cluster 4x8xH100\n");
}

void show_observed(std::FILE* out, const std::vector<cost::RunVerdict>& runs) {
  if (const std::string used = planner::said_of(runs); !used.empty()) fmt::print(out, "conditioned on {}\n", used);
  for (const std::string& finding : planner::findings_of(runs)) fmt::print(out, "finding: {}\n", finding);
}

// Shown only once the work has taken longer than a person waits without asking.
class LateProgress {
 public:
  explicit LateProgress(std::size_t total) : total_(total), renderer_(stderr, {.title = "predict"}) {}

  void step(std::size_t done) {
    const double elapsed = monotonic_seconds() - start_;
    if (elapsed < kQuietSeconds) return;
    renderer_.update({.step = static_cast<std::int64_t>(done),
                      .steps_total = static_cast<std::int64_t>(total_),
                      .per_second = static_cast<double>(done) / elapsed,
                      .unit = "rows"});
  }

 private:
  std::size_t total_;
  double start_ = monotonic_seconds();
  telemetry::ProgressRenderer renderer_;
};

int predict(const PredictOptions& options) {
  const planner::PublishedTable table = planner::load_published_rows(options.rows);
  for (const planner::PublishedRow& row : table.rows) {
    if (const auto problem = planner::find_unknown_word(row)) {
      throw bad_input(*problem, "correct it, or leave it blank (unknown: bf16)", {.file = options.rows});
    }
  }
  for (const std::string& notice : planner::find_misnamed_columns(table)) {
    fmt::print(stderr, "lockstep: note: {}\n", notice);
  }
  std::optional<cost::Profile> profile;
  if (const std::string name = planner::named_profile(options.profile); !name.empty()) {
    profile = cost::find_profile(name);
  }
  planner::RowPredictor predictor(std::move(profile));

  planner::PublishedTable observed;
  if (!options.observed.empty()) {
    observed = planner::load_published_rows(options.observed);
  } else if (!planner::observations_are_off()) {
    observed = planner::kept_observations();
  }
  predictor.observe(std::move(observed));

  const bool rows_in_json = options.json && options.output == "-";
  OutputTable output(table.columns);
  Tally tally;
  nlohmann::json rows = nlohmann::json::array();
  LateProgress progress(table.rows.size());
  for (const planner::PublishedRow& row : table.rows) {
    const planner::RowPrediction prediction = predictor.predict(row);
    output.add(row, prediction);
    count(tally, row, prediction);
    if (rows_in_json) rows.push_back(row_json(row, prediction));
    progress.step(tally.rows);
  }

  if (options.output != "-") write_file_atomically(options.output, output.text());
  if (options.json) {
    nlohmann::json summary = summary_json(options, tally);
    for (const cost::RunVerdict& run : predictor.observed_runs()) {
      summary["observed"].push_back({{"run", run.name}, {"weight", run.weight}, {"outlier", run.is_outlier()}});
    }
    summary["findings"] = planner::findings_of(predictor.observed_runs());
    if (rows_in_json) summary["predictions"] = std::move(rows);
    fmt::print("{}\n", summary.dump());
    return 0;
  }
  if (options.output == "-") fmt::print("{}", output.text());
  std::FILE* out = options.output == "-" ? stderr : stdout;
  show_observed(out, predictor.observed_runs());
  show_summary(out, options, tally);
  return 0;
}

}  // namespace

void add_predict(CLI::App& app, Outcome& outcome) {
  auto options = std::make_shared<PredictOptions>();
  CLI::App* verb = app.add_subcommand("predict", "Prices a table of training runs, row by row");
  verb->add_option("--rows", options->rows,
                   "CSV with the columns of validation/published/throughput.csv; `model` may be a preset")
      ->required();
  verb->add_option("--output", options->output, "CSV to write, with the predictions appended; `-` is stdout");
  verb->add_option("--profile", options->profile, "Price every row under this profile (a name or a file)");
  verb->add_option(
      "--observed", options->observed,
      "CSV with the same columns and measured tokens_per_s_per_gpu of runs of your own stack, which condition "
      "the predictions (default: those that `lockstep observe` kept)");
  add_observation_switch(*verb);
  verb->add_flag("--json", options->json, "JSON on stdout (lockstep.predict/1); with `--output -` every row is in it");
  set_examples(*verb,
               "  lockstep predict --rows validation/published/throughput.csv --output predicted.csv\n"
               "  lockstep predict --rows mine.csv --output - --profile H100\n"
               "  lockstep predict --rows planned.csv --observed measured.csv --output -");
  verb->callback([options, &outcome] {
    outcome.json = options->json;
    outcome.exit_code = predict(*options);
  });
}

}  // namespace lockstep::cli
