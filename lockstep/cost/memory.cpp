#include "lockstep/cost/memory.h"

#include <algorithm>

#include "lockstep/base/units.h"
#include "lockstep/cost/data_parallel.h"
#include "lockstep/cost/flops.h"

namespace lockstep::cost {
namespace {

bool has_master_copy(spec::Precision precision) {
  return precision == spec::Precision::kFp16 || precision == spec::Precision::kBf16 ||
         precision == spec::Precision::kFp8;
}

// Elements of the largest gradient that backward holds while everything saved is still there.
double transient_elements(const std::vector<Operator>& operators) {
  std::int64_t largest = 0;
  for (const Operator& op : operators) {
    if (op.chunked) continue;
    switch (op.kind) {
      case OperatorKind::kMatmul:
      case OperatorKind::kConvolution:
        largest = std::max(largest, op.m * op.n);
        break;
      case OperatorKind::kAttention:
        largest = std::max(largest, op.heads * op.sequence * op.head_dim);
        break;
      case OperatorKind::kPointwise:
        largest = std::max(largest, op.elements);
        break;
    }
  }
  return static_cast<double>(largest);
}

}  // namespace

StateBytes state_bytes_per_parameter(spec::Precision precision, spec::OptimizerKind optimizer) {
  const double element = static_cast<double>(plan::bytes_per_element(precision));
  // The optimizer and the gradients it reads are never narrower than fp32.
  const double wide = has_master_copy(precision) ? 4.0 : element;
  const double states = optimizer == spec::OptimizerKind::kAdamW ? 2.0 : 1.0;
  return {
      .parameter = element, .gradient = wide, .optimizer = states * wide + (has_master_copy(precision) ? wide : 0.0)};
}

double optimizer_bytes_per_parameter(spec::Precision precision, spec::OptimizerKind optimizer) {
  const double wide = has_master_copy(precision) ? 4.0 : static_cast<double>(plan::bytes_per_element(precision));
  const double states = optimizer == spec::OptimizerKind::kAdamW ? 2.0 : 1.0;
  // Reads gradient, weight, states; writes weight, states; and the narrow copy of the weight where there is one.
  const double copy = has_master_copy(precision) ? static_cast<double>(plan::bytes_per_element(precision)) : 0.0;
  return wide * (1 + 2 * (1 + states)) + copy;
}

double activation_bytes(const spec::Model& model, std::int64_t samples, std::int64_t sequence,
                        spec::Precision precision) {
  const std::vector<Operator> operators = list_operators(model, samples, sequence);
  double elements = transient_elements(operators);
  for (const Operator& op : operators)
    elements += static_cast<double>(op.count) * static_cast<double>(op.saved_elements);
  return elements * static_cast<double>(plan::bytes_per_element(precision));
}

plan::MemoryBreakdown memory_of(const Workload& workload, const plan::Layout& layout, const Profile* profile) {
  require_data_parallel(layout);
  const double parameters = static_cast<double>(spec::parameter_count(workload.model));
  const StateBytes state = state_bytes_per_parameter(workload.precision, workload.optimizer);
  plan::MemoryBreakdown memory;
  memory.parameters = parameters * state.parameter;
  memory.gradients = workload.trained_share * parameters * state.gradient;
  memory.optimizer = workload.trained_share * parameters * state.optimizer;
  memory.activations =
      activation_bytes(workload.model, workload.batch.micro, workload.batch.sequence_length, workload.precision);
  // Gradients are reduced in place; the communicator stages one bucket at a time.
  memory.buffers = layout.world() > 1 ? std::min(workload.bucket_mib * kMiB, memory.gradients) : 0.0;
  memory.overhead = profile != nullptr ? profile->framework_bytes : 0.0;
  return memory;
}

}  // namespace lockstep::cost
