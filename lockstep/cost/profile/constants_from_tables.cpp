#include "lockstep/cost/profile/constants_from_tables.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/cost/engine_memory.h"
#include "lockstep/cost/flops.h"
#include "lockstep/cost/layer.h"
#include "lockstep/cost/least_squares.h"
#include "lockstep/cost/links.h"
#include "lockstep/cost/pricer/pricer.h"
#include "lockstep/cost/states.h"
#include "lockstep/cost/step_time.h"

namespace lockstep::cost {
namespace {

using spec::Precision;

// A measurement is good to about this share; a default that no measurement contradicts holds to about this factor.
constexpr double kMeasurementSigma = 0.05;
constexpr double kDefaultSigma = 1.5;
// Where nothing was measured to say otherwise.
constexpr double kUnmeasuredTimeSigma = 0.3;
constexpr double kUnmeasuredMemorySigma = 0.15;
constexpr double kSmallestSigma = 0.03;

double geometric_mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += std::log(value);
  return std::exp(sum / static_cast<double>(values.size()));
}

Precision main_precision(const Profile& profile) {
  for (const MatmulPoint& point : profile.matmuls) {
    if (point.precision == Precision::kBf16) return Precision::kBf16;
  }
  if (profile.matmuls.empty()) {
    throw UserError(ExitCode::kEnvironment, "profile " + profile.identity() + " has no matrix products",
                    "measure this machine with `lockstep calibrate`");
  }
  return profile.matmuls.front().precision;
}

// Finds some of the constants so that `misfit` (logarithms of measured over modelled) is least, near the defaults.
class Fit {
 public:
  explicit Fit(Constants& constants) : constants_(constants) {}

  Fit& unknown(double Constants::*member) {
    members_.push_back(member);
    return *this;
  }

  void solve(const std::function<std::vector<double>(const Constants&)>& misfit) {
    std::vector<double> start;
    for (const auto member : members_) start.push_back(std::log(constants_.*member));
    const auto residuals = [&](const std::vector<double>& x) {
      std::vector<double> rows = misfit(with(x));
      for (double& row : rows) row /= kMeasurementSigma;
      for (std::size_t i = 0; i < x.size(); ++i) rows.push_back((x[i] - start[i]) / kDefaultSigma);
      return rows;
    };
    constants_ = with(least_squares(start, residuals));
  }

 private:
  Constants with(const std::vector<double>& x) const {
    Constants constants = constants_;
    for (std::size_t i = 0; i < x.size(); ++i) constants.*members_[i] = std::exp(x[i]);
    return constants;
  }

