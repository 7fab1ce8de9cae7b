// Profile: what one (hardware, software stack, version) really reaches, measured by `lockstep calibrate` or fitted from
// published rows, with its provenance. Values only; file format `lockstep.profile/1`. Every rate is per rank, measured
// while all ranks of the node did the same, so that four ranks on two cores are priced as four ranks on two cores.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "lockstep/cost/fused/profile.h"
#include "lockstep/cost/profile/constants.h"
#include "lockstep/cost/profile/stalls.h"
#include "lockstep/spec/job.h"

namespace lockstep::cost {

// The products of one linear layer Y[m,n] = X[m,k] W[n,k]^T: forward, gradient of the input (dY W), gradient of the
// weight (dY^T X). Convolutions are the same product with m = batch x output pixels, n = output channels,
// k = input channels x kernel area, in tables of their own; kConvolutionBackward is both gradients together.
enum class MatmulKind { kForward, kInputGradient, kWeightGradient, kConvolutionForward, kConvolutionBackward };

struct MatmulPoint {
  MatmulKind kind = MatmulKind::kForward;
  spec::Precision precision = spec::Precision::kFp32;
  std::int64_t m = 0, n = 0, k = 0;  // of the layer, as above, for every kind
  double flops_per_second = 0;
  double spread = 0;  // relative: half the distance of the quartiles of the repetitions over their median
};

// Softmax(Q K^T) V over `heads` = batch x query heads.
struct AttentionPoint {
  spec::Precision precision = spec::Precision::kFp32;
  bool causal = true;
  std::int64_t heads = 0, sequence = 0, head_dim = 0;
  double forward_seconds = 0;
  double backward_seconds = 0;
  double spread = 0;
};

// Operators that are not matrix products. Elements = elements of the output (embedding, loss: of the [tokens, width]
// tensor).
enum class PointwiseKernel {
  kAdd,
  kGelu,
  kSilu,
  kRelu,
  kMultiply,
  kLayerNorm,
  kRmsNorm,
  kBatchNorm,
  kRotary,
  kDropout,
  kEmbedding,
  kCrossEntropy,
  kMaxPool,
  kAveragePool,
  kResidualAdd  // a transformer's residual: stacks that fuse it into the product before it measure a forward of 0
};

struct PointwisePoint {
  PointwiseKernel kernel = PointwiseKernel::kAdd;
  spec::Precision precision = spec::Precision::kFp32;
  std::int64_t elements = 0;
  double forward_seconds = 0;
  double backward_seconds = 0;
  double spread = 0;
};

enum class CollectiveOp { kAllReduce, kReduceScatter, kAllGather, kBroadcast, kAllToAll, kSendReceive };

struct CollectivePoint {
  CollectiveOp op = CollectiveOp::kAllReduce;
  std::int64_t ranks = 0;
  std::int64_t bytes = 0;  // of the whole message: the reduced buffer, the gathered result
  double seconds = 0;
  double spread = 0;
};

enum class CheckFamily { kTransformer, kImage };

// The training step behind a check: data parallel over `ranks`.
struct CheckWorkload {
  spec::Model model;
  spec::Precision precision = spec::Precision::kFp32;
  std::int64_t ranks = 1;
  std::int64_t micro = 1, accumulation = 1;
  std::int64_t sequence_length = 0;  // 0: images
};

// A whole training step that was timed after the sweeps and priced from them: its residual is where the width of the
// intervals and the correction come from.
struct CalibrationCheck {
  std::string name;
  CheckFamily family = CheckFamily::kTransformer;
  double predicted_seconds = 0;  // from the tables alone, without correction
  double measured_seconds = 0;
  double spread = 0;
  double peak_bytes = 0;                  // allocated by the framework at the peak of the step; 0: not measured
  std::optional<CheckWorkload> workload;  // so that other formulas can be held against it; absent in older files
};

struct Provenance {
  std::string hardware;      // "2 x Intel Xeon ... (AVX-512)", "H100"
  std::string software;      // "libtorch 1.13.1, OpenBLAS 0.3.21, gloo"
  std::string version;       // of Lockstep
  std::string date;          // ISO 8601, UTC
  std::string method;        // "lockstep calibrate --quick", "fit of published rows ..."
  std::int64_t ranks = 1;    // that measured at the same time
  std::int64_t threads = 1;  // per rank
  std::int64_t cores = 0;    // they shared; 0: not a CPU profile
  std::string backend;       // communicator
  std::string observed;      // runs that moved it ("3 observed runs: a, b, c"); not in files
};

// What a fit over whole training runs found (validation/fit), or what calibration's tables amount to.
struct Fitted {
  std::string hardware;   // device kind it holds for: "H100"
  std::string stack;      // "nanotron-0.5", "megatron-deepspeed"; "generic": the mean of the stacks on that hardware
  std::int64_t runs = 0;  // that were fitted
  Constants constants;
  StackFacts facts;
  Residuals residuals;
  Stalls stalls;
  bool operator==(const Fitted&) const = default;
};

struct Profile {
  Provenance provenance;
  std::optional<Fitted> fitted;  // what the pricer reads; the tables below come from calibration alone
  // What prices the fused step of one GPU, where the model and the layout are ones it runs; absent: the general path.
  std::optional<FusedProfile> dense;
  double peak_flops = 0;  // best product seen (CPU) or the vendor's dense bf16 peak; the denominator of efficiency
  std::vector<MatmulPoint> matmuls;
  std::vector<AttentionPoint> attention;
  std::vector<PointwisePoint> pointwise;
  double memory_bytes_per_second = 0;     // streaming copy, bytes read + written
  double operator_seconds = 0;            // fixed cost of one forward operator (dispatch, allocation, autograd record)
  double backward_operator_seconds = 0;   // and of its backward
  double optimizer_bytes_per_second = 0;  // traffic of one AdamW update: see optimizer_bytes_per_parameter()
  std::vector<CollectivePoint> collectives;
  double overlap = 0;          // share of a collective that disappears behind compute: 0 (none) .. 1 (all)
  double framework_bytes = 0;  // resident bytes of a rank before it holds a model
  std::vector<CalibrationCheck> checks;

