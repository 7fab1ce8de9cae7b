// `lockstep export RUN --to FILE`: a run for other tools.
#include <fmt/format.h>

#include <charconv>
#include <chrono>
#include <fstream>
#include <iostream>
#include <thread>

#include "lockstep/base/counted.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/cli/signals.h"
#include "lockstep/cli/trained.h"
#include "lockstep/cli/verbs.h"
#include "lockstep/report/export/export.h"
#include "lockstep/report/export/tensorboard.h"
#include "lockstep/report/run_report.h"
#include "lockstep/telemetry/recorder.h"
#include "lockstep/telemetry/run_store.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;
using report::ExportSelection;
using report::TraceResult;

const std::vector<std::string> kFormats = {"csv",         "json",     "jsonl", "parquet",
                                           "tensorboard", "perfetto", "trace", "weights"};
constexpr std::size_t kTraceSteps = 20;  // unless --steps says which

struct ExportOptions {
  std::string run = "last", to, format, steps;
  ExportSelection selection;
  bool is_long = false, follow = false, json = false;
};

// "100..110", "100..", "..110", "100".
void parse_steps(const std::string& text, ExportSelection& selection) {
  const auto number = [&](const std::string& word, std::int64_t otherwise) {
    if (word.empty()) return otherwise;
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (error != std::errc() || end != word.data() + word.size())
      throw bad_input(fmt::format("--steps: '{}' is not a range of steps", printable(text)), "write it as 100..110");
    return value;
  };
  const std::size_t dots = text.find("..");
  const bool single = dots == std::string::npos;
  selection.first_step = number(text.substr(0, dots), selection.first_step);
  selection.last_step = single ? selection.first_step : number(text.substr(dots + 2), selection.last_step);
  if (text.empty() || text == ".." || selection.last_step < selection.first_step)
    throw bad_input(fmt::format("--steps: '{}' holds no step", printable(text)), "write it as 100..110");
}

std::string format_of(const ExportOptions& options) {
  if (!options.format.empty()) return options.format;
  const std::string extension = fs::path(options.to).extension().string();
  for (const char* known : {"csv", "json", "jsonl", "parquet"}) {
    if (extension == "." + std::string(known)) return known;
  }
  throw bad_input(fmt::format("the name '{}' does not say which format", printable(options.to)),
                  "add --format " + join(kFormats, "|"));
}

// To a file that appears whole or not at all, or to stdout ("-").
template <class Write>
auto write_to(const std::string& to, const Write& write) {
  if (to == "-") {
    std::ios::sync_with_stdio(false);
    auto result = write(std::cout);
    std::cout.flush();
    return result;
  }
  const fs::path path(to), part(to + ".part");
  const auto check = [&](const std::ostream& out) {
    if (!out) throw environment_error("cannot be written", "check the folder and its disk", {path.string()});
  };
  std::ofstream out(part, std::ios::binary);
  check(out);
  auto result = write(out);
  out.close();
  std::error_code failed;
  if (out) fs::rename(part, path, failed);
  if (!out || failed) {
    fs::remove(part, failed);
    out.setstate(std::ios::failbit);
  }
  check(out);
  return result;
}

// The last steps whose spans are kept, unless some were chosen.
void choose_trace_steps(const telemetry::RunStore& store, const std::string& run, ExportOptions& options) {
  const auto steps = store.span_steps(run, options.selection.ranks.size() == 1 ? options.selection.ranks[0] : -1);
  if (steps.empty())
    throw bad_input(fmt::format("run {} has no spans", printable(run, 100)), "record it with spans on");
  if (options.steps.empty() && steps.size() > kTraceSteps)
    options.selection.first_step = steps[steps.size() - kTraceSteps];
}

