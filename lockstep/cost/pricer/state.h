// What a Pricer holds and the parts its price is made of. Internal to pricer*.cpp: stages of a pipeline in
// pricer_stages.cpp, image networks in pricer_image.cpp, the fused step of one GPU in pricer_fused.cpp.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/units.h"
#include "lockstep/cost/flops.h"
#include "lockstep/cost/fused/time.h"
#include "lockstep/cost/layer.h"
#include "lockstep/cost/links.h"
#include "lockstep/cost/pricer/pricer.h"
#include "lockstep/cost/stage_content.h"
#include "lockstep/cost/states.h"
#include "lockstep/cost/traffic.h"

namespace lockstep::cost {

// CUDA (or HIP) context and the libraries' handles: what a process holds before it allocates anything.
inline constexpr double kContextBytes = 0.5 * kGiB;
// Gradient bucket of an overlapped reduction (PyTorch's and Megatron's defaults lie between 25 and 200 MB).
inline constexpr double kBucketBytes = 64 * kMiB;
// Offload: one device's share of PCIe and of the host's memory bandwidth for the optimizer (Ren et al. 2021,
// ZeRO-Offload, reaches about 1 G parameters per second and socket with AVX).
inline constexpr double kHostLinkBytesPerSecond = 20e9;
inline constexpr double kHostOptimizerParametersPerSecond = 0.25e9;

// Two costs that overlap except near equality: (a^4 + b^4)^(1/4).
inline double smooth_max(double a, double b) {
  const double a2 = a * a;
  const double b2 = b * b;
  return std::sqrt(std::sqrt(a2 * a2 + b2 * b2));
}

// One node group as the formulas see it.
struct GroupRates {
  std::string kind;
  std::int64_t first_rank = 0;
  std::int64_t devices_per_node = 1;
  double memory_bytes = 0;
  double peak_bf16 = 0;
  std::array<DeviceRates, 5> rates;  // by spec::Precision
  LinkRates links;
};

// Seconds of one micro-batch on one stage; parts for the breakdown.
struct StageTime {
  double compute = 0;
  double tp = 0, cp = 0, ep = 0;
  double dp = 0;    // ZeRO-3 traffic that is not hidden
  double send = 0;  // pipeline sends that are not hidden
  double host = 0;  // beyond what the device takes
  double forward = 0, backward = 0;
  double weight_gradient = 0;
  double device_ahead = 0;  // share of the time in which the host waits for the device, 0 to 1
  double total() const { return forward + backward; }
};

// What does not change from stage to stage of one kind of device.
struct LayerPrices {
  LayerSeconds layer, head, embedding;
  LayerBytes bytes;
  double logits = 0;
};

// The fused step, where the profile prices it and the model is one it runs.
struct FusedPricing {
  FusedConstants constants;
  double time_sigma = 0, memory_sigma = 0;
  FusedRun model;  // its sizes
  spec::Device device;
  bool fp8 = false;  // its sizes allow products in 8 bits
};

struct Pricer::State {
  spec::Model model;
  Dimensions dimensions;
  Fitted fitted;
  PricerOptions options;
  std::int64_t sequence = 0;
  spec::Cluster cluster;
  std::vector<GroupRates> groups;
  double between_bytes_per_second = 0;
  std::int64_t devices = 0;
  double context_bytes = 0;         // of a process before it allocates anything
  std::vector<Operator> operators;  // of one sample, image models
  double image_parameters = 0;
  double image_kept_elements = 0;  // of one sample
  std::optional<FusedPricing> dense;
  bool is_dense_model = false;  // the fused step runs it, whether or not the profile was measured with that step

  struct Context {
    const plan::Layout& layout;
    const plan::BatchPlan& batch;
    GroupPlacements placements;
    ParameterBytes bytes;
  };

  // The node group a stage binds on: the slowest it touches; `straddles` when it touches several.
  struct StagePlace {
    const GroupRates* group = nullptr;
    bool straddles = false;
    double memory_bytes = 0;
  };

  StagePlace place_of(const plan::Layout& layout, std::int64_t stage) const;
  GroupPlacements placements_of(const plan::Layout& layout, std::int64_t devices_per_node) const;
  std::int64_t layers_of(const plan::Layout& layout, std::int64_t stage) const {
    return layers_on_stage(dimensions, layout, fitted.facts.stage_split, stage);
  }
  double dense_parameters(const plan::Layout& layout, std::int64_t stage, std::int64_t layers) const {
    return dense_parameters_on_rank(dimensions, layout, stage, layers);
  }
  double expert_parameters(const plan::Layout& layout, std::int64_t layers) const {
    return expert_parameters_on_rank(dimensions, layout, layers);
  }
  LayerPrices layer_prices(const Context& context, const GroupRates& group, const LinkRates& links,
                           const GroupPlacements& placements) const;
  StageTime stage_time(const Context& context, const LayerPrices& prices, const LinkRates& links, std::int64_t stage,
                       std::int64_t layers) const;
  double send_seconds(const Context& context, std::int64_t stage, const LinkRates& links) const;
  plan::MemoryBreakdown stage_memory(const Context& context, const LayerPrices& prices, const StageTime& time,
                                     std::int64_t stage, std::int64_t layers) const;
  double data_parallel_seconds(const Context& context, const LinkRates& links, double dense, double expert,
                               double backward) const;
  double bucket_extra_seconds(const Context& context, const LinkRates& links, const DataTraffic& traffic) const;
  double bucket_exposed(const DataTraffic& traffic) const;
  double optimizer_seconds(const Context& context, const DeviceRates& rates, double dense, double expert) const;
  LinkRates links_of(const StagePlace& place, const plan::Layout& layout) const;
  void add_overhead(const plan::Layout& layout, plan::MemoryBreakdown& memory) const;
  template <bool kEveryStage, class Visit>
  Price walk(const plan::Layout& layout, const plan::BatchPlan& batch, Visit&& visit) const;
  Price price_image(const plan::Layout& layout, const plan::BatchPlan& batch) const;
  void finish(Price& price, const plan::Layout& layout) const;
  ParameterBytes bytes_of(const plan::Layout& layout) const;
  void set_fused(const Profile& profile);           // after everything else
  bool is_fused(const plan::Layout& layout) const;  // for some batch
  bool is_fused(const plan::Layout& layout, const plan::BatchPlan& batch) const;
  FusedRun fused_run_of(const plan::Layout& layout, const plan::BatchPlan& batch) const;
  Price price_fused(const plan::Layout& layout, const plan::BatchPlan& batch) const;
  StagePrice fused_stage(const plan::Layout& layout, const plan::BatchPlan& batch) const;
};

}  // namespace lockstep::cost
