#include "lockstep/engine/trained_model.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/yaml.h"
#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/engine/pretrained.h"
#include "lockstep/nn/foreign_model.h"
#include "lockstep/nn/hf_weights.h"
#include "lockstep/spec/job_reader.h"

namespace lockstep::engine {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kStateDict = "model.safetensors";  // all that an exported module is

bool is_weight_folder(const fs::path& path) {
  std::error_code ignored;
  return path.extension() == ".safetensors" || fs::exists(path / "config.json", ignored) ||
         fs::exists(path / kStateDict, ignored);
}

spec::Job with_overrides(const std::string& yaml, const std::string& name, const json& request) {
  YamlNode root = parse_yaml(yaml, name);
  for (const json& assignment : request.value("overrides", json::array())) {
    apply_override(root, assignment.get<std::string>(), {{"model", "preset"}});
  }
  return spec::read_job(root, name);
}

nn::BuildOptions build_options(const spec::Job& job) {
  nn::BuildOptions options;
  options.dtype = job.precision == spec::Precision::kFp64 ? torch::kDouble : torch::kFloat;
  options.seed = static_cast<std::uint64_t>(job.seed);
  return options;
}

TrainedModel from_checkpoint(const fs::path& path, const json& request) {
  const auto reader = checkpoint::CheckpointReader::open(path);
  const std::string given = request.value("job", "");
  TrainedModel trained{.path = path.string(), .step = reader.info().step, .job = {}, .tokenizer = "", .model = {}};
  trained.job = with_overrides(given.empty() ? reader.facts(0).job_yaml : given, "checkpoint", request);
  trained.tokenizer = trained.job.data.tokenizer;
  nn::TensorMap weights;
  for (const std::string& name : reader.names(checkpoint::TensorKind::kModel)) {
    weights[name] = reader.read_whole(checkpoint::TensorKind::kModel, name);
  }
  if (trained.job.lora.rank > 0) merge_adapters(weights, trained.job.model, trained.job.lora);
  trained.model = nn::build_model(trained.job.model, build_options(trained.job));
  nn::load_weights(*trained.model, weights, trained.path);
  return trained;
}

TrainedModel from_folder(const fs::path& path, const json& request) {
  TrainedModel trained{.path = path.string(), .step = -1, .job = {}, .tokenizer = path.string(), .model = {}};
  if (const std::string given = request.value("job", ""); !given.empty()) {
    trained.job = with_overrides(given, "job", request);
    trained.tokenizer = trained.job.data.tokenizer;
  } else if (fs::exists(path / kStateDict) && !fs::exists(path / "config.json")) {
    throw bad_input("a folder of weights without config.json does not say what model it is of",
                    "name the job with --job JOB.yaml", {path.string()});
  } else {
    trained.job.model = spec::load_model(path.string());
  }
  trained.model = nn::build_model(trained.job.model, build_options(trained.job));
  if (trained.job.model.is_scripted()) {  // under its own names
    const fs::path file = fs::is_directory(path) ? path / kStateDict : path;
    auto weights = checkpoint::SafetensorsFile::open(file).read_all();
    if (const auto* module = dynamic_cast<const nn::ForeignModel*>(trained.model.get()))
      for (const auto& [alias, saved] : module->aliases()) weights.erase(alias);
    nn::load_weights(*trained.model, weights, file.string());
    return trained;
  }
  const nn::LoadReport report = load_pretrained(*trained.model, path.string());
  if (!report.initial.empty()) {
    throw bad_input(
        fmt::format("{} has no {}: the model would answer with random weights", path.string(), report.initial.front()),
        "name the folder of the trained model");
  }
  return trained;
}

}  // namespace

fs::path checkpoint_at(const fs::path& given) {
  if (fs::exists(given / "manifest.json")) return given;
  for (const fs::path& folder : {given, given / "checkpoints"}) {
    const auto found = checkpoint::list_checkpoints(folder);
    if (!found.empty()) return found.front().path;
  }
  throw bad_input("there is no checkpoint", "give a step-* folder, or the folder that holds them", {given.string()});
}

TrainedModel open_trained_model(const json& request) {
  const fs::path path = request.at("path").get<std::string>();
  return is_weight_folder(path) ? from_folder(path, request) : from_checkpoint(checkpoint_at(path), request);
}

int run_tool(const Host& host, const std::function<json()>& tool) {
  int code = static_cast<int>(ExitCode::kRunFailed);
  std::string message;
  try {
    json result = tool();
    const int exit_code = result.value("exit_code", 0);
    result["type"] = "result";
    host.send(result);
    return exit_code;
  } catch (const UserError& error) {
    code = static_cast<int>(error.code());
    message = error.what();
  } catch (const std::exception& error) {
    message = error.what();
  }
  host.send({{"type", "error"}, {"rank", -1}, {"kind", "user"}, {"exit_code", code}, {"message", message}});
  return code;
}

}  // namespace lockstep::engine
