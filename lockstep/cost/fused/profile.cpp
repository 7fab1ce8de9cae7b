#include "lockstep/cost/fused/profile.h"

#include <fmt/format.h>

#include "lockstep/plan/spec_json.h"

namespace lockstep::cost {
namespace {

nlohmann::json point_to_json(const FusedPoint& point) {
  nlohmann::json operations = nlohmann::json::array();
  for (const auto& [name, seconds] : point.operations) operations.push_back({{"name", name}, {"seconds", seconds}});
  return {{"model", plan::model_to_json(point.model)},
          {"precision", spec::to_string(point.precision)},
          {"bf16_states", point.bf16_states},
          {"recompute", plan::to_string(point.recompute)},
          {"micro", point.micro},
          {"accumulation", point.accumulation},
          {"sequence_length", point.sequence_length},
          {"seconds", point.seconds},
          {"spread", point.spread},
          {"peak_bytes", point.peak_bytes},
          {"operations", std::move(operations)}};
}

double read_seconds(JsonReader& reader) {
  const double seconds = reader.real("seconds");
  if (seconds <= 0) reader.fail("seconds", "expected a number above 0");
  return seconds;
}

FusedPoint read_point(JsonReader& reader) {
  FusedPoint point;
  point.model = plan::read_model(reader.object("model"));
  point.precision = reader.choice("precision", {"bf16", "fp8"}) == 0 ? spec::Precision::kBf16 : spec::Precision::kFp8;
  point.bf16_states = reader.boolean("bf16_states");
  point.recompute = static_cast<plan::Recompute>(reader.choice("recompute", {"none", "selective", "full"}));
  point.micro = reader.positive("micro");
  point.accumulation = reader.positive("accumulation");
  point.sequence_length = reader.positive("sequence_length");
  point.seconds = read_seconds(reader);
  point.spread = reader.non_negative("spread");
  point.peak_bytes = reader.non_negative("peak_bytes");
  for (JsonReader& item : reader.objects("operations")) {
    point.operations.push_back({item.text("name"), item.non_negative("seconds")});
    item.finish();
  }
  reader.finish();
  return point;
}

}  // namespace

FusedRun FusedPoint::run() const {
  plan::Layout layout;
  layout.precision = precision;
  layout.recompute = recompute;
  FusedRun run = fused_run(model, layout, {micro, accumulation, micro * accumulation, sequence_length});
  run.bf16_states = bf16_states;
  run.gradient_norm = false;
  return run;
}

std::string FusedPoint::name() const {
  return fmt::format("{}x{}, {} x {}{}, {}, {}", model.layers, model.hidden, micro, sequence_length,
                     accumulation > 1 ? fmt::format(" x {}", accumulation) : "", plan::to_string(recompute),
                     spec::to_string(precision));
}

nlohmann::json fused_to_json(const FusedProfile& profile) {
  nlohmann::json constants = nlohmann::json::object(), points = nlohmann::json::array();
  for (const FusedConstantInfo& info : fused_constant_table()) constants[info.name] = profile.constants.*info.member;
  for (const FusedPoint& point : profile.points) points.push_back(point_to_json(point));
  return {{"date", profile.date},
          {"software", profile.software},
          {"constants", std::move(constants)},
          {"residuals", {{"time", profile.time_sigma}, {"memory", profile.memory_sigma}}},
          {"points", std::move(points)}};
}

FusedProfile read_fused(JsonReader reader) {
  FusedProfile profile;
  profile.date = reader.text("date");
  profile.software = reader.text("software");
  JsonReader constants = reader.object("constants");
  for (const FusedConstantInfo& info : fused_constant_table()) {
    // Of a step before its products did SwiGLU on the way: the constant's default.
    if (std::string_view(info.name) == "epilogue_share" && !constants.has(info.name)) continue;
    profile.constants.*info.member = constants.real(info.name);
    if (profile.constants.*info.member <= 0) constants.fail(info.name, "expected a number above 0");
  }
  constants.finish();
  JsonReader residuals = reader.object("residuals");
  profile.time_sigma = residuals.non_negative("time");
  profile.memory_sigma = residuals.non_negative("memory");
  residuals.finish();
  for (JsonReader& item : reader.objects("points")) profile.points.push_back(read_point(item));
  reader.finish();
  return profile;
}

}  // namespace lockstep::cost
