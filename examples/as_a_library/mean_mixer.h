// MeanMixer: a language model that Lockstep does not have. Instead of attention each layer mixes positions by a gated
// running mean of the past, then widens and narrows again. What Lockstep asks of a model type is LanguageModel: an
// embedding, layers made of parts that end in a residual sum, a final norm; then pipelines, ZeRO and recomputation can
// run it unit by unit. It is not cut by tensor or context parallelism: a model that wants those asks its partition()
// for shares, as lockstep/nn/gpt.cpp does.
#pragma once

#include <memory>

#include "lockstep/nn/language_model.h"

std::shared_ptr<lockstep::nn::TrainableModel> make_mean_mixer(const lockstep::spec::Model& spec,
                                                              const lockstep::nn::BuildOptions& options);