void tell_trace(const ExportOptions& options, const TraceResult& result) {
  if (result.steps.empty()) {
    throw bad_input("no step of these has spans", "see `span_steps` of `lockstep export --json`, or leave --steps out");
  }
  if (result.cut) {
    telemetry::warn(fmt::format("only steps {} to {} fit into {} MB; choose others with --steps", result.steps.front(),
                                result.steps.back(), report::kMostTraceBytes / 1'000'000));
  }
  if (options.to == "-") return;
  nlohmann::json overlaps = nlohmann::json::array();
  for (const auto& [rank, overlap] : result.overlaps) {
    overlaps.push_back({{"rank", rank},
                        {"compute_seconds", overlap.compute_seconds},
                        {"comm_seconds", overlap.comm_seconds},
                        {"overlap_seconds", overlap.overlap_seconds},
                        {"overlap", overlap.share()}});
  }
  if (options.json) {
    fmt::print("{}\n", nlohmann::json{{"schema", "lockstep.exported/1"},
                                      {"to", options.to},
                                      {"steps", result.steps},
                                      {"cut", result.cut},
                                      {"overlap", overlaps}}
                           .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    return;
  }
  fmt::print("{}: {} ({} to {})\n", printable(options.to, 200), counted(std::ssize(result.steps), "step"),
             result.steps.front(), result.steps.back());
  for (const auto& [rank, overlap] : result.overlaps) {
    if (overlap.comm_seconds > 0.0)
      fmt::print("rank {}: {:.1f}% of communication behind computing\n", rank, 100.0 * overlap.share());
  }
}

int export_tensorboard(const telemetry::RunStore& store, const telemetry::RunRow& run, const ExportOptions& options) {
  if (!options.follow) report::selected_metrics(store, run.info.id, options.selection);  // says which are unknown
  report::TensorBoardExport exported(options.to, run, options.selection);
  std::size_t points = exported.update(store);
  const auto goes_on = [&] {
    const auto now = store.find(run.info.id);
    return options.follow && now && now->status == telemetry::RunStatus::kRunning;
  };
  count_stop_signals(SecondSignal::kExits);
  while (goes_on() && stop_signals() == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    points += exported.update(store);
  }
  points += exported.update(store);
  if (options.json)
    fmt::print("{}\n",
               nlohmann::json{{"schema", "lockstep.exported/1"}, {"to", options.to}, {"points", points}}.dump());
  else
    fmt::print("{}: {} points; tensorboard --logdir {}\n", printable_path(exported.folder()), points,
               shell_quoted(options.to));
  return 0;
}

int export_table(const telemetry::RunStore& store, const telemetry::RunRow& run, const ExportOptions& options,
                 const std::string& format) {
  write_to(options.to, [&](std::ostream& out) {
    if (format == "csv") report::export_csv(store, run, options.selection, options.is_long, out);
    if (format == "json") report::export_json(store, run, options.selection, out);
    if (format == "jsonl") report::export_json_lines(store, run, options.selection, out);
    if (format == "parquet") report::export_parquet(store, run, options.selection, out);
    return 0;
  });
  if (options.to == "-") return 0;
  if (options.json)
    fmt::print("{}\n", nlohmann::json{{"schema", "lockstep.exported/1"}, {"to", options.to}}.dump());
  else
    fmt::print("{}\n", printable(options.to, 200));
  return 0;
}

// The model of a checkpoint: where a folder is named and no run. What `checkpoint export` writes.
bool is_checkpoint(const ExportOptions& options) {
  std::error_code ignored;
  return options.format == "weights" || (options.format.empty() && fs::is_directory(options.run, ignored));
}

int export_weights(const ExportOptions& options) {
  const ToolAnswer answer = call_tool(
      "checkpoint", {{"action", "export"}, {"path", weights_at(options.run)}, {"output", options.to}}, /*threads=*/1);
  if (options.json)
    fmt::print("{}\n", nlohmann::json{{"schema", "lockstep.exported/1"},
                                      {"to", options.to},
                                      {"step", answer.result.value("step", std::int64_t{0})},
                                      {"tensors", answer.result.value("tensors", 0)}}
                           .dump());
  else
    fmt::print("wrote {} (step {})\n", printable(options.to, 200), answer.result.value("step", std::int64_t{0}));
  return answer.exit_code;
}

int export_run(ExportOptions options) {
  if (is_checkpoint(options)) return export_weights(options);
  const std::string format = format_of(options);
  if (!options.steps.empty()) parse_steps(options.steps, options.selection);
  if (options.follow && format != "tensorboard") throw bad_input("--follow is for --format tensorboard");
  if (options.is_long && format != "csv") throw bad_input("--long is for --format csv");
  const bool makes_folder = format == "tensorboard" || format == "trace";
  if (makes_folder && options.to == "-")
    throw bad_input(fmt::format("{} makes a folder", format), "name one with --to");
  const auto store = telemetry::open_run_store(telemetry::home_directory());
  const telemetry::RunRow run = report::find_run(*store, options.run);
  if (format == "tensorboard") return export_tensorboard(*store, run, options);
  if (format != "perfetto" && format != "trace") return export_table(*store, run, options, format);
  if (!options.selection.metrics.empty()) throw bad_input("--metric is not for traces");
  choose_trace_steps(*store, run.info.id, options);
  if (format == "trace") {
    tell_trace(options, report::export_kineto(*store, run, options.selection, options.to));
  } else {
    tell_trace(options, write_to(options.to, [&](std::ostream& out) {
                 return report::export_perfetto(*store, run, options.selection, out);
               }));
  }
  return 0;
}

}  // namespace

void add_export(CLI::App& app, Outcome& outcome) {
  auto options = std::make_shared<ExportOptions>();
  CLI::App* verb = app.add_subcommand(
      "export", "Writes a run for other tools: tables, TensorBoard, traces; or the weights of a checkpoint");
  verb->add_option("run", options->run,
                   "Run id, its beginning, or `last`; a folder of checkpoints: its newest weights");
  verb->add_option("--to", options->to, "File to write (folder: tensorboard, trace); - is stdout")->required();
  verb->add_option(
          "--format", options->format,
          "csv, json, jsonl, parquet: metrics; tensorboard: event files; perfetto: all ranks in one trace with "
          "flows; trace: one file per rank as PyTorch's profiler writes them; weights: of a checkpoint, for "
          "transformers or "
          "torchvision (default: by the name's ending)")
      ->check(CLI::IsMember(kFormats));
  verb->add_option("--metric", options->selection.metrics, "Only this metric (may be repeated)")
      ->allow_extra_args(false);
  verb->add_option("--rank", options->selection.ranks, "Only this rank (may be repeated)")->allow_extra_args(false);
  verb->add_option("--steps", options->steps,
                   "Only steps A..B (also A.., ..B, A); traces without it: the last 20 whose spans are kept");
  verb->add_flag("--long", options->is_long, "csv: one row per point instead of one per rank and step");
  verb->add_flag("--follow", options->follow, "tensorboard: goes on until the run has ended");
  verb->add_flag("--json", options->json, "What was written, as JSON on stdout (lockstep.exported/1)");
  set_examples(*verb,
               "  lockstep export last --to run.csv\n"
               "  lockstep export last --to run.parquet --metric loss --metric step_seconds\n"
               "  lockstep export last --to boards --format tensorboard --follow\n"
               "  lockstep export last --to step.json --format perfetto --steps 100..110\n"
               "  lockstep export last --to traces --format trace\n"
               "  lockstep export checkpoints --to model");
  verb->callback([options, &outcome] {
    outcome.json = options->json;
    outcome.exit_code = export_run(*options);
  });
}

}  // namespace lockstep::cli
