#include "lockstep/plan/plan.h"

#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/json.h"
#include "lockstep/base/units.h"
#include "lockstep/plan/spec_json.h"

namespace lockstep::plan {
namespace {

constexpr const char* kSchema = "lockstep.plan/1";

nlohmann::json interval_to_json(const Interval& interval) {
  return {{"low", interval.low}, {"expected", interval.expected}, {"high", interval.high}};
}

Interval read_interval(const JsonReader& reader) {
  Interval interval{reader.non_negative("low"), reader.non_negative("expected"), reader.non_negative("high")};
  reader.finish();
  if (interval.low > interval.expected || interval.expected > interval.high) {
    reader.fail("", "expected low <= expected <= high");
  }
  return interval;
}

// These stand beside the layout in the file; in memory they are part of it.
bool is_beside(const LayoutField& field) {
  const std::string_view name = field.name();
  return name == "schedule" || name == "recompute" || name == "precision";
}

bool is_truth(const LayoutField& field) { return field.key->choices.data() == spec::names::kTruth.data(); }

nlohmann::json value_to_json(const LayoutField& field, const Layout& layout) {
  if (is_truth(field)) return field.get(layout) != 0;
  return field.is_axis() ? nlohmann::json(field.get(layout)) : nlohmann::json(field.text(layout));
}

nlohmann::json layout_to_json(const Layout& layout) {
  nlohmann::json json{{"stage_layers", layout.stage_layers}};
  for (const LayoutField& field : layout_fields()) {
    if (!is_beside(field)) json[field.name()] = value_to_json(field, layout);
  }
  return json;
}

std::int64_t read_value(JsonReader& reader, const LayoutField& field) {
  if (is_truth(field)) return reader.boolean(field.name()) ? 1 : 0;
  if (!field.is_axis()) {
    const auto choices = field.key->choices;
    return static_cast<std::int64_t>(reader.choice(field.name(), {choices.begin(), choices.end()}));
  }
  return field.key->least > 0 ? reader.positive(field.name()) : reader.integer(field.name());
}

Layout read_layout(JsonReader& candidate, const spec::Model& model) {
  JsonReader reader = candidate.object("layout");
  Layout layout;
  for (const LayoutField& field : layout_fields()) {
    field.set(layout, read_value(is_beside(field) ? candidate : reader, field));
  }
  layout.stage_layers = reader.integers("stage_layers");
  reader.finish();
  if (const auto problem = find_layout_problem(layout, &model)) candidate.fail("layout", *problem);
  return layout;
}

nlohmann::json batch_to_json(const BatchPlan& batch) {
  return {{"micro", batch.micro},
          {"accumulation", batch.accumulation},
          {"global_sequences", batch.global_sequences},
          {"sequence_length", batch.sequence_length}};
}

BatchPlan read_batch(const JsonReader& reader, const Layout& layout) {
  BatchPlan batch;
  batch.micro = reader.positive("micro");
  batch.accumulation = reader.positive("accumulation");
  batch.global_sequences = reader.positive("global_sequences");
  batch.sequence_length = reader.integer("sequence_length");
  reader.finish();
  // In doubles: a hostile file must not overflow the product.
  const double expected = static_cast<double>(batch.micro) * static_cast<double>(batch.accumulation) *
                          static_cast<double>(layout.data_ranks());
  if (expected != static_cast<double>(batch.global_sequences)) {
    reader.fail("global_sequences",
                fmt::format("is {}, micro x accumulation x dp x shard is {:.0f}", batch.global_sequences, expected));
  }
  if (batch.sequence_length < 0) reader.fail("sequence_length", "is negative");
  return batch;
}

nlohmann::json knobs_to_json(const Knobs& knobs) {
  nlohmann::json json = {{"backend", knobs.backend},
                         {"bucket_mib", knobs.bucket_mib},
                         {"compression", knobs.compression},
                         {"num_workers", knobs.num_workers},
                         {"prefetch_factor", knobs.prefetch_factor},
                         {"threads_per_rank", knobs.threads_per_rank}};
  if (!knobs.nccl_groups.empty()) json["nccl_groups"] = knobs.nccl_groups;
  return json;
}

Knobs read_knobs(const JsonReader& reader) {
  Knobs knobs;
  knobs.backend = reader.text("backend");
  knobs.bucket_mib = reader.non_negative("bucket_mib");
  knobs.compression = reader.text("compression");
  knobs.num_workers = reader.integer("num_workers");
  knobs.prefetch_factor = reader.integer("prefetch_factor");
  knobs.threads_per_rank = reader.integer("threads_per_rank");
  if (reader.has("nccl_groups")) knobs.nccl_groups = reader.text("nccl_groups");
  reader.finish();
  return knobs;
}

nlohmann::json memory_to_json(const MemoryBreakdown& memory) {
  nlohmann::json json = {{"total", memory.total() / kGiB},           {"parameters", memory.parameters / kGiB},
                         {"gradients", memory.gradients / kGiB},     {"optimizer", memory.optimizer / kGiB},
                         {"activations", memory.activations / kGiB}, {"buffers", memory.buffers / kGiB},
                         {"overhead", memory.overhead / kGiB},       {"capacity", memory.capacity / kGiB}};
  if (memory.snapshots > 0) json["snapshots"] = memory.snapshots / kGiB;
  if (memory.host > 0) json["host"] = memory.host / kGiB;
  if (memory.host_capacity > 0) json["host_capacity"] = memory.host_capacity / kGiB;
  return json;
}

MemoryBreakdown read_memory(const JsonReader& reader) {
  MemoryBreakdown memory;
  memory.parameters = reader.non_negative("parameters") * kGiB;
  memory.gradients = reader.non_negative("gradients") * kGiB;
  memory.optimizer = reader.non_negative("optimizer") * kGiB;
  memory.activations = reader.non_negative("activations") * kGiB;
  memory.buffers = reader.non_negative("buffers") * kGiB;
  memory.overhead = reader.non_negative("overhead") * kGiB;
  memory.capacity = reader.non_negative("capacity") * kGiB;
  if (reader.has("snapshots")) memory.snapshots = reader.non_negative("snapshots") * kGiB;
  if (reader.has("host")) memory.host = reader.non_negative("host") * kGiB;
  if (reader.has("host_capacity")) memory.host_capacity = reader.non_negative("host_capacity") * kGiB;
  const double total = reader.non_negative("total") * kGiB;
  reader.finish();
  if (std::abs(total - memory.total()) > 1e-6 * (total + memory.total())) {
    reader.fail("total", "is not the sum of the terms");
  }
  return memory;
}

nlohmann::json prediction_to_json(const Prediction& prediction, std::int64_t world) {
  const double ranks = static_cast<double>(world);
  const Interval& tokens = prediction.tokens_per_second;
  const Interval per_gpu{tokens.low / ranks, tokens.expected / ranks, tokens.high / ranks};
  return {{"tokens_per_second", tokens.expected},
          {"tokens_per_second_per_gpu", per_gpu.expected},
          {"samples_per_second", prediction.samples_per_second.expected},
          {"step_seconds", prediction.step_seconds.expected},
          {"mfu", prediction.mfu.expected},
          {"intervals",
           {{"tokens_per_second", interval_to_json(tokens)},
            {"tokens_per_second_per_gpu", interval_to_json(per_gpu)},
            {"samples_per_second", interval_to_json(prediction.samples_per_second)},
            {"step_seconds", interval_to_json(prediction.step_seconds)},
            {"mfu", interval_to_json(prediction.mfu)}}}};
}

Prediction read_prediction(const JsonReader& reader) {
  JsonReader intervals = reader.object("intervals");
  Prediction prediction;
  prediction.tokens_per_second = read_interval(intervals.object("tokens_per_second"));
  prediction.samples_per_second = read_interval(intervals.object("samples_per_second"));
  prediction.step_seconds = read_interval(intervals.object("step_seconds"));
  prediction.mfu = read_interval(intervals.object("mfu"));
  read_interval(intervals.object("tokens_per_second_per_gpu"));
  intervals.finish();
  // The flat figures repeat the expected ones, for readers that want one number.
  const std::pair<const char*, const Interval*> repeated[] = {{"tokens_per_second", &prediction.tokens_per_second},
                                                              {"samples_per_second", &prediction.samples_per_second},
                                                              {"step_seconds", &prediction.step_seconds},
                                                              {"mfu", &prediction.mfu}};
  for (const auto& [key, interval] : repeated) {
    if (reader.real(key) != interval->expected) reader.fail(key, "differs from intervals." + std::string(key));
  }
  reader.real("tokens_per_second_per_gpu");
  reader.finish();
  return prediction;
}

nlohmann::json breakdown_to_json(const TimeBreakdown& time) {
  nlohmann::json json = {{"compute", time.compute}, {"tp_comm", time.tp_comm},     {"dp_comm", time.dp_comm},
                         {"pp_comm", time.pp_comm}, {"cp_comm", time.cp_comm},     {"ep_comm", time.ep_comm},
                         {"bubble", time.bubble},   {"optimizer", time.optimizer}, {"other", time.other}};
  if (time.selection > 0) json["selection"] = time.selection;
  return json;
}

TimeBreakdown read_breakdown(const JsonReader& reader) {
  TimeBreakdown time;
  time.compute = reader.non_negative("compute");
  time.tp_comm = reader.non_negative("tp_comm");
  time.dp_comm = reader.non_negative("dp_comm");
  time.pp_comm = reader.non_negative("pp_comm");
  time.cp_comm = reader.non_negative("cp_comm");
  time.ep_comm = reader.non_negative("ep_comm");
  time.bubble = reader.non_negative("bubble");
  time.optimizer = reader.non_negative("optimizer");
  time.other = reader.non_negative("other");
  if (reader.has("selection")) time.selection = reader.non_negative("selection");
  reader.finish();
  return time;
}

nlohmann::json candidate_to_json(const Candidate& candidate) {
  nlohmann::json json = {{"layout", layout_to_json(candidate.layout)},
                         {"batch", batch_to_json(candidate.batch)},
                         {"knobs", knobs_to_json(candidate.knobs)},
                         {"recompute", to_string(candidate.layout.recompute)},
                         {"schedule", to_string(candidate.layout.schedule)},
                         {"precision", spec::to_string(candidate.layout.precision)},
                         {"memory_gib", memory_to_json(candidate.memory)},
                         {"out_of_memory_probability", nullptr},
                         {"prediction", nullptr},
                         {"breakdown_seconds", nullptr},
                         {"cost", nullptr},
                         {"checkpoint", nullptr},
                         {"reasons", candidate.reasons}};
  if (candidate.out_of_memory_probability) {
    json["out_of_memory_probability"] = *candidate.out_of_memory_probability;
  }
  if (candidate.prediction) json["prediction"] = prediction_to_json(*candidate.prediction, candidate.layout.world());
  if (candidate.breakdown) json["breakdown_seconds"] = breakdown_to_json(*candidate.breakdown);
  if (candidate.cost) {
    json["cost"] = {
        {"gpu_hours", candidate.cost->gpu_hours}, {"usd", candidate.cost->usd}, {"days", candidate.cost->days}};
  }
  if (candidate.checkpoint) {
    json["checkpoint"] = {{"interval_seconds", candidate.checkpoint->interval_seconds},
                          {"expected_lost_seconds", candidate.checkpoint->expected_lost_seconds},
                          {"worst_lost_seconds", candidate.checkpoint->worst_lost_seconds},
                          {"stall_seconds", candidate.checkpoint->stall_seconds},
                          {"goodput", candidate.checkpoint->goodput}};
  }
  if (!candidate.why_not.empty()) json["why_not"] = candidate.why_not;
  return json;
}

Candidate read_candidate(JsonReader reader, const spec::Model& model, const spec::Cluster& cluster) {
  Candidate candidate;
  candidate.layout = read_layout(reader, model);
  if (candidate.layout.world() > cluster.devices()) {
    reader.fail("layout",
                fmt::format("needs {} ranks, the cluster has {}", candidate.layout.world(), cluster.devices()));
  }
  candidate.batch = read_batch(reader.object("batch"), candidate.layout);
  candidate.knobs = read_knobs(reader.object("knobs"));
  candidate.memory = read_memory(reader.object("memory_gib"));
  if (reader.has("out_of_memory_probability")) {
    candidate.out_of_memory_probability = reader.non_negative("out_of_memory_probability");
  }
  if (reader.has("prediction")) candidate.prediction = read_prediction(reader.object("prediction"));
  if (reader.has("breakdown_seconds")) candidate.breakdown = read_breakdown(reader.object("breakdown_seconds"));
  if (reader.has("cost")) {
    JsonReader cost = reader.object("cost");
    candidate.cost = Cost{cost.non_negative("gpu_hours"), cost.non_negative("usd"), cost.non_negative("days")};
    cost.finish();
  }
  if (reader.has("checkpoint")) {
    JsonReader cadence = reader.object("checkpoint");
    candidate.checkpoint = CheckpointCadence{.interval_seconds = cadence.non_negative("interval_seconds"),
                                             .expected_lost_seconds = cadence.non_negative("expected_lost_seconds"),
                                             .worst_lost_seconds = cadence.non_negative("worst_lost_seconds"),
                                             .stall_seconds = cadence.non_negative("stall_seconds"),
                                             .goodput = cadence.non_negative("goodput")};
    cadence.finish();
  }
  candidate.reasons = reader.texts("reasons");
  if (reader.has("why_not")) candidate.why_not = reader.text("why_not");
  reader.finish();
  return candidate;
}

}  // namespace

nlohmann::json to_json(const Plan& plan) {
  nlohmann::json alternatives = nlohmann::json::array();
  for (const Candidate& candidate : plan.alternatives) alternatives.push_back(candidate_to_json(candidate));
  return {
      {"schema", kSchema},
      {"model", model_to_json(plan.model)},
      {"cluster", cluster_to_json(plan.cluster)},
      {"profile", plan.profile},
      {"best", candidate_to_json(plan.best)},
      {"alternatives", std::move(alternatives)},
      {"search",
       {{"candidates", plan.search.candidates}, {"feasible", plan.search.feasible}, {"seconds", plan.search.seconds}}}};
}

Plan read_plan(const nlohmann::json& document, const std::string& name_for_errors) {
  JsonReader reader(document, name_for_errors);
  reader.require_text("schema", kSchema);
  Plan plan;
  plan.model = read_model(reader.object("model"));
  plan.cluster = read_cluster(reader.object("cluster"));
  plan.profile = reader.text("profile");
  plan.best = read_candidate(reader.object("best"), plan.model, plan.cluster);
  for (JsonReader& candidate : reader.objects("alternatives")) {
    plan.alternatives.push_back(read_candidate(std::move(candidate), plan.model, plan.cluster));
  }
  JsonReader search = reader.object("search");
  plan.search = {search.integer("candidates"), search.integer("feasible"), search.non_negative("seconds")};
  search.finish();
  // The planner's explanation may travel with the plan; what executes it does not need it. `binds`: older files.
  for (const char* key : {"bottleneck", "binds", "what_ifs", "sensitivity", "passes", "stages", "pareto", "strategies"})
    reader.has(key);
  reader.finish();
  return plan;
}

void save_plan(const Plan& plan, const std::string& path) { write_file_atomically(path, to_json(plan).dump(2) + "\n"); }

Plan load_plan(const std::string& path) { return read_plan(read_json_file(path), path); }

}  // namespace lockstep::plan
