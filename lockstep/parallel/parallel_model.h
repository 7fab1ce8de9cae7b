// ParallelModel: one rank's part of a model under any layout, and the collective pass that turns the micro-batches of a
// step into gradients. Chunks (pipeline), FlatShards (ZeRO) and the model's Partition (tensor, context, expert) meet
// here; the optimizer works on the shards.
//
//   ParallelModel model(spec, options, world);
//   model.run(micro_batches);                       // forward, backward, reductions
//   for (auto& shard : model.shards()) ...          // gradient() and master() of this rank
//   model.publish();                                // after the optimizer
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/parallel/chunk.h"
#include "lockstep/parallel/pipeline_runner.h"
#include "lockstep/parallel/process_groups.h"
#include "lockstep/parallel/tensor_map.h"
#include "lockstep/plan/layout.h"
#include "lockstep/plan/pipeline_schedule.h"

namespace lockstep::parallel {

// Builds the part of the model that BuildOptions::part names, for the ranks of BuildOptions::partition; weights need no
// values. Every parameter must be declared (nn::declared_parameters). Pipelines want an nn::UnitModel.
using ModelFactory =
    std::function<std::shared_ptr<nn::TrainableModel>(const spec::Model& spec, const nn::BuildOptions& options)>;

struct ParallelModelOptions {
  plan::Layout layout;
  torch::ScalarType dtype = torch::kFloat32;
  torch::ScalarType gradient_dtype = torch::kFloat32;
  torch::ScalarType master_dtype = torch::kFloat32;
  torch::Device device = torch::kCPU;
  bool autocast = false;  // nn::BuildOptions
  std::uint64_t seed = 0;
  std::int64_t micro_steps = 1;  // micro-batches that a step usually has
  bool reshard_after_forward = true;
  bool reduce_each_micro_step = false;
  bool activation_offload = false;
  spec::Lora lora;        // rank 0: none
  BucketOptions buckets;  // of gradients under ZeRO stage 0
  ModelFactory make_model = nn::build_model;
  bool initial_values = true;            // false: weights hold anything until they are filled or initialise()d
  std::filesystem::path offload_folder;  // see OffloadArena
};

class ParallelModel {
 public:
  // Collective over `world` (layout.world() ranks). Throws UserError when the layout does not fit the model, and on
  // every rank when ranks that share weights hold different parameters.
  ParallelModel(const spec::Model& spec, const ParallelModelOptions& options, comm::Communicator world);
  ~ParallelModel();
  ParallelModel(const ParallelModel&) = delete;
  ParallelModel& operator=(const ParallelModel&) = delete;

  // Collective: weights get their initial values, the same on all ranks that hold them.
  void initialise();

  // Collective: forward and backward of all micro-batches in the schedule's order; then every shard has its gradient.
  // Their number is the same on every rank and may differ from step to step.
  // Returns this rank's sums (the loss is that of the last stage's ranks; cp and data ranks' add up). `meanwhile` is
  // called when all is queued and a device may still work on it; reading the sums waits for it.
  ChunkSums run(const std::vector<MicroBatch>& micro_batches, const std::function<void()>& meanwhile = {});
  // Told of every task of run() (PipelineWork::observe); for measurements.
  void observe(std::function<void(const plan::PipelineTask&, double start, double end)> observer) {
    observer_ = std::move(observer);
  }
  // Collective, no gradients: sums of one micro-batch.
  ChunkSums evaluate(const MicroBatch& batch);
  // Collective: logits on the ranks of the last stage (this rank's rows), undefined elsewhere.
  torch::Tensor predict(const MicroBatch& batch);
  // Collective: after the optimizer has updated master() of every shard.
  void publish();

  // This rank's rows of a batch under cp, and their global positions.
  MicroBatch rows_of(MicroBatch whole) const;

