#include "lockstep/cost/profile/profile.h"

#include <array>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/file.h"
#include "lockstep/base/json.h"
#include "lockstep/cost/profile/fitted_json.h"
#include "lockstep/plan/spec_json.h"

namespace lockstep::cost {
namespace {

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

const std::vector<std::string>& precision_names() {
  static const std::vector<std::string> names{"fp64", "fp32", "fp16", "bf16", "fp8"};
  return names;
}

// The fields of a value are listed once, in describe(); what visits them writes the value or reads it.
class Writer {
 public:
  void text(const char* key, const std::string& value) { json_[key] = value; }
  void boolean(const char* key, bool value) { json_[key] = value; }
  void integer(const char* key, std::int64_t value) { json_[key] = value; }
  void positive(const char* key, std::int64_t value) { json_[key] = value; }
  void rate(const char* key, double value) { json_[key] = value; }
  void non_negative(const char* key, double value) { json_[key] = value; }
  template <class E>
  void choice(const char* key, E value, const std::vector<std::string>& names) {
    json_[key] = names[static_cast<std::size_t>(value)];
  }
  void model(const char* key, const spec::Model& value) { json_[key] = plan::model_to_json(value); }
  void if_positive(const char* key, double value) {
    if (value > 0) json_[key] = value;
  }
  template <class T>
  void optional(const char* key, std::optional<T>& value);
  template <class T>
  void list(const char* key, std::vector<T>& values);
  nlohmann::json take() { return std::move(json_); }

 private:
  nlohmann::json json_ = nlohmann::json::object();
};

class Reader {
 public:
  explicit Reader(JsonReader reader) : reader_(std::move(reader)) {}
  void text(const char* key, std::string& value) { value = reader_.text(key); }
  void boolean(const char* key, bool& value) { value = reader_.boolean(key); }
  void integer(const char* key, std::int64_t& value) { value = reader_.integer(key); }
  void positive(const char* key, std::int64_t& value) { value = reader_.positive(key); }
  void rate(const char* key, double& value) {
    value = reader_.real(key);
    if (value <= 0) reader_.fail(key, "expected a number above 0");
  }
  void non_negative(const char* key, double& value) { value = reader_.non_negative(key); }
  template <class E>
  void choice(const char* key, E& value, const std::vector<std::string>& names) {
    value = static_cast<E>(reader_.choice(key, names));
  }
  void model(const char* key, spec::Model& value) { value = plan::read_model(reader_.object(key)); }
  void if_positive(const char* key, double& value) {
    if (reader_.has(key)) value = reader_.non_negative(key);
  }
  template <class T>
  void optional(const char* key, std::optional<T>& value);
  template <class T>
  void list(const char* key, std::vector<T>& values);
  const JsonReader& finish() {
    reader_.finish();
    return reader_;
  }

