// FlatShard: the parameters of one block (a layer, an embedding; under stage 0 all that a chunk holds) in one flat
// tensor, and this rank's shard of them under ZeRO (Rajbhandari et al. 2020):
//   stage 0  everything whole; gradients summed bucket by bucket while backward runs (GradientBuckets)
//   stage 1  optimizer state and master weights sharded; gradients reduce-scattered, new weights all-gathered
//   stage 2  gradients too: the whole gradient lives from backward to its reduce-scatter
//   stage 3  weights too: gathered for each use of the block, freed after it
//
// One step:  [gather, release] around each forward and backward of the block (stage 3)
//            gradients_done() when a backward has made gradients; finish_reduction() at the end
//            gradient() and master() hold this rank's shard: the optimizer updates master(), then publish()
//
// All calls come from the rank's thread. Collectives are issued in call order, so all ranks of a group must make the
// same calls in the same order; they throw Fault.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <torch/types.h>

#include "lockstep/kernels/fused_optimizer.h"
#include "lockstep/nn/hf_weights.h"
#include "lockstep/nn/layers.h"
#include "lockstep/parallel/gradient_buckets.h"
#include "lockstep/parallel/offload.h"
#include "lockstep/parallel/process_groups.h"
#include "lockstep/spec/job.h"

namespace lockstep::parallel {

struct FlatShardOptions {
  std::int64_t zero = 0;
  bool expert = false;      // which groups it is replicated and sharded over
  bool trainable = true;    // false: weights only (frozen under LoRA)
  bool tied_ends = false;   // first and last stage hold it, and both compute a part of its gradient
  bool norm_counts = true;  // false: another stage counts it in the gradient's norm (the second of tied ends)
  torch::ScalarType gradient_dtype = torch::kFloat32;
  torch::ScalarType master_dtype = torch::kFloat32;  // as the model's: the weights are their own master
  plan::Offload offload = plan::Offload::kNone;
  BucketOptions buckets;  // stage 0: how gradients travel
};

// A stretch of this rank's shard and where it lies in the whole model.
struct OwnedStretch {
  std::size_t parameter = 0;  // index in parameters()
  std::int64_t shard = 0;     // first element in shard tensors
  std::int64_t whole = 0;     // first element in the parameter's whole tensor
  std::int64_t count = 0;
};

class FlatShard {
 public:
  // `parameters` of one dtype and device, with full names; their tensors become views of the flat one. `groups` and
  // `arena` must outlive the shard. Weights are uninitialised.
  FlatShard(std::string name, std::vector<nn::DeclaredParameter> parameters, const FlatShardOptions& options,
            ProcessGroups& groups, OffloadArena& arena);
  ~FlatShard();
  FlatShard(const FlatShard&) = delete;
  FlatShard& operator=(const FlatShard&) = delete;

  const std::string& name() const { return name_; }
  const std::vector<nn::DeclaredParameter>& parameters() const { return parameters_; }
  const FlatShardOptions& options() const { return options_; }
  std::int64_t length() const { return length_; }  // with the padding that makes it divide
  std::int64_t shard_length() const { return shard_length_; }

  // Weights. start_gather() begins the all-gather (nothing but stage 3, nothing where they are there already), gather()
  // waits for it; release() frees them.
  void start_gather();
  void gather();
  void release();

  // Backward has made the gradients of these parameters: adds their grad() to the whole gradient and drops them. With
  // `reduce` they are complete and their sum over sharers and data ranks starts: bucket by bucket under stage 0; of the
  // whole block, which `parameters` must then be, otherwise (stages 2 and 3 may do so several times a step: results add
  // up). Parameters without a gradient take part with zeros.
  void gradients_done(std::span<const std::size_t> parameters, bool reduce);
  // Waits for the shards, starts the sum over replicas; then waits for that.
  void continue_reduction();
  void finish_reduction();

