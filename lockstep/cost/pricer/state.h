// What a Pricer holds and the parts its price is made of. Internal to this folder: stages of a pipeline in stages.cpp,
// image networks in image.cpp, the fused step of one GPU in fused.cpp.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/units.h"
#include "lockstep/cost/engine_memory.h"
#include "lockstep/cost/flops.h"
#include "lockstep/cost/fused/time.h"
#include "lockstep/cost/layer.h"
#include "lockstep/cost/links.h"
#include "lockstep/cost/pricer/pricer.h"
#include "lockstep/cost/pricer/work.h"
#include "lockstep/cost/schedule.h"
#include "lockstep/cost/stage_content.h"
#include "lockstep/cost/states.h"
#include "lockstep/cost/traffic.h"

namespace lockstep::cost {

// CUDA (or HIP) context and the libraries' handles: what a process holds before it allocates anything.
inline constexpr double kContextBytes = 0.5 * kGiB;
// Gradient bucket of an overlapped reduction (PyTorch's and Megatron's defaults lie between 25 and 200 MB).
inline constexpr double kBucketBytes = 64 * kMiB;
// Of the device's memory: what was allocated at most by runs that would have had more.
inline constexpr double kFilledShare = 0.96;
// Offload: one device's share of PCIe and of the host's memory bandwidth for the optimizer (Ren et al. 2021,
// ZeRO-Offload, reaches about 1 G parameters per second and socket with AVX).
inline constexpr double kHostLinkBytesPerSecond = 20e9;
inline constexpr double kHostOptimizerParametersPerSecond = 0.25e9;
// Of a node's memory; the rest is the system's, the loader's and the file cache's (assumed).
inline constexpr double kHostShare = 0.9;

// Two costs that overlap except near equality: (a^4 + b^4)^(1/4).
inline double smooth_max(double a, double b) {
  const double a2 = a * a;
  const double b2 = b * b;
  return std::sqrt(std::sqrt(a2 * a2 + b2 * b2));
}

// One node group as the formulas see it.
struct GroupRates {
  std::string kind;
  Constants constants;  // of its own kind of device
  std::int64_t first_rank = 0;
  std::int64_t devices_per_node = 1;
  double memory_bytes = 0;
  double host_bytes = 0;  // a device's share of its node's memory; 0: unknown
  double peak_bf16 = 0;
  std::array<DeviceRates, 5> rates;  // by spec::Precision
  // By spec::Precision: the most FLOP/s that a product can reach there.
  std::array<double, 5> ceiling{};
  LinkRates links;
};

// What a step on the first groups of the cluster waits for together.
struct Together {
  double step_seconds = 0, bubble = 1, jitter = 0;
  Residuals residuals;
};

// Seconds of one micro-batch on one stage; parts for the breakdown.
struct StageTime {
  double compute = 0;
  double tp = 0, cp = 0, ep = 0;
  double dp = 0;    // ZeRO-3 traffic that is not hidden
  double send = 0;  // pipeline sends that are not hidden
  double host = 0;  // beyond what the device takes
  double forward = 0, backward = 0;
  double compute_backward = 0;
  LinkSeconds longer_forward, longer_backward;  // what exchanges add to the passes, by the links they take
  double weight_gradient = 0;
  double device_ahead = 0;  // share of the time in which the host waits for the device, 0 to 1
  // Parts of forward and backward that the simulator plays by themselves (work.h).
  double exchange_forward = 0, exchange_backward = 0;  // tp, cp and ep
  double dp_forward = 0;                               // of dp
  double gather = 0, scatter = 0;                      // ZeRO-3, whole: in each pass, and in backward
  double total() const { return forward + backward; }
};

// Device work and communication that is not hidden, of one micro-batch on one stage; and the work alone. Data-parallel
// traffic hides behind work, and behind exchanges that take other links than it does, as far as they make the pass
// longer (where the host sets the pace they do not). Then what a slower link hides it has added before, so that a
// slower link never makes a step faster. Where node groups differ another one may set the pace: there work alone
// counts.
struct StreamTime {
  double forward = 0, backward = 0;
  double compute_forward = 0, compute_backward = 0;
  LinkSeconds exchange_forward, exchange_backward;
};

// Of exchanges, those that take other links than `traffic` does.
inline double beside(const LinkSeconds& exchanges, const GroupPlacement& traffic) {
  return traffic.nodes > 1 ? exchanges.inside : exchanges.between;
}

// The data-parallel traffic of one stage in one step, alone on its links, without what ZeRO-3 does inside the
// micro-batches.
struct DataSeconds {
  LinkSeconds reduce;        // after the last backward
  LinkSeconds each;          // ZeRO-2 that scatters in every micro-batch: of one of them
  double micro_batches = 0;  // that have `each`
  LinkSeconds publish;       // ZeRO-1 and 2: weights gathered again
  double exposed = 1;        // share of all of it
  bool overlaps = false;     // the rest may hide behind backward
  double total() const { return reduce.total() + micro_batches * each.total() + publish.total(); }
};

// One micro-batch of an image network.
struct ImagePasses {
  double forward = 0, backward = 0;  // on the device
  double recompute = 0;
  double host = 0;  // beyond what the device takes
};

// What does not change from stage to stage of one kind of device.
struct LayerPrices {
  LayerSeconds layer, head, embedding;
  LayerBytes bytes;
  double logits = 0;
};

// The fused step, where the profile prices it.
struct FusedPricing {
  FusedConstants constants;
  double time_sigma = 0, memory_sigma = 0;
};

struct Pricer::State {
  spec::Model model;
  Dimensions dimensions;
  Fitted fitted;
  StackFacts replica_facts;              // the stack's under ZeRO-0, where gradients may be compressed
  std::optional<EngineQuestion> engine;  // where the stack is this repository's: memory is what the engine holds
  double framework_bytes = 0;            // of a rank of it before it holds a model, as measured
  PricerOptions options;
  std::int64_t sequence = 0;
  spec::Cluster cluster;
  std::vector<Fitted> by_group;    // what prices each group
  bool is_published = false;       // the profile was fitted to published runs, so physics bounds its constants
  std::vector<GroupRates> groups;  // in the order ranks fill them
  std::vector<Together> together;  // of the first group, the first two, ...
  double between_bytes_per_second = 0;
  std::int64_t devices = 0;
  double context_bytes = 0;         // of a process before it allocates anything
  std::vector<Operator> operators;  // of one sample, image models
  double image_parameters = 0;
  double image_kept_elements = 0;  // of one sample
  std::optional<FusedPricing> fused_pricing;
  bool fused_bf16 = false, fused_fp8 = false;  // one rank of the question runs the fused step, measured or not

