// Suggest: a complete starting configuration from three numbers: model size, number of GPUs, tokens of data.
//
// The layout is the planner's (search.h) for a representative model of that size; batch, loader, environment, optimizer
// and checkpoints follow from rules that `reasons` states, and knobs that a stored study of a job alike found to matter
// take the study's value. The same question to `lockstep plan` gives the same layout, memory and speed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/plan/plan.h"
#include "lockstep/spec/cluster.h"
#include "lockstep/spec/job.h"
#include "lockstep/spec/model.h"

namespace lockstep::planner {

enum class Task { kAuto, kPretrain, kFinetune, kLora };
// Who will run it: our engine runs any layout, the others some (suggest_search.h).
enum class Stack { kLockstep, kTorchrun, kDeepspeed, kAccelerate };

const char* to_string(Task task);        // "auto", "pretrain", "finetune", "lora"
const char* to_string(Stack stack);      // "lockstep", "torchrun", "deepspeed", "accelerate"
Task parse_task(std::string_view text);  // throw UserError (exit code 2) with the nearest name
Stack parse_stack(std::string_view text);

// "7B", "7b", "7e9", "1B tokens", "350M parameters": a count, the word after it ignored. Throws UserError (exit code 2)
// that names `flag`.
double parse_size(std::string_view text, const std::string& flag);

// 0 and "": not given.
struct SuggestRequest {
  double parameters = 0;  // this or `model`
  std::string model;      // preset, file or Hugging Face folder
  std::int64_t gpus = 0;  // with `gpu` and gpus_per_node; or `cluster`
  std::string gpu = "H100";
  std::int64_t gpus_per_node = 0;
  std::string cluster;  // as `lockstep plan --cluster`
  std::string
      profile;  // as `lockstep plan --profile`; "": the engine's own on one GPU for its own stack, else the generic one
  double dataset_tokens = 0;
  double epochs = 0;
  std::int64_t sequence_length = 0;
  std::int64_t global_sequences = 0;
  std::int64_t host_cores = 0;  // of a node
  Task task = Task::kAuto;
  Stack stack = Stack::kLockstep;
  std::filesystem::path home;  // whose studies are read; "": none
};

// A variable and why it has that value. "auto": it is to stay unset, the library chooses well by itself.
struct EnvironmentVariable {
  std::string name;
  std::string value;
  std::string reason;
};

struct LoaderAdvice {
  std::int64_t num_workers = 0;  // per rank
  std::int64_t prefetch_factor = 0;
  bool pin_memory = true;
};

struct OptimizerAdvice {
  double learning_rate = 0;  // from published recipes; nothing here predicts it
  std::int64_t warmup_steps = 0;
  double weight_decay = 0;
  double beta2 = 0.95;
};

// A knob that a study changed from its default and that mattered: reverting it costs this much (95% interval).
struct StudiedKnob {
  std::string study;  // id
  std::string knob;
  std::string value;
  double percent = 0, low = 0, high = 0;
  std::string applied_to;  // "environment", "loader", "batch"; "": named only
};

struct Suggestion {
  SuggestRequest request;
  spec::Model model;
  bool interpolated = false;  // no preset has that size: the shape lies between two
  spec::Cluster cluster;
  Task task = Task::kPretrain;
  plan::Candidate candidate;  // layout, batch, memory, prediction, cost, checkpoint, reasons of the planner
  double epochs = 1;
  double tokens = 0;  // dataset x epochs
  std::int64_t steps = 0;
  spec::Lora lora;  // rank 0: every weight is trained
  OptimizerAdvice optimizer;
  LoaderAdvice loader;
  std::vector<EnvironmentVariable> environment;
  std::vector<StudiedKnob> studied;
  std::vector<std::string> reasons;
  std::vector<std::string> warnings;
  std::string profile;  // that priced it
  bool complete_search = true;
  plan::SearchSummary search;
};

// Reads presets, the files that the request names and the studies under `home`; writes nothing. Within some 30 ms: a
// space too large for that is searched in stages, and complete_search and the reasons say so.
// Throws UserError: exit code 2 for nonsense, 3 where the model does not fit, with the number of GPUs that would do.
Suggestion suggest(const SuggestRequest& request);

// Schema `lockstep.suggest/1` (docs/reference/suggest.md).
nlohmann::json to_json(const Suggestion& suggestion);

// The command that asks the planner the same; "" for a shape that has no name.
std::string plan_command(const Suggestion& suggestion);

}  // namespace lockstep::planner
