#include "lockstep/serve/dcgm.h"

#include <cmath>
#include <map>

#include "lockstep/base/clock.h"
#include "lockstep/base/http_request.h"
#include "lockstep/base/text.h"

namespace lockstep::serve {
namespace {

using nlohmann::json;

constexpr double kFreshSeconds = 5.0;
constexpr std::size_t kMostBytes = std::size_t{16} << 20;

std::string label(const Sample& sample, std::string_view name) {
  for (const auto& [key, value] : sample.labels) {
    if (key == name) return value;
  }
  return {};
}

}  // namespace

bool is_blank_of_dcgm(double value) {
  if (!std::isfinite(value)) return true;
  constexpr double kBlank64 = 9223372036854775792.0, kBlank32 = 2147483632.0, kBlankReal = 140737488355328.0;
  constexpr double kKinds = 3.0;  // blank and the three after it
  return value >= kBlank64 || (value >= kBlank32 && value <= kBlank32 + kKinds) ||
         (value >= kBlankReal && value <= kBlankReal + kKinds);
}

json gpus_of_dcgm(const std::vector<Sample>& samples) {
  std::map<std::string, json> gpus;
  for (const Sample& sample : samples) {
    const bool of_dcgm = sample.name.starts_with("DCGM_") || sample.name.starts_with("dcgm_");
    if (!of_dcgm || is_blank_of_dcgm(sample.value)) continue;
    std::string uuid = label(sample, "UUID"), host = label(sample, "Hostname");
    if (uuid.empty()) uuid = label(sample, "uuid");
    json& gpu = gpus[join({host, uuid, label(sample, "gpu"), label(sample, "GPU_I_ID")}, "\n")];
    if (gpu.is_null()) {
      gpu = {{"gpu", label(sample, "gpu")}, {"uuid", uuid}, {"host", host}, {"model", label(sample, "modelName")}};
    }
    gpu["values"][sample.name] = sample.value;
  }
  json list = json::array();
  for (auto& [key, gpu] : gpus) list.push_back(std::move(gpu));
  return list;
}

DcgmReader::DcgmReader(std::string url) : url_(std::move(url)) {
  if (!url_.empty()) require_http_url(url_);
}

json DcgmReader::read() {
  if (url_.empty()) return nullptr;
  const std::lock_guard lock(mutex_);
  if (monotonic_seconds() - read_at_ < kFreshSeconds) return last_;
  HttpRequest request;
  request.url = url_;
  request.most_bytes = kMostBytes;
  const auto answer = ask_http(request);
  last_ = {{"url", url_}, {"time", unix_seconds()}};
  if (answer && answer->status == 200) {
    last_["gpus"] = gpus_of_dcgm(parse_exposition(answer->body));
  } else {
    last_["error"] =
        answer ? "it answers with status " + std::to_string(answer->status) : std::string("nobody answers");
  }
  read_at_ = monotonic_seconds();
  return last_;
}

}  // namespace lockstep::serve