  struct Context {
    const plan::Layout& layout;
    const plan::BatchPlan& batch;
    const Constants* constants;  // of the group that is priced
    GroupPlacements placements;
    ParameterBytes bytes;
    double stall_probability = 0;
  };

  // The node groups that a stage has devices in: `first` to `last` of `groups`.
  struct Span {
    std::size_t first = 0, last = 0;
    bool straddles() const { return first != last; }
  };

  // The links of a stage's devices in one node group: `inner` for the exchanges of tp, cp and ep, `data` for those of
  // replicas and shards, which go at the pace of the slowest group that the stage touches.
  struct StageLinks {
    LinkRates inner, data;
  };

  // A message to the next stage, and the groups of both ends.
  struct Boundary {
    bool between_groups = false;
    bool between_nodes = false;
    Span from, to;
  };

  // A stage on the devices of one node group.
  struct PricedStage {
    StageTime time;
    double reduction = 0, optimizer = 0;
    plan::MemoryBreakdown memory;
    double elastic = 0;  // bytes that a full device does without
  };

  // What walk() shows of a stage.
  struct VisitedStage {
    std::int64_t stage = 0, layers = 0;
    const Context& context;
    const StageTime& time;
    const plan::MemoryBreakdown& memory;
    const GroupRates& group;
    const StageLinks& links;
  };