 private:
  JsonReader reader_;
};

template <class Fields>
void describe(Fields& fields, Provenance& value) {
  fields.text("hardware", value.hardware);
  fields.text("software", value.software);
  fields.text("version", value.version);
  fields.text("date", value.date);
  fields.text("method", value.method);
  fields.positive("ranks", value.ranks);
  fields.positive("threads", value.threads);
  fields.integer("cores", value.cores);
  fields.text("backend", value.backend);
}

template <class Fields>
void describe(Fields& fields, MatmulPoint& point) {
  fields.choice("kind", point.kind, matmul_names());
  fields.choice("precision", point.precision, precision_names());
  fields.positive("m", point.m);
  fields.positive("n", point.n);
  fields.positive("k", point.k);
  fields.rate("flops_per_second", point.flops_per_second);
  fields.non_negative("spread", point.spread);
}

template <class Fields>
void describe(Fields& fields, AttentionPoint& point) {
  fields.choice("precision", point.precision, precision_names());
  fields.boolean("causal", point.causal);
  fields.positive("heads", point.heads);
  fields.positive("sequence", point.sequence);
  fields.positive("head_dim", point.head_dim);
  fields.rate("forward_seconds", point.forward_seconds);
  fields.rate("backward_seconds", point.backward_seconds);
  fields.non_negative("spread", point.spread);
}

template <class Fields>
void describe(Fields& fields, PointwisePoint& point) {
  fields.choice("kernel", point.kernel, kernel_names());
  fields.choice("precision", point.precision, precision_names());
  fields.positive("elements", point.elements);
  fields.non_negative("forward_seconds", point.forward_seconds);
  fields.non_negative("backward_seconds", point.backward_seconds);
  fields.non_negative("spread", point.spread);
}

template <class Fields>
void describe(Fields& fields, CollectivePoint& point) {
  fields.choice("op", point.op, collective_names());
  fields.positive("ranks", point.ranks);
  fields.positive("bytes", point.bytes);
  fields.rate("seconds", point.seconds);
  fields.non_negative("spread", point.spread);
}

template <class Fields>
void describe(Fields& fields, CheckWorkload& workload) {
  fields.model("model", workload.model);
  fields.choice("precision", workload.precision, precision_names());
  fields.positive("ranks", workload.ranks);
  fields.positive("micro", workload.micro);
  fields.positive("accumulation", workload.accumulation);
  fields.integer("sequence_length", workload.sequence_length);
}

template <class Fields>
void describe(Fields& fields, CalibrationCheck& check) {
  fields.text("name", check.name);
  fields.choice("family", check.family, {"transformer", "image"});
  fields.rate("predicted_seconds", check.predicted_seconds);
  fields.rate("measured_seconds", check.measured_seconds);
  fields.non_negative("spread", check.spread);
  fields.if_positive("peak_bytes", check.peak_bytes);
  fields.optional("workload", check.workload);
}

// The tables alone.
template <class Fields>
void describe(Fields& fields, Profile& profile) {
  fields.rate("peak_flops", profile.peak_flops);
  fields.list("matmuls", profile.matmuls);
  fields.list("attention", profile.attention);
  fields.list("pointwise", profile.pointwise);
  fields.rate("memory_bytes_per_second", profile.memory_bytes_per_second);
  fields.non_negative("operator_seconds", profile.operator_seconds);
  fields.non_negative("backward_operator_seconds", profile.backward_operator_seconds);
  fields.rate("optimizer_bytes_per_second", profile.optimizer_bytes_per_second);
  fields.list("collectives", profile.collectives);
  fields.non_negative("overlap", profile.overlap);
  fields.non_negative("framework_bytes", profile.framework_bytes);
  fields.list("checks", profile.checks);
}

template <class T>
nlohmann::json write(T value) {
  Writer writer;
  describe(writer, value);
  return writer.take();
}

template <class T>
JsonReader read(JsonReader reader, T& value) {
  Reader fields(std::move(reader));
  describe(fields, value);
  return fields.finish();
}

template <class T>
void Writer::optional(const char* key, std::optional<T>& value) {
  if (value) json_[key] = write(*value);
}
template <class T>
void Writer::list(const char* key, std::vector<T>& values) {
  nlohmann::json& list = json_[key] = nlohmann::json::array();
  for (const T& value : values) list.push_back(write(value));
}
template <class T>
void Reader::optional(const char* key, std::optional<T>& value) {
  if (reader_.has(key)) read(reader_.object(key), value.emplace());
}
template <class T>
void Reader::list(const char* key, std::vector<T>& values) {
  for (JsonReader& item : reader_.objects(key)) read(item, values.emplace_back());
}

// Calibration fills the tables; a profile that was only fitted has none.
bool has_tables(const Profile& profile) { return !profile.matmuls.empty() || !profile.collectives.empty(); }

void read_tables(JsonReader reader, Profile& profile) {
  const JsonReader tables = read(std::move(reader), profile);
  if (profile.overlap > 1) tables.fail("overlap", "expected a share between 0 and 1");
}

}  // namespace

std::string Profile::identity() const {
  const std::string after = provenance.observed.empty() ? "" : " | after " + provenance.observed;
  return fmt::format("{} | {} | {} x {} threads | {}{}", provenance.hardware, provenance.software, provenance.ranks,
                     provenance.threads, provenance.date, after);
}

nlohmann::json to_json(const Profile& profile) {
  nlohmann::json document = {{"schema", kSchema}, {"provenance", write(profile.provenance)}};
  if (profile.fitted) document["fitted"] = fitted_to_json(*profile.fitted);
  if (profile.dense) document["dense"] = fused_to_json(*profile.dense);
  if (has_tables(profile)) document["tables"] = write(profile);
  return document;
}

Profile read_profile(const nlohmann::json& document, const std::string& name_for_errors) {
  JsonReader reader(document, name_for_errors);
  reader.require_text("schema", kSchema);
  Profile profile;
  read(reader.object("provenance"), profile.provenance);
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
