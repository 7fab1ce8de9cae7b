#include "lockstep/cli/plan_request.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/cli/script_facts.h"
#include "lockstep/cli/show.h"
#include "lockstep/plan/verdict.h"
#include "lockstep/planner/capabilities.h"
#include "lockstep/planner/explain/terms.h"
#include "lockstep/planner/profile_source.h"
#include "lockstep/planner/question.h"
#include "lockstep/planner/search/request.h"
#include "lockstep/planner/suggest/recipe.h"
#include "lockstep/spec/usual_precision.h"

namespace lockstep::cli {
namespace {

constexpr std::size_t kMostSizes = 64;
constexpr std::int64_t kLargestSize = 1 << 20;
constexpr double kRoundBatch = 0.05;  // a batch given in tokens may change by this share to divide well

SourcePlace flag(const char* name) { return {.file = name}; }

// Calls use(key, value) for every "key=value" of a comma-separated list.
template <class Use>
void for_each_pair(const std::string& text, const char* flag_name, Use use) {
  if (text.empty()) return;
  for (const std::string& item : split(text, ',')) {
    const std::size_t equals = item.find('=');
    if (equals == std::string::npos) {
      throw bad_input(fmt::format("`{}` is not key=value", printable(item)), "write for instance tp=8,recompute=full",
                      flag(flag_name));
    }
    use(std::string(trim(item.substr(0, equals))), std::string(trim(item.substr(equals + 1))));
  }
}

[[noreturn]] void refuse_key(const std::string& key, const std::vector<std::string>& known, const char* flag_name) {
  throw bad_input(fmt::format("unknown key `{}`", printable(key)), did_you_mean(key, known), flag(flag_name));
}

[[noreturn]] void refuse_value(const std::string& key, const std::string& value, const std::string& choices,
                               const char* flag_name) {
  throw bad_input(fmt::format("{}={} is unknown", key, printable(value)), fmt::format("use {}", choices),
                  flag(flag_name));
}

void fix_choice(planner::Constraints& constraints, const std::string& key, const std::string& value) {
  const plan::LayoutField* field = plan::find_layout_field(key);
  if (field == nullptr || key == "precision") {
    std::vector<std::string> known = planner::constraint_keys();
    for (const plan::LayoutField& other : plan::layout_fields()) {
      if (!other.is_axis() && other.name() != std::string_view("precision")) known.emplace_back(other.name());
    }
    refuse_key(key, known, "--fix");
  }
  const auto choices = field->key->choices;
  const auto found = std::find(choices.begin(), choices.end(), std::string_view(value));
  if (found == choices.end()) refuse_value(key, value, fmt::format("{}", fmt::join(choices, ", ")), "--fix");
  planner::fix_field(constraints, *field, found - choices.begin());
}

bool is_numeric(const std::string& key) {
  const std::vector<std::string> keys = planner::constraint_keys();
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

void apply_constraints(const PlanFlags& flags, planner::Constraints& constraints) {
  for_each_pair(flags.fix, "--fix", [&](const std::string& key, const std::string& value) {
    if (is_numeric(key)) {
      constraints.fixed[key] = parse_integer(value, flag("--fix"));
    } else {
      fix_choice(constraints, key, value);
    }
  });
  for_each_pair(flags.at_most, "--at-most", [&](const std::string& key, const std::string& value) {
    if (!is_numeric(key)) refuse_key(key, planner::constraint_keys(), "--at-most");
    constraints.at_most[key] = parse_integer(value, flag("--at-most"));
  });
  if (flags.micro > 0) constraints.fixed["micro"] = flags.micro;
}

std::vector<spec::Precision> parse_precisions(const std::string& text) {
  std::vector<spec::Precision> precisions;
  if (text.empty()) return precisions;
  for (const std::string& name : split(text, ',')) {
    const auto precision = plan::parse_precision(trim(name));
    if (!precision) {
      refuse_value("precision", name, fmt::format("{}", fmt::join(spec::names::kPrecisions, ", ")), "--precision");
    }
    precisions.push_back(*precision);
  }
  return precisions;
}

planner::Objective parse_objective(const std::string& name) {
  if (name == "throughput" || name == "pareto") return planner::Objective::kThroughput;
  if (name == "goodput") return planner::Objective::kGoodput;
  if (name == "dollars") return planner::Objective::kDollars;
  return planner::Objective::kDeadline;
}

void apply_layout(const PlanFlags& flags, planner::SearchRequest& request) {
  constexpr std::string_view kPrefix = "layout: ";  // the flag says it already
  const plan::Layout layout = plan::parse_layout(flags.layout);
  if (flags.layout.find("precision=") != std::string::npos) request.precisions = {layout.precision};
  const planner::SearchRequest asked = planner::complete(request);
  plan::Layout judged = layout;
  judged.precision = asked.precisions.front();
  const plan::BatchPlan batch{.micro = std::max<std::int64_t>(1, flags.micro),
                              .sequence_length = asked.sequence_length};
  if (const auto problem = planner::find_refusal(asked, judged, batch)) {
    const bool said = problem->text.starts_with(kPrefix);
    throw bad_input(said ? problem->text.substr(kPrefix.size()) : problem->text, problem->fix, flag("--layout"));
  }
  planner::fix_layout(request, layout, flags.micro > 0 ? std::optional(flags.micro) : std::nullopt);
}

spec::Job job_of(const PlanFlags& flags) {
  std::vector<std::string> overrides = flags.overrides;
  if (!flags.model.empty()) overrides.push_back("model=" + flags.model);
  if (!flags.cluster.empty()) overrides.push_back("cluster=" + flags.cluster);
  spec::Job job = spec::load_job(flags.job_file, overrides);
  complete_model(job);
  return job;
}

// What the command line says of the job's batch is meant, whereas the file's own micro-batch gives the global batch.
void keep_overridden_batch(const PlanFlags& flags, const spec::Job& job, planner::Constraints& constraints) {
  for (const std::string& override : flags.overrides) {
    const std::string key(trim(override.substr(0, override.find('='))));
    if (key == "batch.micro") constraints.fixed.try_emplace("micro", job.batch.micro);
    if (key == "batch.accumulation") constraints.fixed.try_emplace("accumulation", job.batch.accumulation);
  }
}

// The job with what the flags say of model, cluster, length and precision: the job that is planned.
spec::Job planned_job(const PlanFlags& flags) {
  spec::Job job = job_of(flags);
  if (flags.sequence_length > 0) job.batch.sequence_length = flags.sequence_length;
  if (!flags.precision.empty()) job.precision = parse_precisions(flags.precision).front();
  if (flags.layout.empty()) return job;
  job.layout.reset();
  return job;
}

// The profile that is asked for: by name, else the one with most runs of the stack on these devices; "": the usual.
std::string profile_name(const PlanFlags& flags, const spec::Cluster& cluster) {
  const planner::Capabilities* framework = planner::find_capabilities(flags.stack);
  if (!flags.profile.empty() || framework == nullptr || cluster.is_cpu()) return flags.profile;
  return planner::evidence_for(*framework, cost::profile_for(cluster).fitted->hardware);
}

planner::SearchRequest request_of_job(const PlanFlags& flags, const spec::Job& job) {
  note_discovery(job.cluster);
  planner::SearchRequest request = planner::question_of(
      job,
      planner::require_profile(job.cluster, job.precision, planner::ranks_here(job), profile_name(flags, job.cluster)));
  request.is_job = flags.precision.empty();  // another precision than the job's is a question
  request.requires_max_lost = job.checkpoint.every_seconds == spec::CheckpointPolicy::kAuto;
  return request;
}

cost::Profile profile_on(const spec::Cluster& cluster, const std::vector<spec::Precision>& precisions,
                         const PlanFlags& flags) {
  const spec::Precision precision = precisions.empty() ? spec::usual_precision(cluster) : precisions.front();
  const planner::Ranks ranks = planner::ranks_here(cluster, 0, "", cluster.devices());
  return planner::require_profile(cluster, precision, ranks, profile_name(flags, cluster));
}

planner::SearchRequest request_of_names(const PlanFlags& flags) {
  if (flags.model.empty() || flags.cluster.empty()) {
    throw bad_input("a plan needs a model and a cluster",
                    "write --model llama2-13b --cluster 4x8xH100, or name a job file");
  }
  planner::SearchRequest request;
  request.model = spec::load_model(flags.model);
  request.cluster = spec::load_cluster(flags.cluster);
  note_discovery(request.cluster);
  request.precisions = parse_precisions(flags.precision);
  request.sequence_length = flags.sequence_length;
  request.profile = profile_on(request.cluster, request.precisions, flags);
  return request;
}

void apply_goals(const PlanFlags& flags, planner::SearchRequest& request) {
  if (!flags.global_batch.empty()) {
    const std::int64_t length = request.sequence_length > 0 ? request.sequence_length : request.model.max_sequence;
    request.global_sequences = parse_global_batch(flags.global_batch, request.model.is_language_model() ? length : 0);
  }
  if (!flags.tokens.empty()) request.tokens = static_cast<double>(parse_count(flags.tokens, flag("--tokens")));
  if (!flags.deadline.empty()) request.deadline_seconds = parse_seconds(flags.deadline, flag("--deadline"));
  if (!flags.max_lost.empty()) {
    request.max_lost_seconds = parse_seconds(flags.max_lost, flag("--max-lost"));
    request.requires_max_lost = true;
  }
  request.objective = parse_objective(flags.objective);
  request.switched_off = flags.switch_off;
}

}  // namespace

planner::SearchRequest request_of(const PlanFlags& flags) {
  std::optional<spec::Job> job;
  if (!flags.job_file.empty()) job = planned_job(flags);
  planner::SearchRequest request = job ? request_of_job(flags, *job) : request_of_names(flags);
  if (!flags.precision.empty()) request.precisions = parse_precisions(flags.precision);
  request.framework = planner::find_capabilities(flags.stack);
  apply_goals(flags, request);
  if (job && job->steps > 0 && flags.tokens.empty()) request.tokens = planner::work_of_steps(job->steps, request);
  if (request.deadline_seconds > 0 && request.tokens <= 0) {
    throw bad_input("a deadline needs the length of the job", "give --tokens, for instance --tokens 300B",
                    flag("--deadline"));
  }
  const bool parts = !flags.fix.empty() || !flags.at_most.empty();
  if (parts && job && job->layout) {
    throw bad_input("the job file names the whole layout, --fix and --at-most parts of one",
                    "change parts of the file's (layout.recompute=full), or take the layout out of it");
  }
  if (parts && !flags.layout.empty()) {
    throw bad_input("--layout names the whole layout, --fix and --at-most parts of it", "use one or the other");
  }
  // A batch or a micro-batch of the command line is meant; the file's own stays where nothing was said.
  if (!flags.global_batch.empty() || flags.micro > 0) request.constraints.fixed.erase("micro");
  flags.layout.empty() ? apply_constraints(flags, request.constraints) : apply_layout(flags, request);
  if (job) keep_overridden_batch(flags, *job, request.constraints);
  return request;
}

std::vector<std::string> notices_of(const PlanFlags& flags, const planner::SearchRequest& request,
                                    const plan::Candidate& best) {
  std::vector<std::string> notices;
  if (const auto refusal = planner::find_untrained(request, best.layout, best.batch)) {
    const bool fp8 = refusal->key == "precision", states = refusal->key == "optimizer.state_precision";
    const char* priced = fp8 ? "; priced as frameworks that train it" : states ? "; priced with fp32 states" : "";
    if (refusal->key != "batch.sequence_length") notices.push_back(refusal->text + priced);
  } else {
    for (const plan::Problem& problem : plan::problems(planner::run_of(request, best.layout, best.batch))) {
      if (problem.severity != plan::Severity::kWarning) continue;  // another framework's business
      notices.push_back(fmt::format("{}; {}", problem.text, problem.fix));
    }
  }
  const plan::BatchPlan& batch = best.batch;
  const std::int64_t length = request.sequence_length, longest = request.model.max_sequence;
  if (request.model.is_language_model() && length > longest) {
    notices.push_back(fmt::format("sequence {} is longer than the model's maximum of {}", length, longest));
  }
  if (flags.sequence_length == 0 && longest > planner::kUsualLongest) {
    notices.push_back(length < longest ? fmt::format("sequence {}, as models are pretrained; this one takes up to {}, "
                                                     "--seq {} plans for that",
                                                     length, longest, longest)
                                       : fmt::format("sequence {}: the model's maximum; --seq {} for pretraining",
                                                     length, planner::kUsualSequence));
  }
  if (flags.job_file.empty() || request.constraints.fixed.contains("micro")) return notices;
  const spec::Batch asked = job_of(flags).batch;
  if (asked.micro != batch.micro || asked.accumulation != batch.accumulation) {
    notices.push_back(
        fmt::format("micro-batch {} x {} of the job file gave the global batch alone and was searched anew; "
                    "--micro {} keeps it",
                    asked.micro, asked.accumulation, asked.micro));
  }
  return notices;
}

planner::SearchRequest request_on(const planner::SearchRequest& request, const std::string& cluster,
                                  const PlanFlags& flags) {
  planner::SearchRequest other = request;
  other.cluster = spec::load_cluster(cluster);
  if (!flags.job_file.empty() && flags.precision.empty() && !planner::is_wholly_fixed(other.constraints)) {
    PlanFlags moved = flags;  // a job file that names no precision takes that of the devices
    moved.cluster = cluster;
    other.precisions = {job_of(moved).precision};
  }
  other.profile = profile_on(other.cluster, other.precisions, flags);
  return other;
}

std::vector<std::int64_t> parse_sizes(const std::string& text) {
  const SourcePlace place = flag("--scaling");
  std::vector<std::int64_t> sizes;
  bool dots = false;
  for (const std::string& item : split(text, ',')) {
    if (trim(item) == "...") {
      if (sizes.size() < 2 || dots) throw bad_input("`...` wants two sizes before it", "write 8,16,...,1024", place);
      dots = true;
      continue;
    }
    const std::int64_t size = parse_count(trim(item), place);
    if (dots) {
      const std::int64_t last = sizes.back(), before = sizes[sizes.size() - 2];
      const bool multiplies = before > 0 && last % before == 0 && last > before;
      if (last <= before) throw bad_input("sizes before `...` do not grow", "write 8,16,...,1024", place);
      const std::int64_t factor = multiplies ? last / before : 1, step = multiplies ? 0 : last - before;
      for (std::int64_t next = last * factor + step; next < size; next = next * factor + step) {
        sizes.push_back(next);
        if (sizes.size() > kMostSizes) break;
      }
      dots = false;
    }
    sizes.push_back(size);
  }
  if (dots) throw bad_input("`...` wants a last size", "write 8,16,...,1024", place);
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  if (sizes.front() < 1 || sizes.back() > kLargestSize || sizes.size() > kMostSizes) {
    throw bad_input(fmt::format("{} sizes from {} to {}", sizes.size(), sizes.front(), sizes.back()),
                    fmt::format("give at most {} sizes of 1 to {} devices", kMostSizes, kLargestSize), place);
  }
  return sizes;
}

std::int64_t parse_global_batch(const std::string& text, std::int64_t sequence_length) {
  const SourcePlace place = flag("--global-batch");
  std::string_view number = trim(text);
  bool in_tokens = false;
  for (const std::string_view suffix : {"tokens", "token", "tok"}) {
    if (number.ends_with(suffix)) {
      number = trim(number.substr(0, number.size() - suffix.size()));
      in_tokens = true;
      break;
    }
  }
  const std::int64_t count = parse_count(number, place);
  if (count < 1) throw bad_input("a batch of nothing", "give at least 1 sequence", place);
  constexpr std::int64_t kMostSequences = 1'000'000;  // more than anybody trains on at once
  if (!in_tokens && sequence_length > 0 && count >= kMostSequences) {
    throw bad_input(fmt::format("`{}` is a batch of {} sequences", printable(text), count),
                    fmt::format("write {}tok for tokens", trim(text)), place);
  }
  if (!in_tokens) return count;
  if (sequence_length <= 0) throw bad_input("this model has no tokens", "give the batch in samples", place);
  const double wanted = static_cast<double>(count) / static_cast<double>(sequence_length);
  for (double power = std::exp2(std::ceil(std::log2(wanted))); power >= 1; power /= 2) {
    const double rounded = std::round(wanted / power) * power;
    if (rounded > 0 && std::abs(rounded / wanted - 1) <= kRoundBatch) return static_cast<std::int64_t>(rounded);
  }
  return std::max<std::int64_t>(1, std::llround(wanted));
}

}  // namespace lockstep::cli