  const std::vector<std::shared_ptr<FlatShard>>& shards() const { return shards_; }
  std::vector<nn::TrainableModel*> models();  // the chunks'
  ProcessGroups& groups() { return groups_; }
  const ProcessGroups& groups() const { return groups_; }
  OffloadArena& arena() { return arena_; }
  const OffloadArena& arena() const { return arena_; }
  const ParallelModelOptions& options() const { return options_; }
  const plan::Layout& layout() const { return options_.layout; }
  const plan::PipelineSchedule& schedule() const { return schedule_; }
  // Whether this rank's sums of loss count (others have the same, or none).
  bool has_loss() const;
  // Whether every rank holds the whole model and its whole gradient.
  bool is_replicated() const;
  // Square of the norm of the gradient that run() left, as far as this rank answers for it; the sum over the world is
  // the model's. Of a replicated model every rank has all of it.
  double squared_norm() const;
  std::int64_t parameter_count() const;  // of the whole model; trainable and frozen

  // Collective: whole tensors by name on rank 0 (empty elsewhere), from a shard tensor of each FlatShard (master(),
  // gradient(), a moment). Shards for which `of` returns an undefined tensor are left out. Tensors may be views.
  TensorMap assemble(const std::function<torch::Tensor(const FlatShard&)>& of, const std::string& prefix = {});
  // What this rank saves of a shard tensor of each FlatShard: over all ranks every element of the model once; or, with
  // `everything`, all that it holds. Not collective. Values are a view, their elements in the order of the stretches.
  struct SavedPiece {
    const nn::DeclaredParameter& parameter;
    std::vector<OwnedStretch> stretches;
    torch::Tensor values;
  };
  std::vector<SavedPiece> saved_pieces(const std::function<torch::Tensor(const FlatShard&)>& of,
                                       bool everything = false) const;
  // This rank's part of whole tensors, given piece by piece: read(name, first element, out).
  using ReadRange = std::function<void(const std::string& name, std::int64_t first, torch::Tensor out)>;
  void fill(const std::function<torch::Tensor(const FlatShard&)>& of, const ReadRange& read) const;
  // After master() was written from outside: weights follow on all ranks, and what several ranks hold is the first
  // one's. Collective.
  void adopt_master();

  // What the compression of gradients keeps on this rank (GradientExchange); empty without. load_compression() throws
  // bad_input before anything is changed.
  TensorMap compression_state() const;
  void load_compression(const TensorMap& state);

 private:
  void build_chunks();
  void set_micro_steps(std::int64_t micro_steps);
  void build_shards(nn::TrainableModel& model, int position, std::vector<std::shared_ptr<FlatShard>>& out);
  void reset_buffers();
  void finish_reductions();
  void start_norm();
  void share_values();
  torch::Tensor pass(const MicroBatch& batch,
                     const std::function<torch::Tensor(Chunk&, const torch::Tensor&)>& through);
  ChunkSums take_sums();
  std::vector<std::int64_t> stream_shape(const MicroBatch& batch, int position) const;
  // A rank without samples computes nothing, and still hands on tensors of no samples.
  torch::Tensor or_nothing(torch::Tensor stream, const MicroBatch& batch, int position) const;

  spec::Model spec_;
  ParallelModelOptions options_;
  ProcessGroups groups_;
  OffloadArena arena_;
  plan::PipelineSchedule schedule_;
  std::vector<std::int64_t> layers_;  // by position of the pipeline
  std::function<void(const plan::PipelineTask&, double, double)> observer_;
  std::vector<std::unique_ptr<Chunk>> chunks_;
  std::vector<std::shared_ptr<FlatShard>> shards_;
  torch::Tensor device_norm_;  // 0-dim, fp64: squared_norm() of a model on a device; undefined on the CPU
  // Where the model begins and ends on one rank in two chunks, both hold the tied embedding.
  std::vector<std::pair<FlatShard*, FlatShard*>> tied_here_;
};

}  // namespace lockstep::parallel
