#include "lockstep/sim/failures/named.h"

#include <algorithm>
#include <array>

namespace lockstep::sim {
namespace {

constexpr double kDay = 86400.0;

constexpr std::array kNamed = {
    NamedFailures{
        .name = "llama3",
        .what = "Llama 3 405B: 419 unexpected interruptions in 54 days on 2,048 nodes, over 90% effective",
        .source = "Grattafiori et al. 2024, The Llama 3 Herd of Models, section 3.3.4; 24,000 GPUs were there",
        .nodes = 2048,
        .days = 54,
        .spares = 952,
        .interruptions = 419,
        .published_restarts = 419,
        .published_share = 0.90,
        .published_share_least = true},
    NamedFailures{.name = "opt175b",
                  .what = "OPT-175B: about 2 of 124 nodes go down a day, about 90 restarts from 11 November 2021 to 6 "
                          "January 2022 for 33 days of training, 12 spare nodes at the end",
                  .source = "facebookresearch/metaseq, projects/OPT/chronicles (final update and 27% update)",
                  .nodes = 124,
                  .days = 56,
                  .spares = 12,
                  .faults = 2 * 56,
                  .published_restarts = 90,
                  .published_share = 33.0 / 56.0},
    NamedFailures{.name = "infinitehbd",
                  .what = "400 servers of a cluster for pre-training over 348 days: 583 faults, in bursts",
                  .source = "Shou et al. 2025, InfiniteHBD, and its fault trace (stepfun-ai/InfiniteHBD-Trace)",
                  .nodes = 400,
                  .days = 348,
                  .faults = 583},
};

GoodputRow simulate(const FaultSource& source, const GoodputQuestion& question, bool from_memory) {
  RunOnNodes run = question.run;
  run.from_memory = from_memory;
  return goodput_row(source, question, run, from_memory ? "state from memory" : "state from disk");
}

}  // namespace

std::span<const NamedFailures> named_failures() { return kNamed; }

const NamedFailures* find_named_failures(std::string_view name) {
  const auto found = std::ranges::find(kNamed, name, &NamedFailures::name);
  return found == kNamed.end() ? nullptr : &*found;
}

std::unique_ptr<FaultSource> faults_like(const NamedFailures& named, bool independent) {
  const double per_node_second = 1.0 / (named.nodes * named.days * kDay);
  // A burst interrupts a run once.
  const double faults =
      named.faults > 0 ? named.faults : named.interruptions * (independent ? 1.0 : usual_bursts(1.0).mean_size());
  BurstModel bursts = usual_bursts(faults * per_node_second);
  if (independent) return independent_faults(faults * per_node_second, std::move(bursts.repair));
  return faults_in_bursts(std::move(bursts));
}

double PublishedRun::published_seconds_per_restart() const {
  if (named->published_share <= 0 || named->published_restarts <= 0) return 0.0;
  return (1.0 - named->published_share) * named->days * kDay / named->published_restarts;
}

std::vector<PublishedRun> published_runs(const GoodputQuestion& question) {
  std::vector<PublishedRun> runs;
  for (const NamedFailures& named : kNamed) {
    if (named.published_share <= 0) continue;
    const auto source = faults_like(named);
    GoodputQuestion own = question;
    own.run.nodes = named.nodes;
    own.run.nodes_per_replica = 1;
    own.run.spares = named.spares;
    own.seconds = named.days * kDay;
    runs.push_back({&named, simulate(*source, own, false), simulate(*source, own, true)});
  }
  return runs;
}

nlohmann::json to_json(const std::vector<PublishedRun>& runs) {
  nlohmann::json list = nlohmann::json::array();
  for (const PublishedRun& run : runs) {
    const NamedFailures& named = *run.named;
    list.push_back({{"name", named.name},
                    {"what", named.what},
                    {"source", named.source},
                    {"nodes", named.nodes},
                    {"spares", named.spares},
                    {"days", named.days},
                    {"published",
                     {{"restarts", named.published_restarts},
                      {"goodput", named.published_share},
                      {"goodput_is_least", named.published_share_least},
                      {"seconds_per_restart", run.published_seconds_per_restart()}}},
                    {"from_disk", to_json(run.from_disk)},
                    {"from_memory", to_json(run.from_memory)}});
  }
  return {{"schema", "lockstep.published_runs/1"}, {"runs", std::move(list)}};
}

}  // namespace lockstep::sim
