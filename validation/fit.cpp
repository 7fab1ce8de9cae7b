// validation_fit: constants of every (hardware, stack) from published runs.
//   validation_fit --published DIR --report DIR      cross-validates, prints the accuracy, writes the report
//   validation_fit --published DIR --profiles DIR    writes the profiles that lockstep carries
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <thread>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/units.h"
#include "lockstep/cost/profile/profile.h"
#include "lockstep/planner/rows/observed_rows.h"
#include "lockstep/planner/rows/predict_rows.h"
#include "lockstep/report/terminal/draw.h"
#include "validation/accuracy_report.h"
#include "validation/cross_validation.h"
#include "validation/held_out.h"
#include "validation/residuals.h"

using namespace lockstep;
using namespace lockstep::validation;

namespace {

namespace fs = std::filesystem;
constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
constexpr double kNinetyPercent = 1.6449;

// A row as constants that have not seen it price it.
struct Prediction {
  const Measurement* row = nullptr;
  cost::Price price;
  double communicators = 0;  // bytes of context and communicators in price.memory.overhead
  double memory_bytes = 0;   // what the row's memory was measured of
};

Prediction predict(const Measurement& m, const Fit& fit) {
  const planner::RowQuestion& question = *m.reading.question;
  cost::Constants constants = fit.at(m.hardware, question.stack);
  Prediction p{.row = &m};
  const double reserve = constants.reserve_factor;
  constants.reserve_factor = 1;
  m.pricer->recalibrate(constants, fit.stalls_at(m.hardware, question.stack));
  p.communicators = m.pricer->price(question.layout, question.batch).memory.overhead;
  constants.reserve_factor = reserve;
  m.pricer->recalibrate(constants);
  p.price = m.pricer->price(question.layout, question.batch);
  p.memory_bytes = planner::memory_bytes_of(question, *m.pricer, p.price);
  return p;
}

std::vector<Residual> residuals_from(const std::vector<Prediction>& predictions) {
  std::vector<Residual> residuals;
  for (const Prediction& p : predictions) {
    const Measurement& m = *p.row;
    if (!m.step_seconds && !m.memory_bytes) continue;
    residuals.push_back({.hardware = m.hardware,
                         .stack = m.reading.question->stack,
                         .fold = m.fold,
                         .log_time = m.step_seconds ? std::log(*m.step_seconds / p.price.step_seconds()) : kNone,
                         .exposed_share = p.price.exposed_share,
                         .log_memory = m.memory_bytes ? std::log(*m.memory_bytes / p.memory_bytes) : kNone});
  }
  return residuals;
}

// Runs of one stack that ran or failed, without a fold.
std::vector<FitExample> examples_of(const std::vector<Prediction>& predictions, const std::string& hardware,
                                    const std::string& stack, const std::string& left_out_fold) {
  std::vector<FitExample> examples;
  for (const Prediction& p : predictions) {
    const Measurement& m = *p.row;
    if (m.hardware != hardware || m.reading.question->stack != stack || m.fold == left_out_fold) continue;
    if ((!m.failed && !m.step_seconds) || m.reading.question->cannot_run) continue;
    examples.push_back({.allocated = p.price.allocated_bytes(),
                        .fixed = p.communicators,
                        .capacity = p.price.memory.capacity,
                        .failed = m.failed});
  }
  return examples;
}

// What the profile of a stack, fitted without a fold, says beside its constants.
struct Margins {
  cost::Residuals residuals;
  double reserve_factor = 1;
};

class MarginTable {
 public:
  explicit MarginTable(const std::vector<Prediction>& predictions)
      : predictions_(predictions), residuals_(residuals_from(predictions)) {}

  const Margins& of(const std::string& hardware, const std::string& stack, const std::string& left_out_fold) {
    const auto [it, fresh] = known_.try_emplace(hardware + "|" + stack + "|" + left_out_fold);
    if (fresh) {
      it->second.residuals = residuals_of(residuals_, hardware, stack, left_out_fold);
      it->second.reserve_factor = best_reserve_factor(examples_of(predictions_, hardware, stack, left_out_fold),
                                                      cost::Constants{}.reserve_factor);
    }
    return it->second;
  }

