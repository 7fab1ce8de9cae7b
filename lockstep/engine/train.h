// Training inside a program of one's own: the ranks are threads of this process, the model may be one of one's own.
//
//   class MyModel : public lockstep::nn::LanguageModel { ... };   // or nn::TrainableModel; see nn/language_model.h
//
//   spec::Job job = spec::load_job("job.yaml");
//   engine::TrainOptions options;
//   options.make_model = [](const spec::Model& spec, const nn::BuildOptions& build) {
//     return std::make_shared<MyModel>(spec, build);
//   };
//   engine::TrainResult result = engine::train(job, plan::parse_layout("pp=2,dp=2"), options);
//   for (double loss : result.losses) ...
//
// What a model must keep: it builds the part that build.part names, every parameter is declared by an nn::Layer
// (nn::Linear, nn::Embedding, a norm, or a layer that calls declare()) with an initial value that depends on its name
// alone, and a forward pass depends on its arguments alone. A TrainableModel then trains under dp, shard and ZeRO, a
// LanguageModel under pp too. Tensor and context parallelism are what its layers make of build.partition.
#pragma once

#include <vector>

#include "lockstep/engine/training_step.h"
#include "lockstep/parallel/parallel_model.h"
#include "lockstep/plan/layout.h"
#include "lockstep/spec/job.h"

namespace lockstep::engine {

struct TrainOptions {
  parallel::ModelFactory make_model = nn::build_model;
  int threads = 1;        // compute threads of each rank
  bool evaluate = false;  // after the last step, on the data that the job keeps for it
};

struct TrainResult {
  std::vector<double> losses;     // of every step: the mean over its global batch
  parallel::TensorMap weights;    // whole tensors by name after the last step, in host memory
  parallel::TensorMap optimizer;  // the optimizer's state, as checkpoints name it
  EvaluationResult evaluation;    // where it was asked for
};

// The whole job (steps, tokens or epochs) under `layout`, on the CPU; blocks. Nothing is recorded and no checkpoint is
// written. job.batch is that of one data rank; job.cluster does not matter. Throws UserError where job, layout and
// model do not go together, and what a rank threw first otherwise.
TrainResult train(const spec::Job& job, const plan::Layout& layout, const TrainOptions& options = {});

}  // namespace lockstep::engine
