// What NVIDIA's DCGM exporter says of the GPUs of this machine.
#pragma once

#include <mutex>
#include <nlohmann/json.hpp>
#include <string>

#include "lockstep/serve/exposition.h"

namespace lockstep::serve {

// What DCGM says where it has no value, in the three types of its fields: blank, not found, not supported, not
// permitted.
bool is_blank_of_dcgm(double value);

// Samples whose names are DCGM's, by GPU, blank ones left out: [{"gpu", "uuid", "host", "model", "values": {...}}].
nlohmann::json gpus_of_dcgm(const std::vector<Sample>& samples);

// The exporter's answer, asked for again after some seconds. Thread-safe.
class DcgmReader {
 public:
  // "": there is none. Throws UserError (bad input) when it is no http:// URL.
  explicit DcgmReader(std::string url);
  // null without an exporter; {"url", "time", "gpus"} or {"url", "time", "error"}. Waits two seconds at most.
  nlohmann::json read();

 private:
  std::string url_;
  std::mutex mutex_;
  double read_at_ = -1e9;
  nlohmann::json last_;
};

}  // namespace lockstep::serve