  const torch::Tensor& master() const { return master_; }  // [shard_length], what the optimizer updates
  const torch::Tensor& gradient() const { return shard_gradient_; }
  // The model's weights of this shard, where they are not master(): the optimizer rounds into them.
  torch::Tensor narrow_weights() const { return has_master_ ? own_ : torch::Tensor(); }
  bool has_master() const { return has_master_; }
  // After the optimizer: new weights for everyone (stages 1 and 2).
  void start_publish();
  void finish_publish();
  void clear_gradient();

  // Sum of squares of the elements of gradient() that this rank answers for: over all ranks each element counts once.
  // With `everything`, of all elements.
  double squared_norm(bool everything = false) const;
  // The same for a shard on a device, added to `sum` (0-dim, fp64, there) without waiting.
  void add_squared_norm(torch::Tensor& sum, bool everything = false) const;
  // Elements of the shard that get weight decay, in order and apart; neighbours are one. Padding may be among them.
  std::vector<kernels::ElementRange> decay_ranges(spec::Decay decay) const;

  // Every stretch of the shard; and those among them that this rank answers for (see squared_norm).
  std::vector<OwnedStretch> stretches() const;
  bool answers_for(std::size_t parameter) const;
  // Those that this rank saves: over all ranks every element once, and ranks that hold the same take even shares.
  std::vector<OwnedStretch> saved_stretches() const;

  // The part of parameter `index` that lies in this rank's shard, as a view of a shard tensor.
  nn::LocalValues own_values(std::size_t index, const torch::Tensor& of_shard) const;
  // Weights of the shard in the model's dtype.
  const torch::Tensor& weights() const { return own_; }
  // Offloaded weights will not be touched for a while.
  void rest(const OffloadArena& arena) const;

  // After writing master(): weights follow (and are published by start_publish).
  void master_to_weights();
  // Collective: weights and master of the shard become those of the first of the ranks that hold the same.
  void share_values();
  // Stage 0, trainable: how its gradient travels; null otherwise.
  GradientBuckets* buckets() const { return buckets_.get(); }

 private:
  comm::Communicator& shards() const { return options_.expert ? groups_.expert_shards : groups_.shards; }
  comm::Communicator& replicas() const;
  std::int64_t shard_rank() const { return nn::Partition::rank(shards()); }
  bool gathers() const { return options_.zero == 3 && shards().valid(); }
  void lay_out();
  void make_buckets();
  void collect(std::span<const std::size_t> parameters);
  void start_reduction();
  // What no backward made becomes zero; what the tp ranks made parts of is summed.
  void complete(std::size_t first_parameter, std::size_t end_parameter, std::int64_t begin, std::int64_t end);

  struct Range {
    std::int64_t offset = 0;
    std::int64_t count = 0;
    std::int64_t end() const { return offset + count; }
  };
  std::vector<Range> answered(bool everything) const;
  // Of elements [first, first + count) of the shard.
  std::vector<OwnedStretch> stretches_of(std::int64_t first, std::int64_t count) const;
  bool first_sharer(std::size_t parameter) const;

  std::string name_;
  std::vector<nn::DeclaredParameter> parameters_;
  FlatShardOptions options_;
  ProcessGroups& groups_;
  std::vector<Range> ranges_;  // by parameter
  std::int64_t length_ = 0, shard_length_ = 0;
  std::map<std::int64_t, Range> partial_;  // number of sharers -> stretch of the flat tensor that they sum
  torch::Tensor whole_;  // [length] weights the model computes with; memory comes and goes under stage 3
  torch::Tensor own_;    // [shard_length] this rank's part of them
  torch::Tensor sent_;   // own_ where whole_ is, while it is gathered
  torch::Tensor master_;
  bool has_master_ = false;
  bool gathered_ = true;
  torch::Tensor whole_gradient_;  // [length]; stage 0 keeps it, otherwise undefined while there is none
  std::vector<char> filled_;      // parameter: whole_gradient_ holds something of this step
  std::unique_ptr<GradientBuckets> buckets_;
  torch::Tensor shard_gradient_;  // [shard_length]
  torch::Tensor arriving_;        // result of a reduction on its way
  bool reduced_before_ = false;   // shard_gradient_ already holds earlier micro-steps
  comm::Work gathering_, reducing_, publishing_;
};

}  // namespace lockstep::parallel