  Constants& constants_;
  std::vector<double Constants::*> members_;
};

// As layer.cpp prices the three products of a linear layer.
double product_seconds(const DeviceRates& rates, const Constants& constants, const MatmulPoint& point) {
  const double m = static_cast<double>(point.m), n = static_cast<double>(point.n), k = static_cast<double>(point.k);
  switch (point.kind) {
    case MatmulKind::kForward:
      return gemm_seconds(rates, m, n, k).value();
    case MatmulKind::kInputGradient:
      return gemm_seconds(rates, m, k, n).value() * constants.gemm_backward;
    case MatmulKind::kWeightGradient:
      return gemm_seconds(rates, n, k, m).value() * constants.gemm_backward;
    case MatmulKind::kConvolutionForward:
    case MatmulKind::kConvolutionBackward:
      break;
  }
  return 0;
}

double measured_seconds(const MatmulPoint& point) {
  return 2.0 * static_cast<double>(point.m) * static_cast<double>(point.n) * static_cast<double>(point.k) /
         point.flops_per_second;
}

// Linear products of the precision. A GPU waits for the host in those that take about as little as any: they say how
// long a launch takes, which is priced as host cost.
std::vector<const MatmulPoint*> products_of(const Profile& profile, const spec::Device& device, Precision precision) {
  constexpr double kLaunchBound = 1.5;
  std::vector<const MatmulPoint*> points;
  double least = std::numeric_limits<double>::infinity();
  for (const MatmulPoint& point : profile.matmuls) {
    if (point.kind > MatmulKind::kWeightGradient || point.precision != precision) continue;
    points.push_back(&point);
    least = std::min(least, measured_seconds(point));
  }
  if (!device.is_cpu()) {
    std::erase_if(points, [&](const MatmulPoint* point) { return measured_seconds(*point) < kLaunchBound * least; });
  }
  return points;
}

void fit_products(Constants& constants, const Profile& profile, const spec::Device& device, Precision precision) {
  const std::vector<const MatmulPoint*> points = products_of(profile, device, precision);
  if (points.empty()) return;
  Fit(constants)
      .unknown(&Constants::gemm_efficiency)
      .unknown(&Constants::gemm_m_half)
      .unknown(&Constants::gemm_n_half)
      .unknown(&Constants::gemm_k_half)
      .unknown(&Constants::gemm_backward)
      .solve([&](const Constants& trial) {
        const DeviceRates rates = rates_of(device, precision, trial);
        std::vector<double> rows;
        rows.reserve(points.size());
        for (const MatmulPoint* point : points) {
          rows.push_back(std::log(measured_seconds(*point) / product_seconds(rates, trial, *point)));
        }
        return rows;
      });
}

// Products in fp8 over what bf16 takes for them. Call after fit_products().
void fit_fp8(Constants& constants, const Profile& profile, const spec::Device& device) {
  const DeviceRates rates = rates_of(device, Precision::kBf16, constants);
  std::vector<double> ratios;
  for (const MatmulPoint* point : products_of(profile, device, Precision::kFp8)) {
    ratios.push_back(product_seconds(rates, constants, *point) / measured_seconds(*point));
  }
  if (!ratios.empty()) constants.fp8_speedup = geometric_mean(ratios);
}

void fit_attention(Constants& constants, const Profile& profile, const spec::Device& device, Precision precision) {
  std::vector<const AttentionPoint*> points;
  for (const AttentionPoint& point : profile.attention) {
    if (point.precision == precision) points.push_back(&point);
  }
  if (points.empty()) return;
  Fit(constants)
      .unknown(&Constants::attention_efficiency)
      .unknown(&Constants::attention_half)
      .unknown(&Constants::attention_backward)
      .solve([&](const Constants& trial) {
        const DeviceRates rates = rates_of(device, precision, trial);
        std::vector<double> rows;
        for (const AttentionPoint* point : points) {
          const double sequence = static_cast<double>(point->sequence);
          const double head_dim = static_cast<double>(point->head_dim);
          const double keys = point->causal ? sequence / 2 : sequence;
          const double forward = fused_attention_seconds(rates, static_cast<double>(point->heads) * sequence, keys,
                                                         head_dim, sequence, head_dim)
                                     .value();
          rows.push_back(std::log(point->forward_seconds / forward));
          rows.push_back(std::log(point->backward_seconds / (2.5 * trial.attention_backward * forward)));
        }
        return rows;
      });
}

bool has_kernel(const Profile& profile, PointwiseKernel kernel, Precision precision) {
  return std::any_of(profile.pointwise.begin(), profile.pointwise.end(), [&](const PointwisePoint& point) {
    return point.kernel == kernel && point.precision == precision;
  });
}

// Elements of the larger measurements of a kernel: small ones are all launch, and are priced as host cost.
std::vector<std::int64_t> large_sizes(const Profile& profile, PointwiseKernel kernel, Precision precision) {
  std::vector<std::int64_t> sizes;
  for (const PointwisePoint& point : profile.pointwise) {
    if (point.kernel == kernel && point.precision == precision) sizes.push_back(point.elements);
  }
  if (sizes.empty()) return sizes;
  const std::int64_t largest = *std::max_element(sizes.begin(), sizes.end());
  std::erase_if(sizes, [&](std::int64_t size) { return 8 * size < largest; });
  return sizes;
}

// One layer over `elements` = tokens x hidden, proportioned as usual.
spec::Model usual_layer(spec::Arch arch, std::int64_t hidden) {
  spec::Model model;
  model.arch = arch;
  model.layers = 1;
  model.hidden = hidden;
  model.head_dim = 64;
  model.heads = model.kv_heads = std::max<std::int64_t>(1, hidden / 64);
  model.ffn_hidden = arch == spec::Arch::kGpt ? 4 * hidden : 8 * hidden / 3;
  model.vocab = 256;
  model.max_sequence = 1;
  model.tied_embeddings = true;
  return model;
}

// How often a model of one layer has the operator inside that layer: not around it, nor behind it as the last norm.
double count_in_layer(const Operator& op) {
  if (op.chunked) return 0;
  if (op.kind != OperatorKind::kPointwise) return static_cast<double>(op.count);
  if (op.kernel == PointwiseKernel::kEmbedding) return 0;
  const bool norm = op.kernel == PointwiseKernel::kLayerNorm || op.kernel == PointwiseKernel::kRmsNorm;
  return static_cast<double>(op.count - (norm ? 1 : 0));
}

// Seconds of one layer's kernels that are not products, forward and backward, from the tables.
double measured_pointwise(const Profile& profile, const spec::Model& model, std::int64_t tokens, Precision precision) {
  double seconds = 0;
  for (const Operator& op : list_operators(model, tokens, 1)) {
    if (op.kind != OperatorKind::kPointwise) continue;
    const OperatorSeconds one = operator_seconds(profile, op, precision);
    seconds += count_in_layer(op) * (one.forward + one.backward);
  }
  return seconds;
}

// What the pricer charges for one unit of pointwise_passes: layer_seconds() is linear in it.
double priced_pointwise(const spec::Device& device, const spec::Model& model, std::int64_t tokens,
                        Precision precision) {
  const Dimensions dimensions = dimensions_of(model);
  plan::Layout layout;
  layout.precision = precision;
  const LinkRates links;
  const GroupPlacements groups;
  const StackFacts facts;
  const auto seconds = [&](double passes) {
    Constants constants;
    constants.pointwise_passes = passes;
    const DeviceRates rates = rates_of(device, precision, constants);
    const LayerSeconds layer = layer_seconds({.model = dimensions,
                                              .layout = layout,
                                              .constants = constants,
                                              .facts = facts,
                                              .rates = rates,
                                              .links = links,
                                              .groups = groups,
                                              .micro = static_cast<double>(tokens),
                                              .sequence = 1});
    return layer.forward + layer.backward;
  };
  return seconds(2) - seconds(1);
}

void fit_pointwise(Constants& constants, const Profile& profile, const spec::Device& device, Precision precision) {
  std::vector<double> passes;
  for (const auto& [arch, norm, activation] :
       {std::tuple{spec::Arch::kGpt, PointwiseKernel::kLayerNorm, PointwiseKernel::kGelu},
        std::tuple{spec::Arch::kLlama, PointwiseKernel::kRmsNorm, PointwiseKernel::kSilu}}) {
    if (!has_kernel(profile, activation, precision)) continue;
    for (const std::int64_t elements : large_sizes(profile, norm, precision)) {
      const std::int64_t hidden = std::clamp<std::int64_t>(elements / 1024, 64, 4096) / 64 * 64;
      const std::int64_t tokens = std::max<std::int64_t>(1, elements / hidden);
      const spec::Model model = usual_layer(arch, hidden);
      const double measured = measured_pointwise(profile, model, tokens, precision);
      if (measured > 0) passes.push_back(measured / priced_pointwise(device, model, tokens, precision));
    }
  }
  if (!passes.empty()) constants.pointwise_passes = geometric_mean(passes);
}

void fit_loss(Constants& constants, const Profile& profile, const spec::Device& device, Precision precision) {
  std::vector<double> passes;
  const std::vector<std::int64_t> sizes = large_sizes(profile, PointwiseKernel::kCrossEntropy, precision);
  for (const PointwisePoint& point : profile.pointwise) {
    const bool wanted = point.kernel == PointwiseKernel::kCrossEntropy && point.precision == precision &&
                        std::find(sizes.begin(), sizes.end(), point.elements) != sizes.end();
    const double seconds = point.forward_seconds + point.backward_seconds;
    if (!wanted || seconds <= 0) continue;
    const double stream =
        4.0 * static_cast<double>(point.elements) / (device.memory_bytes_per_second * kStreamEfficiency);
    passes.push_back(seconds / stream);
  }
  if (!passes.empty()) constants.logits_passes = geometric_mean(passes);
}

void fit_host(Constants& constants, const Profile& profile) {
  if (profile.operator_seconds <= 0) return;
  constants.layer_host_seconds = profile.operator_seconds * operators_per_layer();
  if (profile.backward_operator_seconds > 0) {
    constants.layer_host_backward = profile.backward_operator_seconds / profile.operator_seconds;
  }
  // What a micro-batch and a step cost beside their layers: a few operators.
  constants.micro_batch_seconds = profile.operator_seconds;
  constants.step_seconds = profile.operator_seconds;
}

void fit_optimizer(Constants& constants, const Profile& profile, const spec::Device& device, Precision precision) {
  if (profile.optimizer_bytes_per_second <= 0) return;
  const ParameterBytes bytes = parameter_bytes(precision, spec::OptimizerKind::kAdamW, {});
  const double traffic = 2 * bytes.gradient + 2 * (bytes.optimizer + bytes.weight);  // as the pricer counts it
  const double measured =
      optimizer_bytes_per_parameter(precision, spec::OptimizerKind::kAdamW) / profile.optimizer_bytes_per_second;
  constants.optimizer_passes = measured / (traffic / (device.memory_bytes_per_second * kStreamEfficiency));
}

void fit_links(Constants& constants, const Profile& profile, const spec::NodeGroup& node) {
  std::vector<const CollectivePoint*> points;
  for (const CollectivePoint& point : profile.collectives) {
    if (point.ranks > 1) points.push_back(&point);
  }
  if (points.empty()) return;
  Fit(constants)
      .unknown(&Constants::intra_efficiency)
      .unknown(&Constants::intra_latency)
      .solve([&](const Constants& trial) {
        LinkRates links;
        links.intra = BytesPerSecond(node.intra.bytes_per_second * trial.intra_efficiency);
        links.intra_latency = Seconds(trial.intra_latency);
        std::vector<double> rows;
        for (const CollectivePoint* point : points) {
          const GroupPlacement group{.ranks = point->ranks, .per_node = point->ranks, .nodes = 1};
          const double seconds =
              collective_on_links(links, group, point->op, Bytes(static_cast<double>(point->bytes))).value();
          rows.push_back(std::log(point->seconds / seconds));
        }
        return rows;
      });
  // What can run beside compute hides as far as was measured; what stands between two products cannot.
  constants.dp_exposed = constants.zero3_exposed = std::max(0.02, 1 - profile.overlap);
  constants.tp_exposed = constants.cp_exposed = constants.pp_exposed = constants.ep_exposed = 1;
  constants.overlap_slowdown = 1;  // the measured overlap is what was gained in the end
  constants.tp_host_seconds = constants.intra_latency;
  constants.tp_pipeline_factor = 1;
}

// Every part of a step that was measured longer by `factor`.
void slow_down(Constants& constants, double factor, bool links) {
  constants.gemm_efficiency /= factor;
  constants.attention_efficiency /= factor;
  for (const auto member : {&Constants::pointwise_passes, &Constants::logits_passes, &Constants::layer_host_seconds,
                            &Constants::micro_batch_seconds, &Constants::step_seconds, &Constants::optimizer_passes}) {
    constants.*member *= factor;
  }
  if (!links) return;
  constants.intra_efficiency /= factor;
  constants.intra_latency *= factor;
  constants.tp_host_seconds *= factor;
}

struct Scatter {
  double mean = 0;   // of the logarithms
  double sigma = 0;  // of a further one, their small number counted in
};

Scatter scatter_of(const std::vector<double>& logarithms) {
  const double n = static_cast<double>(logarithms.size());
  Scatter scatter;
  for (const double value : logarithms) scatter.mean += value / n;
  if (logarithms.size() < 2) {
    scatter.sigma = std::abs(scatter.mean);  // one says how far off, not how steadily
    return scatter;
  }
  double squares = 0;
  for (const double value : logarithms) squares += (value - scatter.mean) * (value - scatter.mean);
  scatter.sigma = std::sqrt(squares / (n - 1) * (1 + 1 / n));
  return scatter;
}

// A transformer's check as the planner would price it.
struct PricedCheck {
  const CalibrationCheck* check;
  double seconds;
  double bytes;  // of the sharded executor, which the checks run
};

std::vector<PricedCheck> price_checks(const Profile& profile, const Constants& constants, const spec::NodeGroup& node) {
  Profile priced;
  priced.fitted = Fitted{.constants = constants, .facts = lockstep_facts()};
  std::vector<PricedCheck> prices;
  for (const CalibrationCheck& check : profile.checks) {
    if (!check.workload || check.family != CheckFamily::kTransformer) continue;
    const CheckWorkload& workload = *check.workload;
    spec::Cluster cluster;
    cluster.groups = {node};
    cluster.groups.front().nodes = 1;
    cluster.groups.front().devices_per_node = workload.ranks;
    plan::Run run{.model = workload.model, .cluster = cluster};
    run.layout.dp = workload.ranks;
    run.layout.precision = workload.precision;
    run.batch = {.micro = workload.micro,
                 .accumulation = workload.accumulation,
                 .global_sequences = workload.micro * workload.accumulation * workload.ranks,
                 .sequence_length = workload.sequence_length};
    const Pricer pricer(workload.model, cluster, priced, {.sequence_length = workload.sequence_length});
    prices.push_back({&check, pricer.price(run.layout, run.batch).step_seconds(), engine_memory(run, 0).total()});
  }
  return prices;
}

std::vector<double> time_misfit(const std::vector<PricedCheck>& prices) {
  std::vector<double> rows;
  rows.reserve(prices.size());
  for (const PricedCheck& priced : prices) rows.push_back(std::log(priced.check->measured_seconds / priced.seconds));
  return rows;
}

std::vector<double> memory_misfit(const std::vector<PricedCheck>& prices) {
  std::vector<double> rows;
  for (const auto& [check, seconds, bytes] : prices) {
    if (check->peak_bytes > 0) rows.push_back(std::log(check->peak_bytes / bytes));
  }
  return rows;
}

// Without the workloads of its checks a profile still has what its tables said of them.
Scatter scatter_of_tables(const Profile& profile) {
  spec::Model transformer;
  const Correction correction = correction_of(profile, transformer);
  if (correction.checks == 0) return {0, kUnmeasuredTimeSigma};
  return {std::log(correction.factor), correction.half_width / kNinetyPercent};
}

double best_bus_bandwidth(const Profile& profile) {
  double best = 0;
  for (const CollectivePoint& point : profile.collectives) {
    if (point.ranks < 2 || point.op != CollectiveOp::kAllReduce) continue;
    const double n = static_cast<double>(point.ranks);
    best = std::max(best, 2 * (n - 1) / n * static_cast<double>(point.bytes) / point.seconds);
  }
  return best;
}

}  // namespace

