#include "lockstep/cli/plan_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/cli/profiles.h"
#include "lockstep/cli/session.h"
#include "lockstep/plan/nearest_layout.h"
#include "lockstep/planner/explain/terms.h"
#include "lockstep/planner/search/request.h"
#include "lockstep/planner/suggest/recipe.h"

namespace lockstep::cli {
namespace {

constexpr std::size_t kMostSizes = 64;
constexpr std::int64_t kLargestSize = 1 << 20;
constexpr std::int64_t kUsualLongest = 8192;  // tokens: pretraining beyond it is rare
constexpr double kRoundBatch = 0.05;          // a batch given in tokens may change by this share to divide well

const std::vector<std::string>& numeric_keys() {
  static const std::vector<std::string> keys{"pp", "dp", "shard",          "zero",  "cp",
                                             "tp", "ep", "virtual_stages", "micro", "accumulation"};
  return keys;
}

SourcePlace flag(const char* name) { return {.file = name}; }

// Calls use(key, value) for every "key=value" of a comma-separated list.
template <class Use>
void for_each_pair(const std::string& text, const char* flag_name, Use use) {
  if (text.empty()) return;
  for (const std::string& item : split(text, ',')) {
    const std::size_t equals = item.find('=');
    if (equals == std::string::npos) {
      throw bad_input(fmt::format("`{}` is no key=value", printable(item)), "write for instance tp=8,recompute=full",
                      flag(flag_name));
    }
    use(std::string(trim(item.substr(0, equals))), std::string(trim(item.substr(equals + 1))));
  }
}

[[noreturn]] void refuse_key(const std::string& key, const std::vector<std::string>& known, const char* flag_name) {
  throw bad_input(fmt::format("unknown key `{}`", printable(key)), did_you_mean(key, known), flag(flag_name));
}

template <class Value>
Value require_choice(const std::optional<Value>& parsed, const std::string& key, const std::string& value,
                     const char* choices, const char* flag_name) {
  if (!parsed) {
    throw bad_input(fmt::format("{}={} is unknown", key, printable(value)), fmt::format("use {}", choices),
                    flag(flag_name));
  }
  return *parsed;
}

void fix_choice(planner::Constraints& constraints, const std::string& key, const std::string& value) {
  constexpr const char* kFlag = "--fix";
  if (key == "schedule") {
    constraints.schedule =
        require_choice(plan::parse_schedule(value), key, value, "none, gpipe, 1f1b, interleaved or zero_bubble", kFlag);
  } else if (key == "recompute") {
    constraints.recompute = require_choice(plan::parse_recompute(value), key, value, "none, selective or full", kFlag);
  } else if (key == "context_exchange") {
    constraints.context_exchange =
        require_choice(plan::parse_context_exchange(value), key, value, "ring or all_to_all", kFlag);
  } else if (key == "offload") {
    constraints.offload =
        require_choice(plan::parse_offload(value), key, value, "none, optimizer or parameters", kFlag);
  } else if (key == "sequence_parallel") {
    if (value != "true" && value != "false") require_choice(std::optional<bool>(), key, value, "true or false", kFlag);
    constraints.sequence_parallel = value == "true";
  } else {
    std::vector<std::string> known = numeric_keys();
    for (const char* name : {"schedule", "recompute", "context_exchange", "offload", "sequence_parallel"}) {
      known.emplace_back(name);
    }
    refuse_key(key, known, kFlag);
  }
}

bool is_numeric(const std::string& key) { return std::count(numeric_keys().begin(), numeric_keys().end(), key) > 0; }

void apply_constraints(const PlanFlags& flags, planner::Constraints& constraints) {
  for_each_pair(flags.fix, "--fix", [&](const std::string& key, const std::string& value) {
    if (is_numeric(key)) {
      constraints.fixed[key] = parse_integer(value, flag("--fix"));
    } else {
      fix_choice(constraints, key, value);
    }
  });
  for_each_pair(flags.at_most, "--at-most", [&](const std::string& key, const std::string& value) {
    if (!is_numeric(key)) refuse_key(key, numeric_keys(), "--at-most");
    constraints.at_most[key] = parse_integer(value, flag("--at-most"));
  });
  if (flags.micro > 0) constraints.fixed["micro"] = flags.micro;
}

std::vector<spec::Precision> parse_precisions(const std::string& text) {
  std::vector<spec::Precision> precisions;
  if (text.empty()) return precisions;
  for (const std::string& name : split(text, ',')) {
    precisions.push_back(require_choice(plan::parse_precision(trim(name)), "precision", name,
                                        "fp64, fp32, fp16, bf16 or fp8", "--precision"));
  }
  return precisions;
}

planner::Objective parse_objective(const std::string& name) {
  if (name == "throughput" || name == "pareto") return planner::Objective::kThroughput;
  if (name == "goodput") return planner::Objective::kGoodput;
  if (name == "dollars") return planner::Objective::kDollars;
  return planner::Objective::kDeadline;
}

// The kind with most devices: what a profile is looked up for.
const spec::Device& main_device(const spec::Cluster& cluster) {
  return std::max_element(cluster.groups.begin(), cluster.groups.end(),
                          [](const spec::NodeGroup& a, const spec::NodeGroup& b) {
                            return a.nodes * a.devices_per_node < b.nodes * b.devices_per_node;
                          })
      ->device;
}

// This machine measured as the job would use it.
cost::Profile profile_of_this_machine(const planner::SearchRequest& request) {
  spec::Job job;
  job.model = request.model;
  job.cluster = request.cluster;
  job.precision = request.precisions.empty() ? spec::Precision::kFp32 : request.precisions.front();
  const Placement placement = place(job, "");
  if (auto profile = find_profile(placement, job.precision, "")) return std::move(*profile);
  throw environment_error(
      fmt::format("there is no {} profile of this machine for {} ranks over {}", spec::to_string(job.precision),
                  placement.world, placement.backend),
      fmt::format("run `lockstep calibrate --ranks {}` first, or name one with --profile", placement.world));
}

cost::Profile profile_of(const planner::SearchRequest& request, const std::string& name) {
  if (!name.empty()) return cost::find_profile(name);
  const spec::Device& device = main_device(request.cluster);
  return device.is_cpu() ? profile_of_this_machine(request) : cost::engine_profile_for(request.cluster);
}

void apply_layout(const std::string& text, const PlanFlags& flags, planner::SearchRequest& request) {
  plan::Layout layout = plan::parse_layout(text);
  const std::int64_t devices = request.cluster.devices();
  std::optional<std::string> problem = plan::find_layout_problem(layout, &request.model);
  if (!problem && layout.world() > devices) {
    problem = fmt::format("layout {} needs {} ranks, {} has {}", plan::to_string(layout), layout.world(),
                          request.cluster.name, devices);
  }
  if (problem) {
    const auto nearest = plan::nearest_valid_layout(layout, request.model, devices);
    throw bad_input(*problem, nearest ? "nearest that works: " + plan::to_string(*nearest) : "change that axis",
                    flag("--layout"));
  }
  if (text.find("precision=") != std::string::npos) request.precisions = {layout.precision};
  request.constraints =
      planner::constraints_of(layout, flags.micro > 0 ? std::optional<std::int64_t>(flags.micro) : std::nullopt);
  request.constraints.allow_idle_devices = layout.world() < devices;
  // Who names a layout wants its price; the risk is shown beside it.
  request.constraints.largest_out_of_memory_probability = 0.5;
}

spec::Job job_of(const PlanFlags& flags) {
  std::vector<std::string> overrides = flags.overrides;
  if (!flags.model.empty()) overrides.push_back("model=" + flags.model);
  if (!flags.cluster.empty()) overrides.push_back("cluster=" + flags.cluster);
  return spec::load_job(flags.job_file, overrides);
}

// What the command line says of the job's batch is meant, whereas the file's own micro-batch gives the global batch.
void keep_overridden_batch(const PlanFlags& flags, const spec::Job& job, planner::Constraints& constraints) {
  for (const std::string& override : flags.overrides) {
    const std::string key(trim(override.substr(0, override.find('='))));
    if (key == "batch.micro") constraints.fixed.try_emplace("micro", job.batch.micro);
    if (key == "batch.accumulation") constraints.fixed.try_emplace("accumulation", job.batch.accumulation);
  }
}

// Everything that the job file settles; the flags then change it.
planner::SearchRequest request_of_job(const spec::Job& job, std::string& layout) {
  planner::SearchRequest request;
  request.model = job.model;
  request.cluster = job.cluster;
  request.sequence_length = job.batch.sequence_length;
  request.optimizer = job.optimizer.kind;
  request.state_precision = job.optimizer.state_precision;
  request.lora = job.lora;
  request.precisions = {job.precision};
  request.tokens = static_cast<double>(job.tokens);  // 0 where the job counts steps or epochs
  std::int64_t data_ranks = job.cluster.devices();
  if (job.layout) {
    const plan::Layout given = plan::layout_from_request(*job.layout, job.precision);
    plan::require_runnable_layout(given, job.model, job.cluster.devices());
    data_ranks = given.data_ranks();
    layout = plan::to_string(given);
  }
  request.global_sequences = job.batch.micro * job.batch.accumulation * data_ranks;
  return request;
}

planner::SearchRequest request_of_names(const PlanFlags& flags) {
  if (flags.model.empty() || flags.cluster.empty()) {
    throw bad_input("a plan needs a model and a cluster",
                    "write --model llama2-13b --cluster 4x8xH100, or name a job file");
  }
  planner::SearchRequest request;
  request.model = spec::load_model(flags.model);
  request.cluster = spec::load_cluster(flags.cluster);
  return request;
}

// Tokens (samples for images) of so many steps.
double work_of_steps(std::int64_t steps, const planner::SearchRequest& request) {
  const std::int64_t length = std::max<std::int64_t>(1, request.sequence_length);
  return static_cast<double>(steps) * static_cast<double>(request.global_sequences) * static_cast<double>(length);
}

}  // namespace

planner::SearchRequest request_of(const PlanFlags& flags) {
  std::string layout;
  std::optional<spec::Job> job;
  if (!flags.job_file.empty()) job = job_of(flags);
  planner::SearchRequest request = job ? request_of_job(*job, layout) : request_of_names(flags);
  if (!flags.layout.empty()) layout = flags.layout;
  if (!flags.precision.empty()) request.precisions = parse_precisions(flags.precision);
  if (flags.sequence_length > 0) request.sequence_length = flags.sequence_length;
  if (!flags.global_batch.empty()) {
    const std::int64_t length = request.sequence_length > 0 ? request.sequence_length : request.model.max_sequence;
    request.global_sequences = parse_global_batch(flags.global_batch, request.model.is_language_model() ? length : 0);
  }
  if (job && job->steps > 0) request.tokens = work_of_steps(job->steps, request);
  if (!flags.tokens.empty()) request.tokens = static_cast<double>(parse_count(flags.tokens, flag("--tokens")));
  if (!flags.deadline.empty()) request.deadline_seconds = parse_seconds(flags.deadline, flag("--deadline"));
  if (request.deadline_seconds > 0 && request.tokens <= 0) {
    throw bad_input("a deadline needs the length of the job", "give --tokens, for instance --tokens 300B",
                    flag("--deadline"));
  }
  if (!flags.max_lost.empty()) request.max_lost_seconds = parse_seconds(flags.max_lost, flag("--max-lost"));
  request.objective = parse_objective(flags.objective);
  request.switched_off = flags.switch_off;
  if (!layout.empty()) {
    if (!flags.fix.empty() || !flags.at_most.empty()) {
      if (flags.layout.empty()) {
        throw bad_input("the job file names the whole layout, --fix and --at-most parts of one",
                        "change parts of the file's (layout.recompute=full), or take the layout out of it");
      }
      throw bad_input("--layout names the whole layout, --fix and --at-most parts of it", "use one or the other");
    }
    apply_layout(layout, flags, request);
  } else {
    apply_constraints(flags, request.constraints);
  }
  if (job) keep_overridden_batch(flags, *job, request.constraints);
  request.profile = profile_of(request, flags.profile);
  if (job) request.profile = planner::with_adapters(std::move(request.profile), job->lora, request.model);
  // Tables of this machine price what the engine runs, without a search: the job's own micro-batch.
  const bool same_batch = flags.layout.empty() && flags.global_batch.empty();
  if (job && same_batch && !request.profile.fitted) request.constraints.fixed.try_emplace("micro", job->batch.micro);
  return request;
}

std::vector<std::string> notices_of(const PlanFlags& flags, const planner::SearchRequest& request,
                                    const plan::Candidate& best) {
  std::vector<std::string> notices;
  if (const auto refusal = planner::find_untrained(request, best.layout, best.batch.micro)) {
    const bool fp8 = best.layout.precision == spec::Precision::kFp8;
    notices.push_back(*refusal + (fp8 ? "; priced as frameworks that train it" : "; priced with fp32 states"));
  }
  const plan::BatchPlan& batch = best.batch;
  const std::int64_t length = request.sequence_length, longest = request.model.max_sequence;
  if (request.model.is_language_model() && length > longest) {
    notices.push_back(fmt::format("sequence {} is longer than the model's maximum of {}", length, longest));
  }
  if (flags.sequence_length == 0 && length == longest && length > kUsualLongest) {
    notices.push_back(fmt::format("sequence {}: the model's maximum; --seq 4096 for pretraining", length));
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
  other.profile = profile_of(other, flags.profile);
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