 private:
  const std::vector<Prediction>& predictions_;
  std::vector<Residual> residuals_;
  std::map<std::string, Margins> known_;
};

std::vector<std::pair<std::string, double>> shares_of(const plan::TimeBreakdown& time) {
  const double total = time.total();
  return {{"compute", time.compute / total}, {"tp_comm", time.tp_comm / total},     {"dp_comm", time.dp_comm / total},
          {"pp_comm", time.pp_comm / total}, {"cp_comm", time.cp_comm / total},     {"ep_comm", time.ep_comm / total},
          {"bubble", time.bubble / total},   {"optimizer", time.optimizer / total}, {"other", time.other / total}};
}

Scored score(const Measurement& m) {
  return {.id = m.row.id,
          .source = planner::source_family(m.row),
          .hardware = m.reading.question ? m.reading.question->device_kind : m.row.hardware,
          .model = m.row.model,
          .gpus = m.row.gpus.value_or(0),
          .failed = m.failed,
          .cannot_run = m.reading.cannot_run || (m.reading.question && m.reading.question->cannot_run)};
}

Scored score(const Prediction& p, const Margins& margins) {
  const Measurement& m = *p.row;
  const planner::RowQuestion& question = *m.reading.question;
  cost::Price price = p.price;
  const double allocated = price.allocated_bytes();
  price.memory.overhead = (margins.reserve_factor - 1) * allocated + p.communicators;
  price.memory_sigma = margins.residuals.memory;
  const double tokens =
      static_cast<double>(question.batch.global_sequences) * static_cast<double>(question.batch.sequence_length);
  const double rate = tokens / (price.step_seconds() * static_cast<double>(question.layout.world()));
  const double width = std::exp(
      kNinetyPercent * std::hypot(margins.residuals.time, margins.residuals.time_exposed * price.exposed_share));
  Scored scored = score(m);
  scored.degrees = fmt::format("tp={},pp={}", question.layout.tp, question.layout.pp);
  scored.micro = question.batch.micro;
  scored.measured = question.tokens_per_second_per_gpu;
  if (m.failed) scored.measured.reset();
  scored.predicted = rate;
  scored.low = rate / width;
  scored.high = rate * width;
  scored.measured_memory = question.memory_gib;
  scored.predicted_memory = (question.memory_is_reserved ? p.memory_bytes : allocated) / kGiB;
  scored.predicted_fits = price.fits() && !question.cannot_run;
  scored.out_of_memory_probability = price.out_of_memory_probability();
  scored.shares = shares_of(price.time);
  return scored;
}

FitProgress progress_on_stderr(const char* what) {
  return {[what](std::size_t done, std::size_t total) {
    if (done % 10 == 0 || done == total) fmt::print(stderr, "{}: {} of {} folds\n", what, done, total);
  }};
}

std::string fold_key(const Measurement& m) { return m.fold; }
std::string stack_key(const Measurement& m) {
  return m.reading.question ? m.hardware + "|" + m.reading.question->stack : "";
}

std::vector<Prediction> predict_without(const std::vector<Measurement>& all, const std::map<std::string, Fit>& fits,
                                        const GroupOf& group) {
  std::vector<Prediction> predictions;
  for (const Measurement& m : all) {
    if (!m.pricer) continue;
    const auto found = fits.find(group(m));
    if (found != fits.end()) predictions.push_back(predict(m, found->second));
  }
  return predictions;
}

AccuracyReport report_of(const std::vector<Measurement>& all, const std::vector<Prediction>& predictions) {
  AccuracyReport report;
  MarginTable margins(predictions);
  for (const Prediction& p : predictions) {
    const Measurement& m = *p.row;
    const Scored scored = score(p, margins.of(m.hardware, m.reading.question->stack, m.fold));
    if (is_grid(m)) report.grid.push_back(scored);
    if (!is_grid(m) && m.strict && scored.measured) report.rates.push_back(scored);
  }
  for (const Measurement& m : all) {
    if (m.pricer || !is_grid(m)) continue;
    Scored scored = score(m);
    if (m.reading.cannot_run) scored.predicted_fits = false;
    report.grid.push_back(std::move(scored));
  }
  return report;
}

void write_report(const AccuracyReport& report, const fs::path& folder) {
  fs::create_directories(folder);
  write_file_atomically(folder / "accuracy-rates.svg", rate_picture(report));
  write_file_atomically(folder / "accuracy-memory.svg", memory_picture(report));
  write_file_atomically(folder / "accuracy.md", to_markdown(report, "accuracy-rates.svg"));
  write_file_atomically(folder / "accuracy.html", to_html(report));
}

// Why a claim is not reached, by term; only what does not hold is printed.
std::vector<std::string> remarks_of(const AccuracyReport& report) {
  std::vector<std::string> remarks;
  for (const Target& target : targets_of(report)) {
    if (target.holds()) continue;
    if (target.what.find("memory") != std::string::npos) {
      remarks.push_back(
          "Memory: the grid mixes two behaviours that no column tells apart. Some runs of a layout were ten times "
          "slower "
          "than their neighbours (a pipeline slot of about one second, whatever it computes), and these hold no "
          "gathered "
          "inputs, so they use up to half the memory of the same layout at full speed.");
    }
    if (target.what.find("tau") != std::string::npos || target.what.find("regret") != std::string::npos) {
      remarks.push_back(
          "Ranking: those slow runs are a fifth of the 8.86B rows and most of those on 512 GPUs; neighbours in "
          "micro-batch alone differ by factors of three to ten. A model without noise cannot order them.");
    }
  }
  std::sort(remarks.begin(), remarks.end());
  remarks.erase(std::unique(remarks.begin(), remarks.end()), remarks.end());
  return remarks;
}

std::string rows_csv(const std::vector<Prediction>& predictions) {
  std::string text =
      "id,file,hardware,stack,strict,failed,layout,micro,accumulation,measured_seconds,predicted_seconds,measured_gib,"
      "predicted_gib,compute,tp_comm,dp_comm,pp_comm,bubble,optimizer,other,stall_probability,stalled_seconds,"
      "ordinary_seconds,fits,oom\n";
  for (const Prediction& p : predictions) {
    const Measurement& m = *p.row;
    const planner::RowQuestion& question = *m.reading.question;
    const plan::TimeBreakdown& time = p.price.time;
    text += fmt::format(
        "{},{},{},{},{},{},\"{}\",{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}\n", m.row.id, m.file,
        m.hardware, question.stack, m.strict, m.failed, plan::to_string(question.layout), question.batch.micro,
        question.batch.accumulation, m.step_seconds.value_or(0), p.price.step_seconds(),
        m.memory_bytes.value_or(0) / kGiB, p.memory_bytes / kGiB, time.compute, time.tp_comm, time.dp_comm,
        time.pp_comm, time.bubble, time.optimizer, time.other, p.price.stall.probability, p.price.stall.seconds,
        p.price.step_seconds() - p.price.stall_seconds, p.price.fits(), p.price.out_of_memory_probability());
  }
  return text;
}

// A model left out: those fits are there. A source, and hardware with a framework: fits of their own.
std::vector<HeldOutColumn> left_out_columns(const std::string& published, const std::vector<Measurement>& all,
                                            const std::map<std::string, Fit>& by_model, int threads) {
  std::vector<HeldOutColumn> columns = score_left_out(all, by_model, LeftOut::kModel, false);
  for (HeldOutColumn& column : hold_out(
           all,
           {.published = published, .threads = threads, .columns = {LeftOut::kSource, LeftOut::kHardwareFramework}})) {
    columns.push_back(std::move(column));
  }
  return columns;
}

// `grid_alone`: folds and fits of the grid's rows, in a minute.
int run_accuracy(const std::string& published, const std::string& folder, const std::string& rows_file, int threads,
                 bool grid_alone) {
  const Stopwatch watch;
  FoldEffort effort;
  if (grid_alone) effort.accept = is_grid;
  const Fit whole = fit_all(published, threads, effort.most_rows_of_a_source, effort.accept);
  fmt::print(stderr, "whole fit after {}\n", format_seconds(watch.seconds()));
  const std::map<std::string, Fit> fits =
      fit_without_each(published, whole, fold_key, threads, progress_on_stderr("cross-validation"), effort);
  const std::vector<Measurement> all = load_measurements(published);
  const std::vector<Prediction> predictions = predict_without(all, fits, fold_key);
  AccuracyReport report = report_of(all, predictions);
  if (!grid_alone) report.left_out = left_out_columns(published, all, fits, threads);
  report.method = fmt::format(
      "{} folds: whole (source, model) groups are left out of the fit that predicts them; {} of {} rows priced; {}",
      fits.size(), predictions.size(), all.size(), format_seconds(watch.seconds()));
  report.remarks = remarks_of(report);
  fmt::print("{}", to_text(report, telemetry::TerminalStyle{}));
  if (!folder.empty()) write_report(report, folder);
  if (!rows_file.empty()) write_file_atomically(rows_file, rows_csv(predictions));
  return 0;
}

void print_held_out(const std::vector<HeldOutColumn>& columns, bool complete_alone) {
  for (const HeldOutColumn& column : columns) {
    std::vector<Scored> rows = column.rows;
    if (complete_alone) std::erase_if(rows, [](const Scored& s) { return !s.complete; });
    const ErrorSummary error = rate_error(rows);
    const ErrorSummary memory = memory_error(rows);
    const IntervalSummary interval = interval_quality(rows);
    fmt::print(
        "{:24} {} {} n={:4} bias {:+6.1f}% median {:5.1f}% mean {:5.1f}% cover {:5.1f}% width {:5.1f}%  mem n={} "
        "{:+.1f}% {:.1f}% {:.1f}%\n",
        column.left_out, column.observed, complete_alone ? "complete" : "all", error.n, 100 * error.bias,
        100 * error.median, 100 * error.mean, 100 * interval.coverage, 100 * interval.median_half_width, memory.n,
        100 * memory.bias, 100 * memory.median, 100 * memory.mean);
  }
}

int run_held_out(const std::string& published, const std::string& rows_file, int threads, bool held_back) {
  const std::vector<Measurement> all = load_measurements(published);
  const std::vector<HeldOutColumn> columns =
      hold_out(all, {.published = published,
                     .threads = threads,
                     .held_back = held_back,
                     .columns = {LeftOut::kSource, LeftOut::kHardwareFramework}});
  print_held_out(columns, true);
  print_held_out(columns, false);
  std::string text = "left_out,observed,id,source,hardware,model,gpus,complete,measured,predicted,low,high,mem,pmem\n";
  for (const HeldOutColumn& column : columns) {
    for (const Scored& s : column.rows) {
      text += fmt::format("{},{},{},\"{}\",{},{},{},{},{},{},{},{},{},{}\n",
                          column.left_out == to_string(LeftOut::kHardwareFramework) ? "hwfw" : column.left_out,
                          column.observed, s.id, s.source, s.hardware, s.model, s.gpus, s.complete,
                          s.measured.value_or(0), s.predicted.value_or(0), s.low.value_or(0), s.high.value_or(0),
                          s.measured_memory.value_or(0), s.predicted_memory.value_or(0));
    }
  }
  if (!rows_file.empty()) write_file_atomically(rows_file, text);
  return 0;
}

cost::Profile profile_of(const std::string& hardware, const std::string& stack, const cost::Constants& constants,
                         const cost::StackFacts& facts, const Margins& margins, std::int64_t runs,
                         const cost::Stalls& stalls = {}) {
  cost::Profile profile;
  profile.provenance.hardware = hardware;
  profile.provenance.software = stack;
  profile.provenance.version = LOCKSTEP_VERSION;
  profile.provenance.date = utc_timestamp(unix_seconds());
  profile.provenance.method = "validation_fit over validation/published";
  profile.fitted = cost::Fitted{.hardware = hardware,
                                .stack = stack,
                                .runs = runs,
                                .constants = constants,
                                .facts = facts,
                                .residuals = margins.residuals,
                                .stalls = stalls};
  profile.fitted->constants.reserve_factor = margins.reserve_factor;
  return profile;
}

int run_profiles(const std::string& published, const std::string& folder, int threads) {
  const Fit whole = fit_all(published, threads);
  const FoldEffort quick{.iterations = 5, .widenings = {2, 1}, .most_rows_of_a_source = 80};
  const std::map<std::string, Fit> by_fold =
      fit_without_each(published, whole, fold_key, threads, progress_on_stderr("cross-validation"), quick);
  const std::map<std::string, Fit> by_stack = fit_without_each(
      published, Fit{}, stack_key, threads, progress_on_stderr("without each stack"), HeldOutOptions{}.effort);
  const std::vector<Measurement> all = load_measurements(published);
  const std::vector<Prediction> seen = predict_without(all, by_fold, fold_key);
  const std::vector<Prediction> unseen = predict_without(all, by_stack, stack_key);
  MarginTable seen_margins(seen);
  MarginTable unseen_margins(unseen);

  std::map<std::pair<std::string, std::string>, std::int64_t> runs;
  std::map<std::string, std::int64_t> hardware_runs;
  for (const Measurement& m : all) {
    if (!m.pricer || !m.step_seconds) continue;
    ++runs[{m.hardware, m.reading.question->stack}];
    ++hardware_runs[m.hardware];
  }
  fs::create_directories(folder);
  const auto save = [&](const std::string& name, const cost::Profile& profile) {
    cost::save_profile(profile, (fs::path(folder) / (name + ".json")).string());
  };
  for (const auto& [hardware, count] : hardware_runs) {
    Margins margins = unseen_margins.of(hardware, "", "");
    // A stack that nobody has seen is not known better than one that was.
    for (const auto& [key, ignored] : runs) {
      if (key.first != hardware) continue;
      const cost::Residuals& known = seen_margins.of(key.first, key.second, "").residuals;
      margins.residuals.memory = std::max(margins.residuals.memory, known.memory);
    }
    save(hardware, profile_of(hardware, "generic", whole.at(hardware, ""), cost::StackFacts{}, margins, count));
  }
  // What a stack that nobody fitted begins as, by what stacks built like it have in common.
  const std::pair<const char*, const char*> peers[] = {{"peers-fsdp", "pytorch"},
                                                       {"peers-te", "nemo-24"},
                                                       {"peers-megatron", "megatron-2022"},
                                                       {"peers-jax", "maxtext"}};
  for (const auto& [hardware, count] : hardware_runs) {
    for (const auto& [name, like] : peers) {
      save(fmt::format("{}-{}", hardware, name),
           profile_of(hardware, name, whole.at(hardware, name), planner::stack_facts(like),
                      unseen_margins.of(hardware, "", ""), count));
    }
  }
  for (const auto& [key, count] : runs) {
    const auto& [hardware, stack] = key;
    if (stack.empty()) continue;
    save(fmt::format("{}-{}", hardware, stack),
         profile_of(hardware, stack, whole.at(hardware, stack), planner::stack_facts(stack),
                    seen_margins.of(hardware, stack, ""), count, whole.stalls_at(hardware, stack)));
  }
  fmt::print("{} profiles in {}\n", runs.size() + hardware_runs.size(), folder);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Fits the constants of the cost model to published runs, and says how well they predict");
  std::string published = "validation/published";
  std::string profiles;
  std::string report;
  std::string rows;
  int threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  app.add_option("--published", published, "folder of the CSV files");
  app.add_option("--profiles", profiles, "write the profiles there");
  app.add_option("--report", report, "cross-validate and write the report there");
  app.add_option("--rows", rows, "with --report: every cross-validated row as CSV");
  bool grid_alone = false;
  app.add_flag("--grid", grid_alone, "the runs of the H100 grid alone, in a minute");
  bool held_out = false;
  bool held_back = false;
  app.add_flag("--held-out", held_out, "the three columns alone");
  app.add_flag("--held-back", held_back, "score the sources that are held back instead of the others");
  app.add_option("--threads", threads, "of the fit")->check(CLI::Range(1, 256));
  CLI11_PARSE(app, argc, argv);
  try {
    if (!profiles.empty()) return run_profiles(published, profiles, threads);
    if (held_out) return run_held_out(published, rows, threads, held_back);
    return run_accuracy(published, report, rows, threads, grid_alone);
  } catch (const UserError& error) {
    fmt::print(stderr, "{}\n", error.what());
    return static_cast<int>(error.code());
  }
}