  // "hardware | software | ranks x threads | date": names the profile in plans and reports.
  std::string identity() const;
};

nlohmann::json to_json(const Profile& profile);

// Strict, as plan::read_plan: unknown or missing keys, wrong types, negative or non-finite rates are UserErrors with
// the JSON path.
Profile read_profile(const nlohmann::json& document, const std::string& name_for_errors);

// The profiles of specs/profiles, compiled in. Names are file stems: "H100", "H100-nanotron-0.5".
std::vector<std::string> profile_names();
// A name of profile_names() or a file. Throws UserError naming the nearest.
Profile find_profile(const std::string& name);
// Stacks that are built alike, as profiles name them ("peers-fsdp"): what an unknown one begins as; "" for one that
// nothing is known of.
std::string peers_of(const std::string& stack);
// The fitted profile for a device kind and a stack; without one for that stack that of its peers, else the hardware's
// generic one; without that either, the defaults of Constants with the widest residuals. Never fails.
Profile profile_for(const std::string& device_kind, const std::string& stack = "");
// The same for the kind most of a cluster's devices are.
Profile profile_for(const spec::Cluster& cluster);
// What prices each node group of a cluster, in the order of its groups: `fitted` those of its own hardware, others what
// profile_for() has of their kind and its stack. All of them `fitted` where it is of none of the kinds: it was meant.
std::vector<Fitted> fitted_by_group(const Fitted& fitted, const spec::Cluster& cluster);
// What prices this repository's own engine: on one device the profile it was measured with there, where there is one
// (one device says nothing about links); else profile_for(cluster).
Profile engine_profile_for(const spec::Cluster& cluster);

// Files; written atomically. A missing file is a UserError with exit code 4.
void save_profile(const Profile& profile, const std::string& path);
Profile load_profile(const std::string& path);

const char* to_string(MatmulKind kind);
const char* to_string(PointwiseKernel kernel);
const char* to_string(CollectiveOp op);

}  // namespace lockstep::cost