double operators_per_layer() {
  double operators = 0;
  for (const Operator& op : list_operators(usual_layer(spec::Arch::kGpt, 256), 1, 1)) operators += count_in_layer(op);
  return operators;
}

spec::Cluster with_measured_speeds(spec::Cluster cluster, const Profile& profile) {
  for (spec::NodeGroup& node : cluster.groups) {
    if (!node.device.is_cpu() || profile.matmuls.empty()) continue;
    if (node.device.peak_bf16_flops <= 0) node.device.peak_bf16_flops = profile.peak_flops;
    if (node.device.peak_fp32_flops <= 0) node.device.peak_fp32_flops = profile.peak_flops;
    if (node.device.memory_bytes_per_second <= 0) {
      node.device.memory_bytes_per_second = profile.memory_bytes_per_second / kStreamEfficiency;
    }
    if (node.intra.bytes_per_second <= 0) node.intra.bytes_per_second = best_bus_bandwidth(profile);
    if (node.devices_per_node > 1 && node.intra.bytes_per_second <= 0) {
      throw environment_error(
          fmt::format("profile {} has no collectives for {} ranks", profile.identity(), node.devices_per_node),
          fmt::format("measure with `lockstep calibrate --ranks {}`", node.devices_per_node));
    }
    if (node.nodes > 1 && node.nic.bytes_per_second <= 0) {
      throw bad_input(fmt::format("cluster {}: nothing is known of the network between its nodes", cluster.name),
                      "give nic in a cluster file, or plan for one node");
    }
  }
  return cluster;
}

