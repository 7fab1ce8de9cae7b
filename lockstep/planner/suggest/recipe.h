// What a training run takes beside its layout: task, epochs, batch, optimizer, adapters. Rules of published recipes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/cost/adapters.h"
#include "lockstep/cost/profile/profile.h"
#include "lockstep/planner/suggest/suggest.h"

namespace lockstep::planner {

struct Goal {
  Task task = Task::kPretrain;  // never kAuto
  double epochs = 1;
  double tokens = 0;  // dataset x epochs
  std::int64_t sequence_length = 0;
  std::int64_t global_sequences = 0;
  std::vector<std::string> reasons;
  std::vector<std::string> warnings;
};

// `devices` that share the batch. Throws UserError (exit code 2) for a dataset shorter than a sequence.
Goal choose_goal(const SuggestRequest& request, const spec::Model& model, std::int64_t devices);

// Of the task, from published recipes: Kaplan et al. 2020 and Touvron et al. 2023 for pretraining, Taori et al. 2023
// (Alpaca) for fine-tuning, Hu et al. 2021 and Dettmers et al. 2023 for adapters.
OptimizerAdvice choose_optimizer(Task task, const spec::Model& model, std::int64_t steps);

// Adapters on the attention of the model; rank 0 for other tasks.
spec::Lora choose_adapters(Task task, const spec::Model& model);
using cost::adapter_parameters;

}  // namespace lockstep::planner
