#include "lockstep/spec/job.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <span>
#include <string_view>

#include "lockstep/base/yaml.h"
#include "lockstep/spec/job_reader.h"

namespace lockstep::spec {
namespace {

// Keys of which a file may have one: an override of one takes the place of the other.
constexpr std::array<std::string_view, 3> kGoals = {"steps", "tokens", "epochs"};
constexpr std::array<std::string_view, 2> kLayouts = {"layout", "plan"};

void drop_replaced(YamlNode& root, const std::string& override_key) {
  const std::string top = override_key.substr(0, override_key.find('.'));
  for (const std::span<const std::string_view> group : {std::span<const std::string_view>(kGoals), {kLayouts}}) {
    if (std::find(group.begin(), group.end(), top) == group.end()) continue;
    for (const std::string_view other : group) {
      if (other != top) root.erase(other);
    }
  }
}

}  // namespace

Job load_job(const std::string& path, const std::vector<std::string>& overrides) {
  YamlNode root = read_yaml_file(path);
  // Replaced keys go first, so that of two overrides that exclude each other both stay and are reported.
  for (const std::string& assignment : overrides) drop_replaced(root, assignment.substr(0, assignment.find('=')));
  for (const std::string& assignment : overrides) apply_override(root, assignment, {{"model", "preset"}});
  return read_job(root, std::filesystem::path(path).stem().string());
}

Job parse_job(const std::string& yaml_text, const std::string& name_for_errors) {
  const YamlNode root = parse_yaml(yaml_text, name_for_errors);
  return read_job(root, std::filesystem::path(name_for_errors).stem().string());
}

const char* to_string(Precision precision) {
  switch (precision) {
    case Precision::kFp64:
      return "fp64";
    case Precision::kFp32:
      return "fp32";
    case Precision::kFp16:
      return "fp16";
    case Precision::kBf16:
      return "bf16";
    case Precision::kFp8:
      return "fp8";
  }
  return "";
}

const char* to_string(DataKind kind) {
  switch (kind) {
    case DataKind::kMnist:
      return "mnist";
    case DataKind::kCifar10:
      return "cifar10";
    case DataKind::kImages:
      return "images";
    case DataKind::kText:
      return "text";
    case DataKind::kTokens:
      return "tokens";
    case DataKind::kClassification:
      return "classification";
    case DataKind::kInstruction:
      return "instruction";
  }
  return "";
}

const char* to_string(Compression compression) {
  switch (compression) {
    case Compression::kNone:
      return "none";
    case Compression::kFp16:
      return "fp16";
    case Compression::kBf16:
      return "bf16";
    case Compression::kPowerSgd:
      return "powersgd";
    case Compression::kOneBit:
      return "onebit";
  }
  return "";
}

const char* to_string(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::kAdamW:
      return "adamw";
    case OptimizerKind::kSgd:
      return "sgd";
  }
  return "";
}

const char* to_string(ScheduleKind kind) {
  switch (kind) {
    case ScheduleKind::kConstant:
      return "constant";
    case ScheduleKind::kLinear:
      return "linear";
    case ScheduleKind::kCosine:
      return "cosine";
  }
  return "";
}

const char* to_string(ChatTemplate chat_template) {
  switch (chat_template) {
    case ChatTemplate::kAuto:
      return "auto";
    case ChatTemplate::kChatml:
      return "chatml";
    case ChatTemplate::kLlama2:
      return "llama2";
    case ChatTemplate::kLlama3:
      return "llama3";
    case ChatTemplate::kAlpaca:
      return "alpaca";
    case ChatTemplate::kPlain:
      return "plain";
  }
  return "";
}

}  // namespace lockstep::spec
