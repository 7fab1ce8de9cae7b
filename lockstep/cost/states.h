// Bytes of weights, gradients and optimizer state on one rank (Rajbhandari et al. 2020, ZeRO, figure 1). Pure
// functions.
#pragma once

#include <algorithm>
#include <cstdint>

#include "lockstep/base/units.h"
#include "lockstep/cost/profile/constants.h"
#include "lockstep/plan/layout.h"

namespace lockstep::cost {

// Bytes per parameter before sharding.
struct ParameterBytes {
  double weight = 0;
  double gradient = 0;
  double optimizer = 0;  // moments, and the fp32 master copy where weights are narrower
};

inline bool is_narrow(spec::Precision precision) {
  return precision == spec::Precision::kFp16 || precision == spec::Precision::kBf16 ||
         precision == spec::Precision::kFp8;
}

// fp8 is a format of products: weights and activations are kept in 16 bits (Micikevicius et al. 2022).
inline double element_bytes(spec::Precision precision) {
  return precision == spec::Precision::kFp8 ? 2.0 : static_cast<double>(plan::bytes_per_element(precision));
}

// `narrow_moments`: those of AdamW are bf16, as the fused step of one GPU keeps them where a job says so.
inline ParameterBytes parameter_bytes(spec::Precision precision, spec::OptimizerKind optimizer, const StackFacts& facts,
                                      bool narrow_moments = false) {
  const double element = element_bytes(precision);
  const bool narrow = is_narrow(precision);
  const double wide = narrow ? 4.0 : element;
  const double moments = (optimizer == spec::OptimizerKind::kAdamW ? 2 : 1) * (narrow_moments ? 2.0 : wide);
  const double master = narrow && facts.master_copy ? wide - (facts.keeps_narrow_weights ? 0.0 : element) : 0.0;
  const double frozen = narrow ? std::min(element, facts.frozen_weight_bytes) : element;
  const double copies = precision == spec::Precision::kFp8 ? facts.fp8_copy_bytes : 0.0;
  return {.weight = facts.trained_share * element + (1 - facts.trained_share) * frozen + copies,
          .gradient = facts.trained_share * (narrow ? facts.kept_gradient_bytes : element),
          .optimizer = facts.trained_share * (moments + master)};
}

// Bytes that one optimizer update reads and writes per parameter (fp32 AdamW: reads w, g, m, v and writes w, m, v: 28):
// gradient, weight and moments, and the narrow copy of the weight where there is one.
inline double optimizer_bytes_per_parameter(spec::Precision precision, spec::OptimizerKind optimizer) {
  const double wide = is_narrow(precision) ? 4.0 : element_bytes(precision);
  const double moments = optimizer == spec::OptimizerKind::kAdamW ? 2.0 : 1.0;
  return wide * (1 + 2 * (1 + moments)) + (is_narrow(precision) ? element_bytes(precision) : 0.0);
}

// Ranks over which ZeRO divides the state of dense weights, and of experts (which ep has divided already).
inline double dense_shards(const plan::Layout& layout) {
  return layout.zero > 0 ? static_cast<double>(layout.sharding_ranks()) : 1.0;
}
inline double expert_shards(const plan::Layout& layout) {
  return layout.zero > 0 ? std::max(1.0, static_cast<double>(layout.sharding_ranks()) / static_cast<double>(layout.ep))
                         : 1.0;
}

struct StateBytesOnRank {
  Bytes parameters;
  Bytes gradients;
  Bytes optimizer;
};

// Gradients are divided where each micro-batch scatters its own; a stack that reduces once holds them whole until then.
inline bool divides_gradients(const plan::Layout& layout, const StackFacts& facts, std::int64_t accumulation) {
  return layout.zero >= 2 && (accumulation == 1 || facts.reduces_each_micro_batch);
}

// `parameters` local weights (after tp, pp, ep) under ZeRO over `shards` ranks: stage 1 divides the optimizer, 2 the
// gradients, 3 the weights. Offload moves the optimizer (and with kParameters the weights) to host memory.
inline StateBytesOnRank state_on_rank(double parameters, double shards, const plan::Layout& layout,
                                      const ParameterBytes& bytes, bool divides_gradients) {
  const double weight_shards = layout.zero >= 3 ? shards : 1.0;
  const double gradient_shards = divides_gradients ? shards : 1.0;
  const double optimizer_shards = layout.zero >= 1 ? shards : 1.0;
  const bool optimizer_away = layout.offload != plan::Offload::kNone;
  const bool weights_away = layout.offload == plan::Offload::kParameters;
  return {.parameters = Bytes(weights_away ? 0.0 : parameters * bytes.weight / weight_shards),
          .gradients = Bytes(parameters * bytes.gradient / gradient_shards),
          .optimizer = Bytes(optimizer_away ? 0.0 : parameters * bytes.optimizer / optimizer_shards)};
}

}  // namespace lockstep::cost
