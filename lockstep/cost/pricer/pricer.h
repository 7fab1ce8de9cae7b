// Pricer: time and memory of one training step under any Layout. Built once per (model, cluster, profile, sequence);
// price() is a pure function of the layout and the batch, keeps no cache and allocates nothing, so a planner can call
// it some 10^6 times a second from any number of threads.
//
// The formulas live beside it: gemm.h, links.h, schedule.h, layer.h, states.h. Each cites its source. Where the profile
// was measured with the engine's fused step of one GPU and that step runs the model, layouts of one rank are priced by
// fused/time.h and fused/memory.h instead. For the price of one Run see price.h, which gives the same figures.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/cost/nccl_knobs.h"
#include "lockstep/cost/pricer/work.h"
#include "lockstep/cost/profile/constants.h"
#include "lockstep/cost/profile/profile.h"
#include "lockstep/plan/plan.h"
#include "lockstep/spec/cluster.h"
#include "lockstep/spec/job.h"
#include "lockstep/spec/model.h"

namespace lockstep::cost {

// Gradient bucket that fitted prices stand for: PyTorch's default and Lockstep's.
inline constexpr double kUsualBucketBytes = 25.0 * 1024 * 1024;

// What a run may be told beside layout and batch; the defaults leave every price as it was fitted.
struct PricerOptions {
  std::int64_t sequence_length = 0;  // 0: the model's own; ignored for images
  spec::OptimizerKind optimizer = spec::OptimizerKind::kAdamW;
  spec::Precision state_precision = spec::Precision::kFp32;  // of AdamW's means; bf16: the fused step alone has it
  spec::Lora lora = {};
  // Buckets, compression (ZeRO-0), reduce_each_micro_step and reshard_after_forward. A fitted stack keeps its own way
  // where a choice is at its default; the engine of this repository does what is written here.
  spec::Communication communication = {};
  bool activation_offload = false;
  NcclKnobs nccl = {};
  bool gradient_norm = true;  // read by the fused step alone: `lockstep train` computes it in every step
};

// What one step costs on the rank and stage that bind.
struct Price {
  plan::TimeBreakdown time;       // expected seconds; time.total() is the step
  plan::MemoryBreakdown memory;   // of the rank that needs most; capacity of the device it sits on
  double exposed_share = 0;       // of the step: communication, bubble, host cost. Widens the interval
  double time_sigma = 0;          // standard deviation of log(measured / predicted) step time
  double memory_sigma = 0;        // of log(measured / predicted) memory
  std::int32_t memory_stage = 0;  // pipeline stage that needs most memory
  std::int32_t slow_stage = 0;    // pipeline stage that takes longest
  // Part of `time` (other) where the profile knows of stalls: the step is what the mean rate of ordinary and stalled
  // runs makes it.
  Stall stall;
  double stall_seconds = 0;  // expected, of time.other
  double fill = 0;           // share of the memory that would be allocated if there were enough
  bool fused = false;        // of the fused step of one GPU (fused/time.h), not of the general path

  double step_seconds() const { return time.total(); }
  // Peak bytes allocated by the framework: without allocator reserve, communicators and context.
  double allocated_bytes() const { return memory.total() - memory.overhead; }
  // Probability that the peak exceeds the capacity (0 where the capacity is unknown).
  double out_of_memory_probability() const;
  // The peak stays under the capacity in the expected case: what `fits` means everywhere.
  bool fits() const;
};

// One pipeline stage: what the timeline draws and the memory bars show.
struct StagePrice {
  double forward_seconds = 0;          // one micro-batch, with communication that is not hidden
  double backward_seconds = 0;         // both gradients, and what is recomputed
  double weight_gradient_seconds = 0;  // the part of backward that a zero-bubble schedule may postpone
  double send_seconds = 0;             // to the next stage, where it is not hidden; part of both above
  std::int64_t layers = 0;
  std::int64_t in_flight = 0;  // micro-batches (x chunks) whose activations are held at the peak
  std::string device;          // kind
  plan::MemoryBreakdown memory;
};

// Whether a profile is of the engine of this repository: tables of calibration, or its own stack. Memory is then what
// the engine is known to hold (engine_memory.h); of every other stack it is what a fit over its published runs found.
bool is_of_this_engine(const Profile& profile);

class Pricer {
 public:
  // A profile with tables and without constants is turned into constants (constants_from_tables.h), and lends its
  // speeds to a cluster of kind cpu. Throws UserError (exit code 3) for a model that has no formulas, (exit code 2) for
  // a cluster without figures (kind cpu without a calibrated profile).
  Pricer(const spec::Model& model, const spec::Cluster& cluster, const Profile& profile, const PricerOptions& options);
  ~Pricer();
  Pricer(Pricer&&) noexcept;
  Pricer& operator=(Pricer&&) noexcept;

  // `layout` is valid for the model (plan::find_layout_problem) and its world is at most the cluster's devices.
  Price price(const plan::Layout& layout, const plan::BatchPlan& batch) const;

  // A lower bound of price().memory.total() over every batch, recompute and schedule with these axes
  // (pp, dp, shard, zero, cp, tp, ep, offload): sound pruning.
  double memory_floor(const plan::Layout& layout) const;

  // Per stage, for the explanation; the same figures price() is made of.
  std::vector<StagePrice> stages(const plan::Layout& layout, const plan::BatchPlan& batch) const;

  // The same before it is put in time: what a simulator plays. Sums and overlaps of these figures are price().time.
  StepWork work(const plan::Layout& layout, const plan::BatchPlan& batch) const;

  // Interval, throughput and MFU of a price (90%: 1.645 sigma).
  plan::Prediction predict(const Price& price, const plan::Layout& layout, const plan::BatchPlan& batch) const;

  std::int64_t sequence_length() const;

  // The same question under other constants: what a fit turns some 10^5 times.
  void recalibrate(const Constants& constants);
  void recalibrate(const Constants& constants, const Stalls& stalls);

 private:
  double fastest_seconds(const Price& price, const plan::Layout& layout, const plan::BatchPlan& batch) const;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep::cost
