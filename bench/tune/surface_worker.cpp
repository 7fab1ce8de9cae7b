// A surface as the long-lived evaluator of `lockstep tune --worker`, and a window into it.
//
//   surface_worker --kind nccl6 --instance 3 --noise-seed 1     one JSON line per trial in, one out
//   surface_worker --kind nccl6 --instance 3 --space            the space file
//   surface_worker --kind nccl6 --instance 3 --describe         the same as JSON: levels, activity, rules as tuples
//   surface_worker --kind nccl6 --instance 3 --truth            best by enumeration, default, shares that fail
//   surface_worker --facts 15 [--kinds dev]                     of every kind, instances until 15 count, with their
//                                                               facts; of the laboratory's halves with dev or final
// With --truth-of, every answer also has the noise-free "truth" (for scoring, never for a tuner). With --hide-names
// knobs and words are codes, in the space and in every configuration that is read or printed.
#include <cstdio>
#include <exception>
#include <iostream>
#include <string>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "bench/tune/surfaces.h"

namespace {

using namespace lockstep;
using namespace lockstep::bench;

struct Arguments {
  std::string kind = "nccl6";
  int instance = 0;
  std::uint64_t noise_seed = 1;
  bool memory = false;
  bool space = false, describe = false, truth = false, truth_of = false, hide_names = false;
  std::string kinds;
  int facts = 0;
};

constexpr double kDeviceBytes = 80e9;

nlohmann::json facts_json(const Surface& surface, const SurfaceFacts& facts) {
  return {{"kind", surface.kind()},
          {"instance", surface.instance()},
          {"fingerprint", fmt::format("{:016x}", fingerprint(surface))},
          {"tells_defaults", surface.tells_defaults()},
          {"drifts", surface.log_drift(1, 10) != surface.log_drift(1, 50)},
          {"knobs", surface.knobs().size()},
          {"configurations", facts.configurations},
          {"feasible", facts.feasible},
          {"best", facts.best},
          {"best_config", surface.json_of(facts.best_point)},
          {"default", facts.default_throughput},
          {"believed_best", facts.believed_best},
          {"failing", facts.failing},
          {"failing_with_rules", facts.failing_with_rules},
          {"random_regret_30", facts.random_regret},
          {"random_regret_30_with_rules", facts.random_regret_with_rules},
          {"counts", facts.counts}};
}

nlohmann::json answer(const Surface& surface, const nlohmann::json& request, const Arguments& arguments) {
  const Point point = surface.point_of(request.at("config"));
  const SurfaceMeasurement measured =
      surface.measure(point, arguments.noise_seed, request.at("trial").get<std::int64_t>());
  nlohmann::json reply{{"seconds", measured.seconds}};
  if (measured.outcome == tune::Outcome::kMeasured) {
    reply["samples"] = measured.samples;
    if (arguments.memory) reply["values"] = {{"memory_bytes", kDeviceBytes * surface.at(point).memory}};
  } else {
    reply["failed"] = tune::to_string(measured.outcome);
    if (!measured.message.empty()) reply["message"] = measured.message;
  }
  if (arguments.truth_of) reply["truth"] = surface.at(point).throughput;
  return reply;
}

void print_line(const nlohmann::json& document) {
  std::puts(document.dump().c_str());
  std::fflush(stdout);
}

void list_facts(int wanted, const std::string& half) {
  for (const std::string& kind : half.empty() ? surface_kinds() : lab_kinds(half)) {
    int counted = 0;
    for (int instance = 0; counted < wanted && instance < 10 * wanted; ++instance) {
      const auto surface = make_surface(kind, instance);
      const SurfaceFacts facts = study_surface(*surface);
      counted += facts.counts;
      print_line(facts_json(*surface, facts));
    }
  }
}

void serve(const Surface& surface, const Arguments& arguments) {
  std::string line;
  while (std::getline(std::cin, line)) {
    if (!line.empty()) print_line(answer(surface, nlohmann::json::parse(line), arguments));
  }
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("A synthetic training job as an evaluator");
  app.add_option("--kind", arguments.kind);
  app.add_option("--instance", arguments.instance);
  app.add_option("--noise-seed", arguments.noise_seed);
  app.add_option("--facts", arguments.facts);
  app.add_option("--kinds", arguments.kinds, "with --facts: dev or final, a half of the laboratory");
  app.add_flag("--memory", arguments.memory, "answers have memory_bytes, too (exact)");
  app.add_flag("--hide-names", arguments.hide_names);
  app.add_flag("--space", arguments.space);
  app.add_flag("--describe", arguments.describe);
  app.add_flag("--truth", arguments.truth);
  app.add_flag("--truth-of", arguments.truth_of);
  CLI11_PARSE(app, argc, argv);
  try {
    if (arguments.facts > 0) return list_facts(arguments.facts, arguments.kinds), 0;
    const auto surface = make_surface(arguments.kind, arguments.instance);
    if (arguments.hide_names) surface->hide_names();
    if (arguments.space) {
      std::fputs(surface->space_yaml().c_str(), stdout);
    } else if (arguments.describe) {
      print_line(surface->describe());
    } else if (arguments.truth) {
      print_line(facts_json(*surface, study_surface(*surface)));
    } else {
      serve(*surface, arguments);
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "surface_worker: {}\n", error.what());
    return 2;
  }
  return 0;
}
