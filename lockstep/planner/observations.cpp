#include "lockstep/planner/observations.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <memory>
#include <set>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/cost/price.h"
#include "lockstep/plan/run.h"
#include "lockstep/plan/verdict.h"
#include "lockstep/planner/rows/csv.h"
#include "lockstep/planner/rows/observed_rows.h"
#include "lockstep/telemetry/recorder.h"
#include "lockstep/telemetry/run_store.h"

namespace lockstep::planner {
namespace {

constexpr const char* kOff = "LOCKSTEP_NO_OBSERVATIONS";
constexpr std::size_t kMostRecordedRuns = 24;  // the newest that can be priced
constexpr std::size_t kRunsLookedAt = 100;
constexpr std::int64_t kFewestSteps = 5;  // a run of fewer is mostly its start
constexpr std::size_t kNamesSaid = 3;

std::filesystem::path forgotten_path() { return telemetry::home_directory() / "forgotten-runs.txt"; }

std::set<std::string> forgotten() {
  std::set<std::string> names;
  if (!std::filesystem::exists(forgotten_path())) return names;
  std::string name;
  for (const char c : read_file(forgotten_path().string())) {
    if (c != '\n') {
      name += c;
    } else {
      names.insert(std::move(name));
      name.clear();
    }
  }
  return names;
}

std::string what_is_missing(const PublishedRow& row) {
  const RowReading reading = question_of(row);
  if (!reading.question) return reading.why_not;
  if (is_failure(row)) return "the run failed";
  const bool measured = reading.question->tokens_per_second_per_gpu || reading.question->memory_gib;
  return measured ? "" : "neither tokens_per_s_per_gpu nor step_time_s nor mem_gib_per_gpu";
}

std::string name_of(const PublishedRow& row) {
  return row.id.empty() ? fmt::format("{} on {} {}", row.model, row.gpus.value_or(0), row.hardware) : row.id;
}

// Cells of `row` in the order of `columns`; "" for a column it does not have.
std::vector<std::string> arranged(const PublishedTable& table, const PublishedRow& row,
                                  const std::vector<std::string>& columns) {
  std::vector<std::string> cells;
  for (const std::string& column : columns) {
    const auto found = std::find(table.columns.begin(), table.columns.end(), column);
    const auto place = static_cast<std::size_t>(found - table.columns.begin());
    cells.push_back(found == table.columns.end() ? "" : row.cells.at(place));
  }
  return cells;
}

void write_table(const std::vector<std::string>& columns, const std::vector<std::vector<std::string>>& rows) {
  std::string text = csv_line(columns);
  for (const std::vector<std::string>& row : rows) text += csv_line(row);
  std::filesystem::create_directories(observations_path().parent_path());
  write_file_atomically(observations_path(), text);
}

// The profile that prices a row of the user's: by its hardware and, where its source names one, its stack.
cost::Profile own_profile(const RowQuestion& question, const cost::Profile& target) {
  const bool same_kind = target.fitted && target.fitted->hardware == question.device_kind;
  const bool same_stack = question.stack.empty() || (target.fitted && target.fitted->stack == question.stack);
  cost::Profile own = same_kind && same_stack ? target : cost::profile_for(question.device_kind, question.stack);
  if (own.fitted && !(same_kind && same_stack)) own.fitted->hardware = question.device_kind;
  if (own.fitted) own.fitted->facts = question.facts;
  return own;
}

bool is_of_profile(const plan::Run& run, const telemetry::RunRow& row, const cost::Profile& profile) {
  if (!run.cluster.is_cpu()) {
    return profile.fitted && run.cluster.groups.front().device.kind == profile.fitted->hardware;
  }
  // Contention belongs to a profile of processors: it is of exactly so many ranks.
  return !profile.fitted && profile.provenance.ranks == row.info.world &&
         (profile.provenance.backend.empty() || profile.provenance.backend == row.info.backend);
}

std::optional<cost::ObservedRun> recorded_run(const telemetry::RunStore& store, const telemetry::RunRow& row,
                                              const cost::Profile& profile) {
  const nlohmann::json& summary = row.summary;
  const double seconds = summary.value("seconds_per_step", 0.0);
  if (row.status != telemetry::RunStatus::kDone || !(seconds > 0)) return std::nullopt;
  if (summary.value("steps", std::int64_t{0}) < kFewestSteps || summary.value("restarts", 0) > 0) return std::nullopt;
  const plan::Plan plan = plan::read_plan(store.plan(row.info.id), row.info.id);
  const plan::Run run = plan::run_of(spec::parse_job(row.info.job_yaml, row.info.id), plan.best);
  if (!is_of_profile(run, row, profile)) return std::nullopt;
  cost::ObservedRun observed{.name = row.info.id, .seconds = seconds};
  if (!run.cluster.is_cpu()) observed.bytes = summary.value("peak_allocated_bytes", 0.0);
  observed.predict = [run](const cost::Profile& now) {
    const cost::RunPrice price = cost::price(run, now);
    return cost::RunFigures{.seconds = price.step_seconds(),
                            .time_sigma = price.time_sigma,
                            .bytes = price.allocated_bytes(),
                            .memory_sigma = price.memory_sigma};
  };
  return observed;
}

// A run that cannot be read or priced any more says nothing.
std::vector<cost::ObservedRun> recorded_runs(const cost::Profile& profile) {
  std::vector<cost::ObservedRun> runs;
  if (!cost::is_of_this_engine(profile)) return runs;
  try {
    const std::set<std::string> without = forgotten();
    if (without.contains("all")) return runs;
    const auto store = telemetry::open_run_store(telemetry::home_directory());
    for (const telemetry::RunRow& row : store->runs(kRunsLookedAt)) {
      if (runs.size() == kMostRecordedRuns) break;
      if (without.contains(row.info.id)) continue;
      try {
        if (auto run = recorded_run(*store, row, profile)) runs.push_back(std::move(*run));
      } catch (const std::exception&) {
        continue;
      }
    }
  } catch (const std::exception&) {
    return runs;
  }
  return runs;
}

Conditioned conditioned_on(const cost::Profile& profile, const std::vector<cost::ObservedRun>& runs) {
  if (runs.empty()) return {profile, {}, {}};
  const cost::Posterior posterior(profile, runs);
  Conditioned result{posterior.profile(), posterior.verdicts(), posterior.changes()};
  result.profile.provenance.observed = said_of(result.runs);
  return result;
}

}  // namespace

std::vector<cost::ObservedRun> observed_rows(const PublishedTable& table, const cost::Profile& target) {
  std::vector<cost::ObservedRun> near, far;  // other hardware last: the posterior takes so many
  for (auto row = table.rows.rbegin(); row != table.rows.rend(); ++row) {
    const RowReading reading = question_of(*row);
    if (!reading.question || !what_is_missing(*row).empty()) continue;
    try {
      const cost::Profile own = own_profile(*reading.question, target);
      cost::ObservedRun run = observed_row(name_of(*row), *reading.question, own, target);
      const bool is_near = own.fitted && target.fitted && own.fitted->hardware == target.fitted->hardware;
      (is_near ? near : far).push_back(std::move(run));
    } catch (const UserError&) {
      continue;  // no formulas for it
    }
  }
  near.insert(near.end(), std::make_move_iterator(far.begin()), std::make_move_iterator(far.end()));
  return near;
}

std::filesystem::path observations_path() { return telemetry::home_directory() / "observations.csv"; }

PublishedTable kept_observations() {
  if (!std::filesystem::exists(observations_path())) return {};
  return load_published_rows(observations_path().string());
}

KeptRows keep_observations(const PublishedTable& table) {
  const PublishedTable kept = kept_observations();
  std::vector<std::string> columns = kept.columns;
  for (const std::string& column : table.columns) {
    if (std::find(columns.begin(), columns.end(), column) == columns.end()) columns.push_back(column);
  }
  std::vector<std::vector<std::string>> rows;
  for (const PublishedRow& row : kept.rows) rows.push_back(arranged(kept, row, columns));
  KeptRows result;
  for (const PublishedRow& row : table.rows) {
    if (const std::string missing = what_is_missing(row); !missing.empty()) {
      result.left_out.push_back(fmt::format("line {}: {}", row.line, missing));
      continue;
    }
    std::vector<std::string> cells = arranged(table, row, columns);
    const bool known = std::find(rows.begin(), rows.end(), cells) != rows.end();
    ++(known ? result.known : result.added);
    if (!known) rows.push_back(std::move(cells));
  }
  if (result.added > 0) write_table(columns, rows);
  return result;
}

std::size_t forget_observations(const std::string& name) {
  const PublishedTable kept = kept_observations();
  std::vector<std::vector<std::string>> rows;
  for (const PublishedRow& row : kept.rows) {
    if (name != "all" && name_of(row) != name) rows.push_back(row.cells);
  }
  std::size_t gone = kept.rows.size() - rows.size();
  if (gone > 0) write_table(kept.columns, rows);
  if (gone > 0 && name != "all") return gone;
  const auto store = telemetry::open_run_store(telemetry::home_directory());
  std::set<std::string> without = forgotten();
  for (const telemetry::RunRow& row : store->runs(100000)) {
    if (name == "all" || row.info.id == name) gone += without.insert(row.info.id).second ? 1 : 0;
  }
  std::string text;
  for (const std::string& id : without) text += id + "\n";
  std::filesystem::create_directories(forgotten_path().parent_path());
  write_file_atomically(forgotten_path(), text);
  return gone;
}

bool observations_are_off() {
  const char* value = std::getenv(kOff);
  return value != nullptr && *value != '\0' && std::string_view(value) != "0";
}

void switch_observations_off() { setenv(kOff, "1", 1); }

Conditioned conditioned_on_rows(const cost::Profile& profile, const PublishedTable& table) {
  return conditioned_on(profile, observed_rows(table, profile));
}

Conditioned conditioned(const cost::Profile& profile) {
  if (observations_are_off()) return {profile, {}, {}};
  std::vector<cost::ObservedRun> runs = recorded_runs(profile);
  if (profile.fitted) {
    try {
      std::vector<cost::ObservedRun> rows = observed_rows(kept_observations(), profile);
      runs.insert(runs.end(), std::make_move_iterator(rows.begin()), std::make_move_iterator(rows.end()));
    } catch (const UserError& error) {
      telemetry::warn(fmt::format("observed runs are not used: {}", error.what()));
    }
  }
  return conditioned_on(profile, runs);
}

std::string said_of(const std::vector<cost::RunVerdict>& runs) {
  std::string names;
  std::size_t used = 0;
  for (const cost::RunVerdict& run : runs) {
    if (run.is_outlier()) continue;
    if (used < kNamesSaid) names += (used == 0 ? "" : ", ") + run.name;
    ++used;
  }
  if (used == 0) return "";
  const std::string more = used > kNamesSaid ? fmt::format(" and {} more", used - kNamesSaid) : "";
  return fmt::format("{} observed run{}: {}{}", used, used == 1 ? "" : "s", names, more);
}

std::vector<std::string> findings_of(const std::vector<cost::RunVerdict>& runs) {
  std::vector<std::string> findings;
  for (const cost::RunVerdict& run : runs) {
    if (!run.is_outlier()) continue;
    const bool slow = run.before > 1;
    findings.push_back(fmt::format(
        "{} took {:.2g} times the {} that the other runs and the formulas explain: {}; it is "
        "not used",
        run.name, slow ? run.before : 1 / run.before, slow ? "time" : "speed",
        slow ? "something stalled it (lockstep diagnose), or the row is wrong" : "the row is probably wrong"));
  }
  return findings;
}

}  // namespace lockstep::planner
