// `lockstep profile show|forget`: what observed runs say about the profile that prices here, and how to drop them.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/counted.h"
#include "lockstep/base/error.h"
#include "lockstep/cli/verbs.h"
#include "lockstep/planner/observations.h"
#include "lockstep/planner/profile_source.h"
#include "lockstep/spec/cluster.h"

namespace lockstep::cli {
namespace {

struct ProfileOptions {
  std::string name, gpu, forget;
  std::int64_t ranks = 0;
  bool json = false;
};

// The newest that was measured here with so many ranks, whatever the backend and the precision.
std::optional<std::filesystem::path> newest_of(const std::filesystem::path& folder, std::int64_t ranks) {
  std::optional<std::filesystem::path> newest;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    if (!entry.is_regular_file() || name.find(fmt::format("-{}x", ranks)) == std::string::npos) continue;
    if (!newest || entry.last_write_time() > std::filesystem::last_write_time(*newest)) newest = entry.path();
  }
  return newest;
}

// The profile that is asked about, before any observation.
cost::Profile asked(const ProfileOptions& options) {
  if (const std::string name = planner::named_profile(options.name); !name.empty()) return cost::find_profile(name);
  if (!options.gpu.empty()) return cost::profile_for(options.gpu);
  const spec::Cluster cluster = spec::load_cluster(fmt::format("1x{}xcpu", options.ranks > 0 ? options.ranks : 1));
  const planner::Ranks ranks = planner::ranks_here(cluster, 0, "", cluster.devices());
  const auto path = newest_of(planner::profile_path(ranks, spec::Precision::kFp32).parent_path(), ranks.world);
  if (!path) {
    throw environment_error(fmt::format("this machine was not calibrated for {}", counted(ranks.world, "rank")),
                            fmt::format("run `lockstep calibrate --ranks {}`, or name a GPU with --gpu", ranks.world));
  }
  return cost::load_profile(path->string());
}

nlohmann::json run_json(const cost::RunVerdict& run) {
  nlohmann::json json{{"run", run.name}, {"weight", run.weight}, {"outlier", run.is_outlier()}};
  if (run.before > 0) json["seconds_over_predicted"] = {{"before", run.before}, {"after", run.after}};
  if (run.memory_before > 0)
    json["memory_over_predicted"] = {{"before", run.memory_before}, {"after", run.memory_after}};
  return json;
}

nlohmann::json to_json(const cost::Profile& before, const planner::Conditioned& now) {
  nlohmann::json runs = nlohmann::json::array(), constants = nlohmann::json::array();
  for (const cost::RunVerdict& run : now.runs) runs.push_back(run_json(run));
  for (const cost::ChangedConstant& change : now.changes) {
    constants.push_back({{"name", change.name}, {"factor", change.factor}, {"informed", change.informed}});
  }
  nlohmann::json json{{"schema", "lockstep.profile_observations/1"},
                      {"profile", before.identity()},
                      {"runs", std::move(runs)},
                      {"constants", std::move(constants)},
                      {"findings", planner::findings_of(now.runs)}};
  if (before.fitted) {
    const auto sigmas = [](const cost::Residuals& r) { return nlohmann::json{{"time", r.time}, {"memory", r.memory}}; };
    json["sigma"] = {{"before", sigmas(before.fitted->residuals)}, {"after", sigmas(now.profile.fitted->residuals)}};
  }
  return json;
}

void print_run(const cost::RunVerdict& run) {
  std::string line = fmt::format("  {}", run.name);
  if (run.before > 0) line += fmt::format(": step {:.2f} of predicted, {:.2f} now", run.before, run.after);
  if (run.memory_before > 0) line += fmt::format("; memory {:.2f}, {:.2f} now", run.memory_before, run.memory_after);
  fmt::print("{}{}\n", line, run.is_outlier() ? " (not used)" : "");
}

int show(const ProfileOptions& options) {
  const cost::Profile before = asked(options);
  const planner::Conditioned now = planner::conditioned(before);
  if (options.json) {
    fmt::print("{}\n", to_json(before, now).dump());
    return 0;
  }
  fmt::print("{}\n", before.identity());
  if (now.runs.empty()) {
    fmt::print("no run was observed that it prices: keep some with `lockstep observe --rows FILE.csv`, or train\n");
    return 0;
  }
  fmt::print("\nruns\n");
  for (const cost::RunVerdict& run : now.runs) print_run(run);
  fmt::print("\nwhat they change\n");
  for (const cost::ChangedConstant& change : now.changes) {
    fmt::print("  {:24} x {:.3f}   known {:.0f}% better\n", change.name, change.factor, 100 * change.informed);
  }
  if (before.fitted) {
    fmt::print("\none sigma of the step time {:.1f}%, now {:.1f}%; of memory {:.1f}%, now {:.1f}%\n",
               100 * before.fitted->residuals.time, 100 * now.profile.fitted->residuals.time,
               100 * before.fitted->residuals.memory, 100 * now.profile.fitted->residuals.memory);
  }
  for (const std::string& finding : planner::findings_of(now.runs)) fmt::print("\nfinding: {}\n", finding);
  fmt::print("\nnext: lockstep profile forget RUN      (or all)\n");
  return 0;
}

int forget(const ProfileOptions& options) {
  const std::size_t gone = planner::forget_observations(options.forget);
  if (options.json) {
    fmt::print("{}\n", nlohmann::json{{"schema", "lockstep.profile_observations/1"}, {"forgotten", gone}}.dump());
  } else {
    fmt::print("{} forgotten\n", gone);
  }
  if (gone == 0 && options.forget != "all") {
    throw bad_input(fmt::format("no observed run is called \"{}\"", options.forget),
                    "`lockstep profile show` lists them");
  }
  return 0;
}

}  // namespace

void add_profile(CLI::App& app, Outcome& outcome) {
  auto options = std::make_shared<ProfileOptions>();
  CLI::App* verb = app.add_subcommand("profile", "What observed runs say about a profile; forgets them");
  verb->require_subcommand(1);
  CLI::App* shown = verb->add_subcommand("show", "The runs that were used, what they change, how sure it is now");
  shown->add_option("--profile", options->name, "A name or a file (default: this machine's)");
  shown->add_option("--gpu", options->gpu, "The generic profile of this kind: H100");
  shown->add_option("--ranks", options->ranks, "Of this machine's processors")->check(CLI::Range(1, 4096));
  shown->add_flag("--json", options->json, "JSON on stdout (lockstep.profile_observations/1)");
  CLI::App* forgotten = verb->add_subcommand("forget", "Drops a run that was observed or recorded");
  forgotten->add_option("run", options->forget, "Its name in `profile show`; all: every one")->required();
  forgotten->add_flag("--json", options->json, "JSON on stdout");
  set_examples(*verb,
               "  lockstep profile show --gpu H100\n"
               "  lockstep profile show --ranks 2\n"
               "  lockstep profile forget all");
  shown->callback([options, &outcome] {
    outcome.json = options->json;
    outcome.exit_code = show(*options);
  });
  forgotten->callback([options, &outcome] {
    outcome.json = options->json;
    outcome.exit_code = forget(*options);
  });
}

}  // namespace lockstep::cli
