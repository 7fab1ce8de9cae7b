// Chunk: consecutive units of a model on one rank (nn/unit_model.h), run one by one. Of a language model they are the
// embedding, the parts of a layer (attention, MLP), and the head with the loss. Each has an autograd graph of its own,
// from a detached input to its output, so that the chunk decides between units: gather and free weights (ZeRO-3),
// prefetch the next unit's, keep a unit's activations or compute them again (recompute), hand gradients to their
// reduction while backward goes on, and split backward in two (zero bubble). A model without units is one unit; there
// hooks tell of gradients while its backward runs.
//
// All calls come from the rank's thread; collectives inside throw Fault.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include <torch/types.h>

#include "lockstep/nn/deferred_gradients.h"
#include "lockstep/nn/unit_model.h"
#include "lockstep/parallel/flat_shard.h"
#include "lockstep/parallel/gradient_hooks.h"
#include "lockstep/parallel/offload.h"
#include "lockstep/plan/layout.h"

namespace lockstep::parallel {

// One micro-batch as this rank sees it: its rows of the sequence under cp.
struct MicroBatch {
  torch::Tensor input;   // tokens int64 [samples, rows], images, or whatever the model reads; others in the context
  torch::Tensor target;  // int64 [samples, rows] or [samples], or what the model's loss wants
  nn::ForwardContext context;
  double loss_weight = 0.0;       // what loss_sum is multiplied by before backward
  double auxiliary_weight = 0.0;  // the same for auxiliary losses
};

struct ChunkOptions {
  plan::Recompute recompute = plan::Recompute::kNone;
  bool reshard_after_forward = true;         // ZeRO-3: false keeps weights gathered until the end of the step
  bool reduce_each_micro_step = false;       // ZeRO-2 and 3: true scatters gradients after every backward
  std::int64_t micro_steps = 1;              // backwards of one step
  OffloadArena* activation_arena = nullptr;  // recomputed units keep their inputs here; null: in memory
};

// The tensors of the modules' parameters, by identity; null modules have none.
std::set<const void*> tensors_of(const std::vector<std::shared_ptr<torch::nn::Module>>& modules);

// Sums over the micro-batches since the last take_sums().
struct ChunkSums {
  double loss = 0.0;
  double auxiliary = 0.0;
  std::int64_t targets = 0;
  std::int64_t correct = 0;
};

class Chunk {
 public:
  // `shards` hold all parameters of `model`. Both are shared with the owner of the step.
  Chunk(std::shared_ptr<nn::TrainableModel> model, std::vector<std::shared_ptr<FlatShard>> shards,
        const ChunkOptions& options);

  // `x` is the output of the chunk before (undefined for the first). Returns the hidden states for the next chunk, or
  // an undefined tensor where the chunk ends in the loss. `number` tells micro-batches in flight apart.
  torch::Tensor forward(int number, const MicroBatch& batch, const torch::Tensor& x);
  // Without gradients: nothing is kept.
  torch::Tensor evaluate(const MicroBatch& batch, const torch::Tensor& x);
  // Logits instead of the loss, where the chunk has the head; otherwise hidden states. Nothing is kept.
  torch::Tensor predict(const MicroBatch& batch, const torch::Tensor& x);
  // `gradient` of what forward() returned (undefined for the last chunk). Returns that of its x (undefined for the
  // first chunk). With `defer`, gradients of weights wait for weight_gradients().
  torch::Tensor backward(int number, const torch::Tensor& gradient, bool defer);
  void weight_gradients(int number);

  // Before a step: the backwards that it will have.
  void set_micro_steps(std::int64_t micro_steps) { options_.micro_steps = micro_steps; }
  // After the step: weights that were kept gathered are freed, counters start anew.
  void end_step();
  ChunkSums take_sums();
  const std::vector<std::shared_ptr<FlatShard>>& shards() const { return shards_; }
  nn::TrainableModel& model() { return *model_; }
  // Micro-batches whose activations are held now.
  std::size_t in_flight() const { return held_.size(); }

 private:
  struct Unit {
    std::vector<FlatShard*> first_use, last_use;  // of a forward pass over the units
    // Parameters whose gradients are complete when backward has passed this unit, by shard.
    std::vector<std::pair<FlatShard*, std::vector<std::size_t>>> completes;
  };
  struct Kept {  // of one unit and micro-batch
    nn::Stream input, output;
    torch::Tensor loss, auxiliary;
    bool recompute = false;
    bool offloaded = false;
    bool from_data = false;  // the input is the micro-batch, which has no gradient
    // Inputs become leaves that a gradient is kept for.
    void need_gradients();
  };
  struct Held {
    MicroBatch batch;
    std::vector<Kept> units;
    std::vector<std::unique_ptr<nn::WeightGradientQueue>> deferred;  // by unit
  };

  void find_uses();
  void add_uses(FlatShard& shard, const std::vector<std::set<const void*>>& tensors);
  void add_hooks();
  // Models without collectives inside: a rank without samples has nothing to compute.
  bool is_idle(const MicroBatch& batch) const;
  bool recomputes(std::size_t unit) const;
  nn::Stream first_stream(const MicroBatch& batch, const torch::Tensor& x) const;
  void run(std::size_t unit, Kept& kept, const MicroBatch& batch, bool count);
  void count_loss(const nn::LossResult& result);
  // Backward of a unit from the gradients of its outputs; returns those of its inputs.
  nn::Stream differentiate(const Kept& kept, const nn::Stream& gradients, const MicroBatch& batch) const;
  torch::Tensor pass(const MicroBatch& batch, const torch::Tensor& x, bool logits);
  void enter(std::size_t unit, int direction);
  void leave(std::size_t unit, int direction);
  void keep_away(Kept& kept);
  void gradients_done(std::size_t unit, bool last_of_step);

  std::shared_ptr<nn::TrainableModel> model_;
  nn::UnitModel* by_unit_ = nullptr;  // model_, where it has units
  std::vector<std::shared_ptr<FlatShard>> shards_;
  ChunkOptions options_;
  std::vector<Unit> units_;
  std::map<int, Held> held_;
  std::vector<std::unique_ptr<GradientHooks>> hooks_;  // of a model of one unit
  FlatShard* reducing_ = nullptr;                      // the last whose reduction was started
  std::int64_t finished_ = 0;                          // backwards of this step that are complete
  ChunkSums sums_;
  torch::Tensor device_loss_;  // 0-dim fp64, of losses that are on a device: read in take_sums, reading waits for it
};

}  // namespace lockstep::parallel
