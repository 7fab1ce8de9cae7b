#include "lockstep/planner/explain/assumptions.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/cost/fused/time.h"
#include "lockstep/cost/profile/constants_from_tables.h"

namespace lockstep::planner {
namespace {

// Of tables whose repetitions say nothing.
constexpr double kUsualSpread = 0.05;
constexpr double kNoBound = std::numeric_limits<double>::infinity();

struct Title {
  std::string_view constant;
  const char* name;
  Settle settle;
};

// Constants of time, by the name they have in profiles.
constexpr std::array<Title, 36> kTitles{{
    {"gemm_efficiency", "speed of matrix products", Settle::kDevice},
    {"gemm_m_half", "speed of products with few rows", Settle::kDevice},
    {"gemm_n_half", "speed of products with few columns", Settle::kDevice},
    {"gemm_k_half", "speed of products with a small inner size", Settle::kDevice},
    {"gemm_backward", "products of backward", Settle::kDevice},
    {"fp8_speedup", "gain of fp8", Settle::kDevice},
    {"attention_efficiency", "speed of attention", Settle::kDevice},
    {"attention_backward", "backward of attention", Settle::kDevice},
    {"attention_half", "attention on short sequences", Settle::kDevice},
    {"softmax_passes", "unfused attention", Settle::kDevice},
    {"pointwise_passes", "pointwise kernels", Settle::kDevice},
    {"logits_passes", "logits and loss", Settle::kDevice},
    {"misaligned_heads", "attention with odd heads", Settle::kDevice},
    {"layer_host_seconds", "host time of a layer", Settle::kDevice},
    {"layer_host_backward", "host time of backward", Settle::kDevice},
    {"tp_host_seconds", "host time of tensor-parallel collectives", Settle::kRun},
    {"tp_pipeline_factor", "tensor-parallel collectives inside a pipeline", Settle::kRun},
    {"micro_batch_seconds", "fixed time of a micro-batch", Settle::kRun},
    {"pipeline_scale_seconds", "pipelines over many nodes", Settle::kRun},
    {"step_seconds", "fixed time of a step", Settle::kRun},
    {"optimizer_passes", "time of the optimizer", Settle::kDevice},
    {"intra_efficiency", "bandwidth inside a node", Settle::kRun},
    {"inter_efficiency", "bandwidth of the network cards", Settle::kRun},
    {"intra_latency", "latency inside a node", Settle::kRun},
    {"inter_latency", "latency between nodes", Settle::kRun},
    {"gather_efficiency", "gathering weights between nodes", Settle::kRun},
    {"node_falloff", "bandwidth over many nodes", Settle::kRun},
    {"tp_exposed", "overlap of tensor-parallel traffic", Settle::kRun},
    {"dp_exposed", "overlap of the gradient reduction", Settle::kRun},
    {"zero3_exposed", "overlap of gathered weights (ZeRO-3)", Settle::kRun},
    {"pp_exposed", "overlap of pipeline messages", Settle::kRun},
    {"cp_exposed", "overlap of context-parallel traffic", Settle::kRun},
    {"ep_exposed", "overlap of expert traffic", Settle::kRun},
    {"overlap_slowdown", "compute beside a collective", Settle::kRun},
    {"bubble", "idle time of the pipeline", Settle::kRun},
    {"jitter", "how unlike nodes are", Settle::kRun},
}};

std::vector<Dial> dials_of_formulas(const plan::Run& run, const cost::Profile& profile, cost::Pricer& pricer) {
  const cost::Constants constants =
      profile.fitted
          ? profile.fitted->constants
          : cost::fitted_from_tables(profile, cost::with_measured_speeds(run.cluster, profile).groups.front())
                .constants;
  std::vector<Dial> dials;
  for (const cost::ConstantInfo& info : cost::constant_table()) {
    if (info.is_memory) continue;
    const auto title =
        std::find_if(kTitles.begin(), kTitles.end(), [&](const Title& each) { return each.constant == info.name; });
    LOCKSTEP_ASSERT(title != kTitles.end(), std::string("a constant without a title: ") + info.name);
    const double value = constants.*info.member;
    dials.push_back(
        {.name = title->name,
         .meaning = info.meaning,
         .unit = std::string_view(info.name).ends_with("_seconds") || title->constant.ends_with("_latency") ? "s" : "",
         .value = value,
         .spread = info.stack_spread,
         .least = std::min(info.low, value),
         .most = std::max(info.high, value),
         .settle = title->settle,
         .step_seconds = [&pricer, &run, constants, member = info.member](double turned) {
           cost::Constants changed = constants;
           changed.*member = turned;
           pricer.recalibrate(changed);
           return pricer.price(run.layout, run.batch).step_seconds();
         }});
  }
  return dials;
}

std::vector<Dial> dials_of_fused_step(const plan::Run& run, const cost::Profile& profile) {
  std::vector<Dial> dials;
  for (const cost::FusedConstantInfo& info : cost::fused_constant_table()) {
    const double value = profile.dense->constants.*info.member;
    dials.push_back({.name = info.meaning,
                     .meaning = std::string("constant ") + info.name + " of the fused step",
                     .unit = std::string_view(info.name).ends_with("_seconds") ? "s" : "",
                     .value = value,
                     .spread = info.spread,
                     .least = 0,
                     .most = std::string_view(info.name).ends_with("_efficiency") ? std::max(1.0, value) : kNoBound,
                     .settle = Settle::kDevice,
                     .step_seconds = [&run, &profile, member = info.member](double turned) {
                       cost::Profile changed = profile;
                       changed.dense->constants.*member = turned;
                       return cost::price(run, changed).step_seconds();
                     }});
  }
  return dials;
}

template <class Point>
double spread_of(const std::vector<Point>& points) {
  double sum = 0;
  for (const Point& point : points) sum += point.spread * point.spread;
  return points.empty() ? kUsualSpread : std::max(kUsualSpread, std::sqrt(sum / static_cast<double>(points.size())));
}

// Of tables there are no constants: each kind of table is stretched as a whole.
std::vector<Dial> dials_of_tables(const plan::Run& run, const cost::Profile& profile) {
  std::vector<Dial> dials;
  const auto add = [&](const char* name, double spread, const std::function<void(cost::Profile&, double)>& stretch) {
    dials.push_back({.name = name,
                     .meaning = "times the measured seconds",
                     .unit = "",
                     .value = 1,
                     .spread = spread,
                     .least = 0,
                     .most = kNoBound,
                     .settle = Settle::kDevice,
                     .step_seconds = [&run, &profile, stretch](double factor) {
                       cost::Profile changed = profile;
                       stretch(changed, factor);
                       return cost::price(run, changed).step_seconds();
                     }});
  };
  add("speed of matrix products", spread_of(profile.matmuls), [](cost::Profile& changed, double factor) {
    for (cost::MatmulPoint& point : changed.matmuls) point.flops_per_second /= factor;
  });
  add("speed of attention", spread_of(profile.attention), [](cost::Profile& changed, double factor) {
    for (cost::AttentionPoint& point : changed.attention) {
      point.forward_seconds *= factor;
      point.backward_seconds *= factor;
    }
  });
  add("pointwise kernels", spread_of(profile.pointwise), [](cost::Profile& changed, double factor) {
    for (cost::PointwisePoint& point : changed.pointwise) {
      point.forward_seconds *= factor;
      point.backward_seconds *= factor;
    }
  });
  add("host time of operators", kUsualSpread, [](cost::Profile& changed, double factor) {
    changed.operator_seconds *= factor;
    changed.backward_operator_seconds *= factor;
  });
  add("time of the optimizer", kUsualSpread,
      [](cost::Profile& changed, double factor) { changed.optimizer_bytes_per_second /= factor; });
  add("collectives", spread_of(profile.collectives), [](cost::Profile& changed, double factor) {
    for (cost::CollectivePoint& point : changed.collectives) point.seconds *= factor;
  });
  return dials;
}

}  // namespace

std::vector<Dial> dials_of(const plan::Run& run, const cost::Profile& profile, cost::Pricer& pricer) {
  switch (cost::priced_by(run, profile)) {
    case cost::PricedBy::kTables:
      return dials_of_tables(run, profile);
    case cost::PricedBy::kFused:
      return dials_of_fused_step(run, profile);
    case cost::PricedBy::kFormulas:
      break;
  }
  return dials_of_formulas(run, profile, pricer);
}

std::string measurement_of(Settle settle) {
  switch (settle) {
    case Settle::kDevice:
      return "a calibration of one device of the cluster; the profile it writes prices the plan again (--profile)";
    case Settle::kRun:
      return "a few dozen recorded steps of the job on the cluster: the report sets each part of the measured step "
             "beside the predicted one";
    case Settle::kFailures:
      return "the cluster's own list of faults over some weeks, fitted";
    case Settle::kSave:
      return "one checkpoint of the job, written on the cluster: the report says how long it took";
    case Settle::kDrill:
      return "a drill in which a node dies: the report says how long the run took to come back";
  }
  return {};
}

std::string command_of(Settle settle, const plan::Run& run) {
  switch (settle) {
    case Settle::kDevice:
      return run.cluster.is_cpu() ? fmt::format("lockstep calibrate --ranks {}", run.layout.world())
                                  : "lockstep calibrate --device cuda --output measured.json";
    case Settle::kFailures:
      return "lockstep simulate --failures faults.json --fit";
    case Settle::kRun:
    case Settle::kSave:
    case Settle::kDrill:
      break;
  }
  return "lockstep report last";
}

}  // namespace lockstep::planner
