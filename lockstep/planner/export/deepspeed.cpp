// DeepSpeed's ds_config.json (deepspeed.ai, "DeepSpeed Configuration JSON").
#include <nlohmann/json.hpp>

#include "lockstep/planner/export/deepspeed.h"
#include "lockstep/planner/export/export.h"

namespace lockstep::planner {

nlohmann::ordered_json deepspeed_core(const plan::Layout& layout, const plan::BatchPlan& batch) {
  using nlohmann::ordered_json;
  ordered_json config;
  config["train_batch_size"] = batch.global_sequences;
  config["train_micro_batch_size_per_gpu"] = batch.micro;
  config["gradient_accumulation_steps"] = batch.accumulation;
  config["gradient_clipping"] = 1.0;
  if (layout.precision == spec::Precision::kBf16) config["bf16"] = {{"enabled", true}};
  if (layout.precision == spec::Precision::kFp16) config["fp16"] = {{"enabled", true}};
  ordered_json zero;
  zero["stage"] = layout.zero;
  if (layout.zero > 0) {
    zero["overlap_comm"] = true;
    zero["contiguous_gradients"] = true;
  }
  if (layout.zero == 3) zero["stage3_gather_16bit_weights_on_model_save"] = true;
  if (layout.offload != plan::Offload::kNone) zero["offload_optimizer"] = {{"device", "cpu"}, {"pin_memory", true}};
  if (layout.offload == plan::Offload::kParameters) zero["offload_param"] = {{"device", "cpu"}, {"pin_memory", true}};
  config["zero_optimization"] = std::move(zero);
  // Says how; the model itself switches recomputation on (gradient_checkpointing_enable() of transformers).
  if (layout.recompute == plan::Recompute::kFull) {
    config["activation_checkpointing"] = {{"partition_activations", false}, {"cpu_checkpointing", false}};
  }
  config["steps_per_print"] = 10;
  config["wall_clock_breakdown"] = false;
  return config;
}

std::string export_deepspeed(const SearchRequest& /*request*/, const plan::Candidate& plan) {
  return deepspeed_core(plan.layout, plan.batch).dump(2) + "\n";
}

}  // namespace lockstep::planner