Constants constants_from_tables(const Profile& profile, const spec::NodeGroup& node) {
  const Precision precision = main_precision(profile);
  Constants constants;
  fit_products(constants, profile, node.device, precision);
  fit_fp8(constants, profile, node.device);
  fit_attention(constants, profile, node.device, precision);
  fit_pointwise(constants, profile, node.device, precision);
  fit_loss(constants, profile, node.device, precision);
  fit_host(constants, profile);
  fit_optimizer(constants, profile, node.device, precision);
  fit_links(constants, profile, node);
  return constants;
}

Fitted fitted_from_tables(const Profile& profile, const spec::NodeGroup& node) {
  Fitted fitted;
  fitted.hardware = node.device.kind;
  fitted.stack = "lockstep";
  fitted.runs = static_cast<std::int64_t>(profile.checks.size());
  fitted.facts = lockstep_facts();
  fitted.constants = constants_from_tables(profile, node);
  const std::vector<double> misfit = time_misfit(price_checks(profile, fitted.constants, node));
  const Scatter time = misfit.empty() ? scatter_of_tables(profile) : scatter_of(misfit);
  slow_down(fitted.constants, std::exp(time.mean), !profile.collectives.empty());
  fitted.residuals.time = std::max(kSmallestSigma, time.sigma);
  fitted.residuals.memory = kUnmeasuredMemorySigma;
  const std::vector<double> memory = memory_misfit(price_checks(profile, fitted.constants, node));
  if (!memory.empty()) {
    const Scatter left = scatter_of(memory);
    fitted.residuals.memory = std::max(kSmallestSigma, std::hypot(left.mean, left.sigma));
  }
  return fitted;
}

}  // namespace lockstep::cost
