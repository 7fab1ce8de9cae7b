#include "validation/held_out.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include <fmt/format.h>

#include "lockstep/base/units.h"
#include "lockstep/planner/rows/observed_rows.h"
#include "validation/residuals.h"

namespace lockstep::validation {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
constexpr double kNinetyPercent = 1.6449;

// "megatron-sc21" and "megatron-2020" are one framework, "nemo-25.02" and "nemo-23" another.
std::string framework_of(const std::string& stack) {
  if (stack.starts_with("llm-foundry")) return "llm-foundry";
  return stack.substr(0, stack.find('-'));
}

// A row with what prices it when its group was left out.
struct Row {
  const Measurement* measurement = nullptr;
  std::string group;
  cost::Profile prior;
  bool stack_is_known = false;  // other groups have runs of the same stack on the same hardware
};

cost::Profile prior_of(const Measurement& m, const Fit& fit) {
  cost::Profile profile;
  const planner::RowQuestion& question = *m.reading.question;
  profile.fitted = cost::Fitted{.hardware = m.hardware,
                                .stack = question.stack,
                                .constants = fit.at(m.hardware, question.stack),
                                .facts = question.facts};
  return profile;
}

class Column {
 public:
  Column(const std::vector<Measurement>& all, const std::map<std::string, Fit>& fits, LeftOut left_out)
      : left_out_(left_out) {
    for (const Measurement& m : all) {
      if (!m.pricer || m.failed || (!m.step_seconds && !m.memory_bytes)) continue;
      const std::string group = group_of(m, left_out);
      const auto fit = fits.find(group);
      if (fit == fits.end()) continue;
      rows_.push_back({&m, group, prior_of(m, fit->second)});
    }
    find_known_stacks();
    for (Row& row : rows_) residuals_[row.stack_is_known].push_back(residual_of(row));
    for (Row& row : rows_) row.prior.fitted->residuals = margins(row);
    for (const Row& row : rows_) by_group_[row.group].push_back(&row);
  }

  HeldOutColumn scored(int observed, bool held_back) const {
    HeldOutColumn column{.left_out = to_string(left_out_), .observed = observed, .rows = {}};
    for (const Row* row : chosen(held_back)) {
      for (int draw = 0; draw < (observed == 0 ? 1 : kDraws); ++draw) {
        const std::vector<const Row*> seen = drawn(*row, observed, draw);
        if (seen.size() == static_cast<std::size_t>(observed)) column.rows.push_back(score(*row, seen));
      }
    }
    return column;
  }

 private:
  void find_known_stacks() {
    std::map<std::string, std::set<std::string>> groups_of_stack;
    const auto stack = [](const Row& row) { return row.prior.fitted->hardware + "|" + row.prior.fitted->stack; };
    for (const Row& row : rows_) groups_of_stack[stack(row)].insert(row.group);
    for (Row& row : rows_) row.stack_is_known = groups_of_stack.at(stack(row)).size() > 1;
  }

  static Residual residual_of(const Row& row) {
    const Measurement& m = *row.measurement;
    const auto figures = planner::figures_of(*m.reading.question, row.prior);
    m.pricer->recalibrate(row.prior.fitted->constants);
    const cost::Price price = m.pricer->price(m.reading.question->layout, m.reading.question->batch);
    const cost::RunFigures said = figures(row.prior);
    return {.hardware = m.hardware,
            .stack = m.reading.question->stack,
            .fold = row.group,
            .log_time = m.step_seconds ? std::log(*m.step_seconds / said.seconds) : kNone,
            .exposed_share = price.exposed_share,
            .log_memory = m.memory_bytes ? std::log(*m.memory_bytes / said.bytes) : kNone};
  }

  // What is known of a stack that was fitted says nothing about one that was not, and the other way round.
  cost::Residuals margins(const Row& row) {
    const auto& [hardware, stack] = std::pair(row.prior.fitted->hardware, row.prior.fitted->stack);
    const auto [it, fresh] = margins_.try_emplace(hardware + "|" + stack + "|" + row.group);
    if (fresh) it->second = residuals_of(residuals_[row.stack_is_known], hardware, stack, row.group);
    return it->second;
  }

  // At most so many of a source, the same ones whatever is asked.
  std::vector<const Row*> chosen(bool held_back) const {
    std::map<std::string, std::vector<const Row*>> by_source;
    for (const Row& row : rows_) {
      const Measurement& m = *row.measurement;
      const std::string source = planner::source_family(m.row);
      if (m.file.starts_with("grid") || is_held_back(source) != held_back) continue;
      by_source[source].push_back(&row);
    }
    std::vector<const Row*> rows;
    for (auto& [source, members] : by_source) {
      std::sort(members.begin(), members.end(), [](const Row* a, const Row* b) {
        return hash_of(a->measurement->row.id) < hash_of(b->measurement->row.id);
      });
      members.resize(std::min(members.size(), kMostRowsOfASource));
      rows.insert(rows.end(), members.begin(), members.end());
    }
    return rows;
  }

