// LoRA (Hu et al. 2021): linear layers learn a low-rank change in addition to their frozen weight,
//   y = W x + alpha / rank B A x,
// with the names of PEFT's files ("...q_proj.lora_A.weight" [rank, in], "...q_proj.lora_B.weight" [out, rank]).
#pragma once

#include <string>

#include <torch/types.h>

#include "lockstep/nn/language_model.h"
#include "lockstep/spec/job.h"

namespace lockstep::nn {

// Whether a parameter belongs to an adapter.
bool is_lora_name(const std::string& parameter_name);

// Freezes every parameter except a classifier head's, and gives A and B to every Linear whose last name, or last names
// ("attention.output.dense"), are a target; heads get none. Like all layers A and B are empty until
// initialise(): A is drawn as torch.nn.Linear draws weights, B is zero, so training starts at the model as it was.
// Throws bad_input when this rank has layers and a target names none of their linear ones.
void add_lora(LanguageModel& model, const spec::Lora& lora);

// weight += scale x B A, in the weight's layout, without a graph: one whole weight, or the same part of weight, A and
// B.
void add_low_rank(torch::Tensor weight, const torch::Tensor& a, const torch::Tensor& b, double scale,
                  WeightLayout layout);

}  // namespace lockstep::nn
