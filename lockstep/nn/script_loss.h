// The losses of modules from Python: what torch.nn.functional computes with reduction="mean", kept as a sum and a count
// so that ranks and micro-batches add up.
#pragma once

#include "lockstep/nn/model.h"
#include "lockstep/spec/script.h"

namespace lockstep::nn {

// `output` of the module for samples whose targets are `target`. Classes: one count per target that is not
// kIgnoredTarget; logits have their classes in dim 1, or last behind the dims of the target. Others: one count per
// sample, whose loss is the mean over its elements. With `hits`, arg-max hits of classes are counted. Throws bad_input,
// naming `name`, for shapes that do not fit together.
LossResult script_loss(spec::ScriptLoss loss, const torch::Tensor& output, const torch::Tensor& target, bool hits,
                       const std::string& name);

}  // namespace lockstep::nn