  std::vector<const Row*> drawn(const Row& row, int observed, int draw) const {
    std::vector<std::pair<std::uint64_t, const Row*>> others;
    const std::string source = planner::source_family(row.measurement->row);
    for (const Row* other : by_group_.at(row.group)) {
      if (other == &row || planner::source_family(other->measurement->row) != source) continue;
      const std::string& id = other->measurement->row.id;
      others.emplace_back(hash_of(fmt::format("{} {} {}", row.measurement->row.id, draw, id)), other);
    }
    std::sort(others.begin(), others.end());
    std::vector<const Row*> seen;
    for (std::size_t i = 0; i < others.size() && i < static_cast<std::size_t>(observed); ++i) {
      seen.push_back(others[i].second);
    }
    return seen;
  }

  static Scored score(const Row& row, const std::vector<const Row*>& seen) {
    const Measurement& m = *row.measurement;
    std::vector<cost::ObservedRun> runs;
    for (const Row* other : seen) {
      const Measurement& o = *other->measurement;
      cost::ObservedRun run = planner::observed_row(o.row.id, *o.reading.question, other->prior, row.prior);
      if (!o.memory_bytes) run.bytes = 0;
      runs.push_back(std::move(run));
    }
    const cost::Posterior posterior(row.prior, runs);
    const auto figures = planner::figures_of(*m.reading.question, row.prior);
    const cost::PosteriorSpread spread = posterior.spread_of(figures);
    const cost::RunFigures said = figures(posterior.profile());
    Scored scored{.id = m.row.id,
                  .source = planner::source_family(m.row),
                  .hardware = m.reading.question->device_kind,
                  .model = m.row.model,
                  .gpus = m.row.gpus.value_or(0)};
    scored.complete = m.strict;
    if (m.step_seconds) {
      scored.measured = m.reading.question->tokens_per_second_per_gpu;
      scored.predicted = *scored.measured * *m.step_seconds / said.seconds;
      const double width = std::exp(kNinetyPercent * spread.time);
      scored.low = *scored.predicted / width;
      scored.high = *scored.predicted * width;
    }
    if (m.memory_bytes) {
      scored.measured_memory = *m.memory_bytes / kGiB;
      scored.predicted_memory = said.bytes / kGiB;
    }
    return scored;
  }

  LeftOut left_out_;
  std::vector<Row> rows_;
  std::array<std::vector<Residual>, 2> residuals_;  // of stacks that were not fitted, and of those that were
  std::map<std::string, cost::Residuals> margins_;
  std::map<std::string, std::vector<const Row*>> by_group_;
};

}  // namespace

const char* to_string(LeftOut what) {
  switch (what) {
    case LeftOut::kModel:
      return "model";
    case LeftOut::kSource:
      return "source";
    case LeftOut::kHardwareFramework:
      break;
  }
  return "(hardware, framework)";
}

std::string group_of(const Measurement& measurement, LeftOut what) {
  if (what == LeftOut::kModel) return measurement.fold;
  if (what == LeftOut::kSource) return planner::source_family(measurement.row);
  const std::string stack = measurement.reading.question ? measurement.reading.question->stack : "";
  return measurement.hardware + " | " + framework_of(stack);
}

bool is_held_back(const std::string& source) { return hash_of(source) % 4 == 0; }

std::vector<HeldOutColumn> score_left_out(const std::vector<Measurement>& all, const std::map<std::string, Fit>& fits,
                                          LeftOut what, bool held_back) {
  const Column column(all, fits, what);
  std::vector<HeldOutColumn> columns;
  for (const int observed : {0, 1, 3}) columns.push_back(column.scored(observed, held_back));
  return columns;
}

std::vector<HeldOutColumn> hold_out(const std::vector<Measurement>& all, const Fit& whole,
                                    const HeldOutOptions& options) {
  std::vector<HeldOutColumn> columns;
  for (const LeftOut what : options.columns) {
    const GroupOf group = [what](const Measurement& m) { return group_of(m, what); };
    const std::map<std::string, Fit> fits =
        fit_without_each(options.published, whole, group, options.threads, FitProgress{}, options.effort);
    for (HeldOutColumn& column : score_left_out(all, fits, what, options.held_back)) {
      columns.push_back(std::move(column));
    }
  }
  return columns;
}

}  // namespace lockstep::validation
