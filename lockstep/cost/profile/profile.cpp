#include "lockstep/cost/profile/profile.h"

#include <array>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/file.h"
#include "lockstep/base/json.h"
#include "lockstep/cost/profile/fitted_json.h"
#include "lockstep/plan/spec_json.h"
#include "lockstep/plan/strict_reader.h"

namespace lockstep::cost {
namespace {

using plan::StrictReader;

constexpr const char* kSchema = "lockstep.profile/1";

// In the order of the enums.
const std::vector<std::string>& matmul_names() {
  static const std::vector<std::string> names{"forward", "input_gradient", "weight_gradient", "convolution_forward",
                                              "convolution_backward"};
  return names;
}
const std::vector<std::string>& kernel_names() {
  static const std::vector<std::string> names{
      "add",    "gelu",    "silu",      "relu",          "multiply", "layer_norm",   "rms_norm",    "batch_norm",
      "rotary", "dropout", "embedding", "cross_entropy", "max_pool", "average_pool", "residual_add"};
  return names;
}
const std::vector<std::string>& collective_names() {
  static const std::vector<std::string> names{"all_reduce", "reduce_scatter", "all_gather",
                                              "broadcast",  "all_to_all",     "send_receive"};
  return names;
}

spec::Precision read_precision(StrictReader& reader) {
  return static_cast<spec::Precision>(reader.choice("precision", {"fp64", "fp32", "fp16", "bf16", "fp8"}));
}

double read_rate(StrictReader& reader, const char* key) {
  const double rate = reader.number(key);
  if (rate <= 0) reader.fail(key, "expected a number above 0");
  return rate;
}

nlohmann::json provenance_to_json(const Provenance& provenance) {
  return {{"hardware", provenance.hardware}, {"software", provenance.software}, {"version", provenance.version},
          {"date", provenance.date},         {"method", provenance.method},     {"ranks", provenance.ranks},
          {"threads", provenance.threads},   {"cores", provenance.cores},       {"backend", provenance.backend}};
}

Provenance read_provenance(StrictReader reader) {
  Provenance provenance;
  provenance.hardware = reader.text("hardware");
  provenance.software = reader.text("software");
  provenance.version = reader.text("version");
  provenance.date = reader.text("date");
  provenance.method = reader.text("method");
  provenance.ranks = reader.positive("ranks");
  provenance.threads = reader.positive("threads");
  provenance.cores = reader.integer("cores");
  provenance.backend = reader.text("backend");
  reader.finish();
  return provenance;
}

nlohmann::json point_to_json(const MatmulPoint& point) {
  return {{"kind", to_string(point.kind)},
          {"precision", spec::to_string(point.precision)},
          {"m", point.m},
          {"n", point.n},
          {"k", point.k},
          {"flops_per_second", point.flops_per_second},
          {"spread", point.spread}};
}

MatmulPoint read_matmul(StrictReader& reader) {
  MatmulPoint point;
  point.kind = static_cast<MatmulKind>(reader.choice("kind", matmul_names()));
  point.precision = read_precision(reader);
  point.m = reader.positive("m");
  point.n = reader.positive("n");
  point.k = reader.positive("k");
  point.flops_per_second = read_rate(reader, "flops_per_second");
  point.spread = reader.non_negative("spread");
  reader.finish();
  return point;
}

nlohmann::json point_to_json(const AttentionPoint& point) {
  return {{"precision", spec::to_string(point.precision)},
          {"causal", point.causal},
          {"heads", point.heads},
          {"sequence", point.sequence},
          {"head_dim", point.head_dim},
          {"forward_seconds", point.forward_seconds},
          {"backward_seconds", point.backward_seconds},
          {"spread", point.spread}};
}

AttentionPoint read_attention(StrictReader& reader) {
  AttentionPoint point;
  point.precision = read_precision(reader);
  point.causal = reader.boolean("causal");
  point.heads = reader.positive("heads");
  point.sequence = reader.positive("sequence");
  point.head_dim = reader.positive("head_dim");
  point.forward_seconds = read_rate(reader, "forward_seconds");
  point.backward_seconds = read_rate(reader, "backward_seconds");
  point.spread = reader.non_negative("spread");
  reader.finish();
  return point;
}

nlohmann::json point_to_json(const PointwisePoint& point) {
  return {{"kernel", to_string(point.kernel)},
          {"precision", spec::to_string(point.precision)},
          {"elements", point.elements},
          {"forward_seconds", point.forward_seconds},
          {"backward_seconds", point.backward_seconds},
          {"spread", point.spread}};
}

PointwisePoint read_pointwise(StrictReader& reader) {
  PointwisePoint point;
  point.kernel = static_cast<PointwiseKernel>(reader.choice("kernel", kernel_names()));
  point.precision = read_precision(reader);
  point.elements = reader.positive("elements");
  point.forward_seconds = reader.non_negative("forward_seconds");
  point.backward_seconds = reader.non_negative("backward_seconds");
  point.spread = reader.non_negative("spread");
  reader.finish();
  return point;
}

nlohmann::json point_to_json(const CollectivePoint& point) {
  return {{"op", to_string(point.op)},
          {"ranks", point.ranks},
          {"bytes", point.bytes},
          {"seconds", point.seconds},
          {"spread", point.spread}};
}

CollectivePoint read_collective(StrictReader& reader) {
  CollectivePoint point;
  point.op = static_cast<CollectiveOp>(reader.choice("op", collective_names()));
  point.ranks = reader.positive("ranks");
  point.bytes = reader.positive("bytes");
  point.seconds = read_rate(reader, "seconds");
  point.spread = reader.non_negative("spread");
  reader.finish();
  return point;
}

nlohmann::json workload_to_json(const CheckWorkload& workload) {
  return {{"model", plan::model_to_json(workload.model)},
          {"precision", spec::to_string(workload.precision)},
          {"ranks", workload.ranks},
          {"micro", workload.micro},
          {"accumulation", workload.accumulation},
          {"sequence_length", workload.sequence_length}};
}

CheckWorkload read_workload(StrictReader reader) {
  CheckWorkload workload;
  workload.model = plan::read_model(reader.object("model"));
  workload.precision = read_precision(reader);
  workload.ranks = reader.positive("ranks");
  workload.micro = reader.positive("micro");
  workload.accumulation = reader.positive("accumulation");
  workload.sequence_length = reader.integer("sequence_length");
  reader.finish();
  return workload;
}

nlohmann::json point_to_json(const CalibrationCheck& point) {
  nlohmann::json check = {{"name", point.name},
                          {"family", point.family == CheckFamily::kTransformer ? "transformer" : "image"},
                          {"predicted_seconds", point.predicted_seconds},
                          {"measured_seconds", point.measured_seconds},
                          {"spread", point.spread}};
  if (point.peak_bytes > 0) check["peak_bytes"] = point.peak_bytes;
  if (point.workload) check["workload"] = workload_to_json(*point.workload);
  return check;
}

CalibrationCheck read_check(StrictReader& reader) {
  CalibrationCheck point;
  point.name = reader.text("name");
  point.family = static_cast<CheckFamily>(reader.choice("family", {"transformer", "image"}));
  point.predicted_seconds = read_rate(reader, "predicted_seconds");
  point.measured_seconds = read_rate(reader, "measured_seconds");
  point.spread = reader.non_negative("spread");
  if (reader.has("peak_bytes")) point.peak_bytes = reader.non_negative("peak_bytes");
  if (reader.has("workload")) point.workload = read_workload(reader.object("workload"));
  reader.finish();
  return point;
}

template <class Point>
nlohmann::json points_to_json(const std::vector<Point>& points) {
  nlohmann::json list = nlohmann::json::array();
  for (const Point& point : points) list.push_back(point_to_json(point));
  return list;
}

template <class Read>
auto read_points(StrictReader& reader, const char* key, Read read) {
  std::vector<decltype(read(std::declval<StrictReader&>()))> points;
  for (StrictReader& item : reader.objects(key)) points.push_back(read(item));
  return points;
}

// Calibration fills the tables; a profile that was only fitted has none.
bool has_tables(const Profile& profile) { return !profile.matmuls.empty() || !profile.collectives.empty(); }

nlohmann::json tables_to_json(const Profile& profile) {
  return {{"peak_flops", profile.peak_flops},
          {"matmuls", points_to_json(profile.matmuls)},
          {"attention", points_to_json(profile.attention)},
          {"pointwise", points_to_json(profile.pointwise)},
          {"memory_bytes_per_second", profile.memory_bytes_per_second},
          {"operator_seconds", profile.operator_seconds},
          {"backward_operator_seconds", profile.backward_operator_seconds},
          {"optimizer_bytes_per_second", profile.optimizer_bytes_per_second},
          {"collectives", points_to_json(profile.collectives)},
          {"overlap", profile.overlap},
          {"framework_bytes", profile.framework_bytes},
          {"checks", points_to_json(profile.checks)}};
}

void read_tables(StrictReader reader, Profile& profile) {
  profile.peak_flops = read_rate(reader, "peak_flops");
  profile.matmuls = read_points(reader, "matmuls", read_matmul);
  profile.attention = read_points(reader, "attention", read_attention);
  profile.pointwise = read_points(reader, "pointwise", read_pointwise);
  profile.memory_bytes_per_second = read_rate(reader, "memory_bytes_per_second");
  profile.operator_seconds = reader.non_negative("operator_seconds");
  profile.backward_operator_seconds = reader.non_negative("backward_operator_seconds");
  profile.optimizer_bytes_per_second = read_rate(reader, "optimizer_bytes_per_second");
  profile.collectives = read_points(reader, "collectives", read_collective);
  profile.overlap = reader.non_negative("overlap");
  if (profile.overlap > 1) reader.fail("overlap", "expected a share between 0 and 1");
  profile.framework_bytes = reader.non_negative("framework_bytes");
  profile.checks = read_points(reader, "checks", read_check);
  reader.finish();
}

}  // namespace

std::string Profile::identity() const {
  return fmt::format("{} | {} | {} x {} threads | {}", provenance.hardware, provenance.software, provenance.ranks,
                     provenance.threads, provenance.date);
}

nlohmann::json to_json(const Profile& profile) {
  nlohmann::json document = {{"schema", kSchema}, {"provenance", provenance_to_json(profile.provenance)}};
  if (profile.fitted) document["fitted"] = fitted_to_json(*profile.fitted);
  if (profile.dense) document["dense"] = fused_to_json(*profile.dense);
  if (has_tables(profile)) document["tables"] = tables_to_json(profile);
  return document;
}

Profile read_profile(const nlohmann::json& document, const std::string& name_for_errors) {
  StrictReader reader(document, name_for_errors);
  reader.require_text("schema", kSchema);
  Profile profile;
  profile.provenance = read_provenance(reader.object("provenance"));
  if (reader.has("fitted")) profile.fitted = read_fitted(reader.object("fitted"));
  if (reader.has("dense")) profile.dense = read_fused(reader.object("dense"));
  if (reader.has("tables")) read_tables(reader.object("tables"), profile);
  if (!profile.fitted && !profile.dense && !has_tables(profile)) {
    reader.fail("", "has neither `tables` nor `fitted` nor `dense`");
  }
  reader.finish();
  return profile;
}

void save_profile(const Profile& profile, const std::string& path) {
  write_file_atomically(path, to_json(profile).dump(1) + "\n");
}

Profile load_profile(const std::string& path) { return read_profile(read_json_file(path), path); }

const char* to_string(MatmulKind kind) { return matmul_names()[static_cast<std::size_t>(kind)].c_str(); }
const char* to_string(PointwiseKernel kernel) { return kernel_names()[static_cast<std::size_t>(kernel)].c_str(); }
const char* to_string(CollectiveOp op) { return collective_names()[static_cast<std::size_t>(op)].c_str(); }

}  // namespace lockstep::cost