  // The group that a rank is in; groups that a layout has ranks in come first.
  std::size_t group_of(std::int64_t rank) const;
  const Together& together_of(const plan::Layout& layout) const { return together[group_of(layout.world() - 1)]; }
  double nodes_of(const plan::Layout& layout) const;  // that hold ranks; parts of the last one count as such
  Span span_of(const plan::Layout& layout, std::int64_t stage) const;
  // Of the devices that a stage has in `group`, with the links of all of `span`.
  GroupPlacements placements_of(const plan::Layout& layout, const GroupRates& group, Span span) const;
  StageLinks links_of(const plan::Layout& layout, std::int64_t stage, const GroupRates& group, Span span) const;
  Boundary boundary_of(const plan::Layout& layout, std::int64_t stage) const;
  std::int64_t layers_of(const plan::Layout& layout, std::int64_t stage) const {
    return layers_on_stage(dimensions, layout, fitted.facts.stage_split, stage);
  }
  double dense_parameters(const plan::Layout& layout, std::int64_t stage, std::int64_t layers) const {
    return dense_parameters_on_rank(dimensions, layout, stage, layers);
  }
  double expert_parameters(const plan::Layout& layout, std::int64_t layers) const {
    return expert_parameters_on_rank(dimensions, layout, layers);
  }
  LayerPrices layer_prices(const Context& context, const GroupRates& group, const LinkRates& links) const;
  double bucket_bytes() const { return options.communication.bucket_mib * kMiB; }
  // The time of a stage and the terms it is the sum of, in their order.
  StageTime stage_time(const Context& context, const LayerPrices& prices, const GroupRates& group,
                       const StageLinks& links, std::int64_t stage, std::int64_t layers) const;
  PricedStage price_stage(const Context& context, const LayerPrices& prices, const GroupRates& group,
                          const StageLinks& links, std::int64_t stage, std::int64_t layers) const;
  StreamTime stream_time(const Context& context, const LayerPrices& prices, const GroupRates& group, std::int64_t stage,
                         std::int64_t layers, StageTime& time) const;
  void add_host(const Context& context, const LayerPrices& prices, const StreamTime& stream, std::int64_t stage,
                std::int64_t layers, StageTime& time) const;
  void add_sharded_traffic(const Context& context, const LinkRates& links, const StreamTime& stream, double dense,
                           double expert, StageTime& time) const;
  LinkSeconds send_seconds(const Context& context, std::int64_t stage, const LinkRates& links) const;
  plan::MemoryBreakdown stage_memory(const Context& context, const LayerPrices& prices, const StageTime& time,
                                     std::int64_t stage, std::int64_t layers) const;
  DataSeconds data_parallel(const Context& context, const LinkRates& links, double dense, double expert) const;
  double data_parallel_seconds(const Context& context, const LinkRates& links, double dense, double expert,
                               double backward) const;
  double offload_seconds(const Context& context, double compute) const;
  void add_data_work(const Context& context, const LinkRates& links, double dense, double expert,
                     StageWork& work) const;
  StageWork stage_work(const VisitedStage& visited) const;
  StepWork step_work(const plan::Layout& layout) const;  // without its stages
  StepWork fused_work(const plan::Layout& layout, const plan::BatchPlan& batch) const;
  StepWork image_work(const plan::Layout& layout, const plan::BatchPlan& batch) const;
  double spread_share(const plan::Layout& layout) const;
  double bucket_extra_seconds(const Context& context, const LinkRates& links, const DataTraffic& traffic) const;
  double bucket_exposed(const Context& context, const DataTraffic& traffic) const;
  double optimizer_seconds(const Context& context, const DeviceRates& rates, double dense, double expert) const;
  double held_micro_batches(const Context& context, std::int64_t stage) const;
  double gathered_bytes(const Context& context, const LayerPrices& prices, const StageTime& time, std::int64_t stage,
                        std::int64_t layers) const;
  double gathered_share(const Context& context, const StageTime& time) const;
  double activation_bytes(const Context& context, const LayerPrices& prices, const StageTime& time, std::int64_t stage,
                          std::int64_t layers) const;
  double buffer_bytes(const Context& context, std::int64_t stage, double parameters) const;
  plan::MemoryBreakdown engine_stage_memory(const plan::Layout& layout, plan::BatchPlan batch,
                                            std::int64_t stage) const;
  void add_overhead(const plan::Layout& layout, const GroupRates& group, plan::MemoryBreakdown& memory) const;
  // What the ranks of a node keep in its memory instead of on their devices.
  void add_host_memory(const Context& context, const GroupRates& group, double dense, double expert,
                       plan::MemoryBreakdown& memory) const;
  double headroom(const plan::Layout& layout) const;
  Constants constants_of(const Fitted& own, const spec::Device& device) const;
  // Of a figure of a device, over the ranks of a layout.
  template <class Figure>
  double sum_over_ranks(const plan::Layout& layout, Figure figure) const {
    double sum = 0;
    for (std::size_t i = 0; i < groups.size(); ++i) {
      const std::int64_t end = i + 1 < groups.size() ? groups[i + 1].first_rank : devices;
      const std::int64_t ranks = std::min(end, layout.world()) - groups[i].first_rank;
      if (ranks > 0) sum += static_cast<double>(ranks) * figure(groups[i]);
    }
    return sum;
  }
  plan::TimeBreakdown step_time(const Context& context, const StageTime& slow, PassSeconds all, double reduction,
                                double optimizer) const;
  template <bool kEveryStage, class Visit>
  Price walk(const plan::Layout& layout, const plan::BatchPlan& batch, Visit&& visit) const;
  Price price_image(const plan::Layout& layout, const plan::BatchPlan& batch) const;
  // Everything that depends on which group of the first stage is priced.
  Context image_context(const plan::Layout& layout, const plan::BatchPlan& batch, const GroupRates& group) const;
  const GroupRates& slowest_group(const plan::Layout& layout, const plan::BatchPlan& batch) const;
  ImagePasses image_passes(const Context& context, const GroupRates& group) const;
  plan::TimeBreakdown image_time(const Context& context, const GroupRates& group) const;
  struct LargestPart {
    double share = 1, parameters = 0;
  };
  LargestPart largest_part(const plan::Layout& layout) const;
  std::optional<ImagePasses> measured_passes(double samples, const plan::Layout& layout) const;
  double image_traffic_seconds(const Context& context, const LinkRates& links, double forward, double backward) const;
  plan::MemoryBreakdown image_memory(const Context& context) const;
  void finish(Price& price, const plan::Layout& layout) const;
  ParameterBytes bytes_of(const plan::Layout& layout) const;
  void set_options(const Profile& profile);
  void set_fused(const Profile& profile, plan::Run run);
  bool runs_fused(const plan::Layout& layout) const;  // for some batch
  bool runs_fused(const plan::Layout& layout, const plan::BatchPlan& batch) const;
  bool is_fused(const plan::Layout& layout, const plan::BatchPlan& batch) const {
    return fused_pricing && runs_fused(layout, batch);
  }
  FusedRun fused_run_of(const plan::Layout& layout, const plan::BatchPlan& batch) const;
  Price price_fused(const plan::Layout& layout, const plan::BatchPlan& batch) const;
  StagePrice fused_stage(const plan::Layout& layout, const plan::BatchPlan& batch) const;
};

}  // namespace lockstep::cost
