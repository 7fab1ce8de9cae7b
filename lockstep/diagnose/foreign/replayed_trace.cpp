#include "lockstep/diagnose/foreign/replayed_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <tuple>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/diagnose/foreign/source.h"

namespace lockstep::diagnose {
namespace {

using sim::Operation;
using sim::OperationKind;

constexpr std::uint64_t kLargestTrace = std::uint64_t{4} << 30;
using Worker = std::pair<int, int>;  // data rank, stage

double share_off(double simulated, double measured) {
  return measured > 0.0 ? std::abs(simulated - measured) / measured : 0.0;
}

template <class Of>
ReplayError error_of(const std::vector<ReplayedStep>& steps, Of&& simulated) {
  ReplayError error;
  for (const ReplayedStep& step : steps) {
    const double off = share_off(simulated(step.figures), step.figures.recorded_seconds);
    error.mean += off / static_cast<double>(steps.size());
    error.worst = std::isnan(off) ? off : std::max(error.worst, off);
  }
  return error;
}

std::optional<Finding> worst_of(const StragglerFigures& figures) {
  Diagnosis diagnosis;
  diagnosis.findings = straggler_findings(figures);
  settle(diagnosis);
  if (diagnosis.findings.empty()) return std::nullopt;
  return std::move(diagnosis.findings.front());
}

std::string text_of(const Worker& worker) {
  return fmt::format("data rank {} of stage {}", worker.first, worker.second);
}

// Why a step cannot be replayed as what it was; empty where it can.
std::string problem_of(const std::vector<Operation>& step, int data_ranks, int stages) {
  std::set<std::tuple<Worker, OperationKind, int>> seen;
  std::map<Worker, std::pair<int, int>> computes;  // forwards, backwards
  for (const Operation& one : step) {
    const Worker worker{one.data_rank, one.stage};
    if (!seen.insert({worker, one.kind, one.sequence}).second) {
      return fmt::format("{} {} of {} is there twice", to_string(one.kind), one.sequence, text_of(worker));
    }
    auto& [forwards, backwards] = computes[worker];
    forwards += one.kind == OperationKind::kForwardCompute ? 1 : 0;
    backwards += one.kind == OperationKind::kBackwardCompute ? 1 : 0;
  }
  for (int stage = 0; stage < stages; ++stage) {
    for (int data_rank = 0; data_rank < data_ranks; ++data_rank) {
      const auto own = computes.find({data_rank, stage});
      if (own == computes.end()) return fmt::format("nothing of {}", text_of({data_rank, stage}));
      const auto& [forwards, backwards] = own->second;
      if (forwards != backwards) {
        return fmt::format("{} forwards and {} backwards of {}", forwards, backwards, text_of(own->first));
      }
      if (const auto& first = computes.at({0, stage}); own->second != first) {
        return fmt::format("{} micro-batches of {}, where data rank 0 has {}", forwards, text_of(own->first),
                           first.first);
      }
    }
  }
  return "";
}

void check_workers(const std::vector<Operation>& operations, const std::string& name) {
  std::map<Worker, int> ranks;
  for (const Operation& one : operations) {
    const auto [place, is_new] = ranks.try_emplace({one.data_rank, one.stage}, one.rank);
    if (is_new || place->second == one.rank) continue;
    throw bad_input(fmt::format("ranks {} and {} are both {}", place->second, one.rank, text_of(place->first)),
                    "keep the operations of one rank of each tensor-parallel group", {printable(name)});
  }
}

void check_mesh(const std::vector<Operation>& operations, const ReplayedTrace& replayed) {
  const plan::Layout& mesh = *replayed.mesh;
  const auto wrong = [&](const std::string& problem) {
    return bad_input(fmt::format("{}, --mesh {} says otherwise", problem, plan::to_string(mesh)),
                     "give the mesh that the trace was recorded on", {printable(replayed.name)});
  };
  if (mesh.pp != replayed.stages) throw wrong(fmt::format("the trace has {} stages", replayed.stages));
  if (mesh.data_ranks() != replayed.data_ranks && mesh.data_ranks() * mesh.cp != replayed.data_ranks) {
    throw wrong(fmt::format("the trace has {} data ranks", replayed.data_ranks));
  }
  int last_rank = 0, chunks = 1;
  for (const Operation& one : operations) {
    last_rank = std::max(last_rank, one.rank);
    chunks = std::max(chunks, one.chunk + 1);
  }
  if (last_rank >= mesh.world()) throw wrong(fmt::format("the trace has a rank {}", last_rank));
  if (mesh.virtual_stages > 1 && mesh.virtual_stages != chunks) {
    throw wrong(fmt::format("the trace has {} chunks of the model on a worker", chunks));
  }
}

nlohmann::json number(double value) { return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json(); }

nlohmann::json to_json(const ReplayError& error) {
  return {{"mean", number(error.mean)}, {"worst", number(error.worst)}};
}

void put_cause(nlohmann::json& to, const std::optional<Finding>& worst) {
  to["cause"] = worst ? nlohmann::json(to_string(worst->cause)) : nlohmann::json();
  to["ranks"] = worst ? nlohmann::json(worst->ranks) : nlohmann::json::array();
}

}  // namespace

double ReplayedStep::error() const { return share_off(figures.simulated_seconds, figures.recorded_seconds); }

double ReplayedStep::slow_down() const {
  return figures.ideal_seconds > 0.0 ? figures.replayed_seconds / figures.ideal_seconds : 1.0;
}

double ReplayedTrace::simulated_seconds() const {
  double sum = 0.0;
  for (const ReplayedStep& step : steps) sum += step.figures.simulated_seconds;
  return steps.empty() ? 0.0 : sum / static_cast<double>(steps.size());
}

ReplayError ReplayedTrace::error() const {
  return error_of(steps, [](const StragglerFigures::Step& step) { return step.simulated_seconds; });
}

ReplayError ReplayedTrace::error_foretold() const {
  return error_of(steps, [](const StragglerFigures::Step& step) { return step.foretold_seconds; });
}

ReplayError ReplayedTrace::error_without_pauses() const {
  return error_of(steps, [](const StragglerFigures::Step& step) { return step.replayed_seconds; });
}

ReplayedTrace replay_trace(const std::vector<Operation>& operations, std::string name,
                           const std::optional<plan::Layout>& mesh) {
  ReplayedTrace replayed{.name = std::move(name), .mesh = mesh};
  for (const Operation& one : operations) {
    replayed.data_ranks = std::max(replayed.data_ranks, one.data_rank + 1);
    replayed.stages = std::max(replayed.stages, one.stage + 1);
  }
  check_workers(operations, replayed.name);
  if (mesh) check_mesh(operations, replayed);

  std::map<std::int64_t, std::vector<Operation>> by_step;
  for (const Operation& one : operations) by_step[one.step].push_back(one);
  std::vector<Operation> whole;
  std::map<std::int64_t, std::optional<Finding>> worst;
  for (const auto& [step, own] : by_step) {
    std::string why = problem_of(own, replayed.data_ranks, replayed.stages);
    if (why.empty()) {
      try {
        worst[step] = worst_of(straggler_figures(own));
      } catch (const UserError& error) {  // its operations wait for each other
        why = error.what();
      }
    }
    if (why.empty()) {
      whole.insert(whole.end(), own.begin(), own.end());
    } else {
      replayed.left_out.push_back({step, std::move(why)});
    }
  }
  if (whole.empty()) {
    throw bad_input(
        fmt::format("no step is whole; step {}: {}", replayed.left_out.front().step, replayed.left_out.front().why),
        "give all operations of all workers", {printable(replayed.name)});
  }
  replayed.figures = straggler_figures(whole);
  replayed.worst = worst_of(replayed.figures);
  for (const StragglerFigures::Step& step : replayed.figures.per_step)
    replayed.steps.push_back({step, std::move(worst.at(step.step))});
  return replayed;
}

ReplayedTrace replay_file(const std::filesystem::path& file, const std::optional<plan::Layout>& mesh) {
  std::error_code error;
  if (!std::filesystem::exists(file, error)) throw environment_error(printable_path(file) + " is not there");
  if (std::filesystem::is_directory(file, error)) {
    throw bad_input(printable_path(file) + " is a folder", "give a trace of operations (CSV, plain or gzip)");
  }
  const std::string name = file.string();
  return replay_trace(read_operations(read_all(*open_source(file), name, kLargestTrace), name), name, mesh);
}

nlohmann::json to_json(const ReplayedTrace& replayed) {
  nlohmann::json steps = nlohmann::json::array(), left_out = nlohmann::json::array();
  for (const ReplayedStep& step : replayed.steps) {
    const StragglerFigures::Step& figures = step.figures;
    nlohmann::json row = {{"step", figures.step},
                          {"measured_seconds", figures.recorded_seconds},
                          {"simulated_seconds", figures.simulated_seconds},
                          {"error", step.error()},
                          {"foretold_seconds", number(figures.foretold_seconds)},
                          {"without_pauses_seconds", figures.replayed_seconds},
                          {"straggler_free_seconds", figures.ideal_seconds},
                          {"slowdown", step.slow_down()}};
    put_cause(row, step.worst);
    steps.push_back(std::move(row));
  }
  for (const StepLeftOut& step : replayed.left_out) left_out.push_back({{"step", step.step}, {"why", step.why}});
  nlohmann::json document = {
      {"schema", "lockstep.replay/1"},
      {"trace", printable(replayed.name, 4096)},
      {"mesh", replayed.mesh ? nlohmann::json(plan::to_string(*replayed.mesh)) : nlohmann::json()},
      {"data_ranks", replayed.data_ranks},
      {"stages", replayed.stages},
      {"measured_seconds", replayed.figures.recorded_seconds},
      {"simulated_seconds", replayed.simulated_seconds()},
      {"without_pauses_seconds", replayed.figures.replayed_seconds},
      {"straggler_free_seconds", replayed.figures.ideal_seconds},
      {"slowdown", replayed.figures.slow_down()},
      {"evidence", replayed.worst ? nlohmann::json(replayed.worst->evidence) : nlohmann::json()},
      {"fix", replayed.worst ? nlohmann::json(replayed.worst->fix) : nlohmann::json()},
      {"error", to_json(replayed.error())},
      {"error_foretold", to_json(replayed.error_foretold())},
      {"error_without_pauses", to_json(replayed.error_without_pauses())},
      {"steps", std::move(steps)},
      {"left_out", std::move(left_out)}};
  put_cause(document, replayed.worst);
  return document;
}

}  // namespace lockstep::diagnose
