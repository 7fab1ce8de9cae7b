// Weights after training, whole and on this machine: from a checkpoint of any layout, or from a folder that `export`
// or Hugging Face wrote. What `lockstep evaluate` and `lockstep generate` look at.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "lockstep/engine/run_context.h"
#include "lockstep/nn/model.h"
#include "lockstep/spec/job.h"

namespace lockstep::engine {

// A checkpoint, or the newest of a folder of them (`checkpoints` in a run's folder). Throws bad_input.
std::filesystem::path checkpoint_at(const std::filesystem::path& given);

struct TrainedModel {
  std::string path;                           // the checkpoint or folder
  std::int64_t step = -1;                     // -1: a folder does not say
  spec::Job job;                              // the checkpoint's or the one given, with its overrides
  std::string tokenizer;                      // "bytes", or where its files are
  std::shared_ptr<nn::TrainableModel> model;  // fp64 where the job is, else fp32; adapters are merged
};

// `request`: {"path", "job" (YAML of a job; "": the checkpoint's), "overrides": ["data.path=..."]}. A folder of weights
// without a job has no data. Throws UserError.
TrainedModel open_trained_model(const nlohmann::json& request);

// Runs what a tool does: its answer goes out as a "result" message (with "exit_code" where that is not 0), what it
// throws as an "error". Returns the exit code.
int run_tool(const Host& host, const std::function<nlohmann::json()>& tool);

}  // namespace lockstep::engine
