#include "lockstep/cli/show.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lockstep/base/counted.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/plan/layout.h"
#include "lockstep/plan/run.h"
#include "lockstep/spec/discovery.h"

namespace lockstep::cli {
namespace {

constexpr double kSmallShare = 0.25;

const plan::Interval& rate_of(const plan::Prediction& prediction, bool tokens) {
  return tokens ? prediction.tokens_per_second : prediction.samples_per_second;
}

void row(std::FILE* out, const std::string& name, const std::string& value) {
  fmt::print(out, "  {:<12} {}\n", name, value);
}

std::string batch_text(const plan::Run& run) {
  const plan::BatchPlan& batch = run.batch;
  const std::int64_t ranks = run.layout.data_ranks();
  const bool even = batch.global_sequences == batch.micro * batch.accumulation * ranks;
  std::string text = fmt::format("{} samples {} micro {} x {} accumulation x {} data ranks", batch.global_sequences,
                                 even ? "=" : "over", batch.micro, batch.accumulation, ranks);
  if (batch.sequence_length > 0) {
    text += fmt::format(", {} tokens", batch.global_sequences * batch.sequence_length);
  }
  if (!run.schedule.is_constant()) text += "; samples of a step: " + spec::to_string(run.schedule);
  return text;
}

// Sharded state without a stage written beside it is ZeRO-3.
std::string zero_text(const plan::Layout& layout) {
  const bool said = plan::to_string(layout).find("zero=") != std::string::npos;
  return layout.zero == 0 || said ? "" : fmt::format(" (ZeRO-{})", layout.zero);
}

}  // namespace

std::string accuracy_text(const nlohmann::json& evaluation) {
  const auto found = evaluation.find("accuracy");
  if (found == evaluation.end() || !found->is_number()) return "";
  return fmt::format(", accuracy {:.2f}%", 100 * found->get<double>());
}

double number_or_nan(const nlohmann::json& object, const char* key) {
  return object.contains(key) && object.at(key).is_number() ? object.at(key).get<double>() : NAN;
}

std::string memory_bar(const plan::MemoryBreakdown& memory, int width) {
  const struct {
    double bytes;
    char mark;
  } parts[] = {{memory.parameters, 'P'},  {memory.gradients, 'G'}, {memory.optimizer, 'O'},
               {memory.activations, 'A'}, {memory.buffers, 'B'},   {memory.overhead, 'x'}};
  // A small model would not show against the whole device: its bar is the composition alone.
  const bool small = memory.total() < kSmallShare * memory.capacity;
  const double full = small ? memory.total() : std::max(memory.capacity, memory.total());
  std::string cells;
  double so_far = 0;
  for (const auto& part : parts) {
    so_far += part.bytes;
    const auto end = static_cast<std::size_t>(std::lround(so_far / full * width));
    if (end > cells.size()) cells.append(end - cells.size(), part.mark);
  }
  cells.resize(static_cast<std::size_t>(width), '.');
  return fmt::format("[{}] {} of {}", cells, format_bytes(memory.total()), format_bytes(memory.capacity));
}

void show_plan(std::FILE* out, const spec::Job& job, const plan::Plan& plan, const Placement& placement) {
  const plan::Candidate& best = plan.best;
  const bool tokens = best.batch.sequence_length > 0;
  fmt::print(out, "{}: {} ({} parameters)\n", job.name, job.model.name,
             format_count(static_cast<double>(spec::parameter_count(job.model))));
  row(out, "where",
      fmt::format("{}: {} x {}, {}", job.cluster.name, counted(placement.world, "rank"),
                  counted(placement.threads, "thread"), placement.backend));
  row(out, "layout",
      fmt::format("{}{}, {}", plan::to_string(best.layout), zero_text(best.layout),
                  spec::to_string(best.layout.precision)));
  row(out, "batch", batch_text(plan::run_of(job, best)));
  row(out, "memory/rank", memory_bar(best.memory, 30));
  row(out, "", "P parameters, G gradients, O optimizer, A activations, B buffers, x framework");
  if (best.memory.snapshots > 0) {
    row(out, "snapshots", fmt::format("{} of host memory per rank, for recovery", format_bytes(best.memory.snapshots)));
  }
  if (best.prediction) {
    const plan::Interval& rate = rate_of(*best.prediction, tokens);
    const char* unit = tokens ? "tokens" : "samples";
    row(out, "predicted",
        fmt::format("{} ({} to {})", format_rate(rate.expected, unit), format_rate(rate.low, unit),
                    format_rate(rate.high, unit)));
  } else {
    // A module is measured by itself; what it exchanges is not in its file.
    const std::string what = job.model.is_scripted()
                                 ? fmt::format("--ranks {} --backend {}", placement.world, placement.backend)
                                 : std::string("JOB");
    row(out, "predicted",
        fmt::format("not known: this machine was not measured with {}, {} and {}; run `lockstep calibrate {}` once",
                    spec::to_string(job.precision), counted(placement.world, "rank"), placement.backend, what));
  }
  fmt::print(out, "\n");
  std::fflush(out);
}

void show_run_summary(std::FILE* out, const nlohmann::json& result) {
  const bool tokens = result.at("tokens_per_second").is_number();
  const char* unit = tokens ? "tokens" : "samples";
  const nlohmann::json& measured = result.at(tokens ? "tokens_per_second" : "samples_per_second");
  const nlohmann::json& predicted = result.at(tokens ? "predicted_tokens_per_second" : "predicted_samples_per_second");
  fmt::print(out, "\n{}: {} after {} of {} in {}\n", result.value("run", ""), result.value("status", ""),
             result.value("steps", 0), counted(result.value("steps_total", 0), "step"),
             format_seconds(result.value("training_seconds", 0.0)));
  if (result.at("final_loss").is_null() && !measured.is_number()) {
    fmt::print(out, "  nothing was left to do\n");
    return;
  }
  row(out, "layout", fmt::format("{}, {}", result.value("layout", ""), result.value("precision", "")));
  row(out, "loss", fmt::format("{:.4f}", number_or_nan(result, "final_loss")));
  const nlohmann::json& evaluations = result.at("evaluations");
  if (!evaluations.empty()) {
    const nlohmann::json& last = evaluations.back();
    std::string text = fmt::format("loss {:.4f}{}", number_or_nan(last, "loss"), accuracy_text(last));
    if (evaluations.size() > 1) {
      text += fmt::format(" (loss was {:.4f} at step {})", number_or_nan(evaluations.front(), "loss"),
                          evaluations.front().value("step", 0));
    }
    row(out, "held out", text);
  }
  row(out, "measured", format_rate(measured.is_number() ? measured.get<double>() : 0.0, unit));
  if (predicted.is_number() && measured.is_number()) {
    const double off = measured.get<double>() / predicted.get<double>() - 1.0;
    row(out, "predicted",
        fmt::format("{}  (measured {:+.1f}%)", format_rate(predicted.get<double>(), unit), 100 * off));
  }
  if (result.at("mfu_or_efficiency").is_number()) {
    row(out, "efficiency",
        fmt::format("{:.1f}% of the best matrix product seen here",
                    100 * result.at("mfu_or_efficiency").get<double>()));
  }
  row(out, "memory/rank", format_bytes(result.value("peak_memory_bytes", 0.0)) + " at the peak");
}

void note_discovery(const spec::Cluster& cluster) {
  if (cluster.name.rfind(spec::kDiscoveredName, 0) != 0) return;
  fmt::print(stderr, "lockstep: the cluster is {}\n", cluster.name.substr(std::string(spec::kDiscoveredName).size()));
  for (const std::string& line : spec::discover_cluster().assumptions) fmt::print(stderr, "lockstep:   {}\n", line);
}

}  // namespace lockstep::cli
