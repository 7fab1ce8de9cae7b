// PyTorch alone: torchrun with fully_shard or DDP on a model of transformers, and torchtitan's configuration.
#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/planner/export/export.h"

namespace lockstep::planner {
namespace {

// The training loop. Names in capitals are set by the lines before it.
constexpr const char* kLoop = R"PY(
import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoConfig, AutoModelForCausalLM


def batches(vocabulary):  # yours: an iterator of [MICRO, SEQUENCE + 1] token ids, another one on every rank
    while True:
        yield torch.randint(vocabulary, (MICRO, SEQUENCE + 1))


def main():
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    mesh = init_device_mesh(device.type, (REPLICAS, SHARDS), mesh_dim_names=("replicate", "shard"))
    config = AutoConfig.from_pretrained(os.environ["MODEL"])
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    if RECOMPUTE:
        model.gradient_checkpointing_enable()
    if ZERO == 0:
        model = DistributedDataParallel(model.to(device, DTYPE))
    else:
        policy = MixedPrecisionPolicy(param_dtype=DTYPE, reduce_dtype=torch.float32)
        options = dict(
            mesh=mesh if REPLICAS > 1 else mesh["shard"],
            mp_policy=policy,
            reshard_after_forward=ZERO == 3,
            offload_policy=CPUOffloadPolicy() if OFFLOAD else OffloadPolicy(),
        )
        for layer in next(m for m in model.modules() if isinstance(m, torch.nn.ModuleList)):
            fully_shard(layer, **options)
        fully_shard(model, **options)
        if not OFFLOAD:
            model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=float(os.environ.get("LR", "3e-4")), betas=(0.9, 0.95))
    data = batches(config.vocab_size)
    for step in range(int(os.environ.get("STEPS", STEPS))):
        total = 0.0
        for micro_step in range(ACCUMULATION):
            last = micro_step == ACCUMULATION - 1
            if ZERO == 0:
                model.require_backward_grad_sync = last
            tokens = next(data).to(device)
            logits = model(input_ids=tokens[:, :-1]).logits
            loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
            (loss / ACCUMULATION).backward()
            total += loss.item() / ACCUMULATION
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            print(f"step {step + 1} loss {total:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
)PY";

const char* truth(bool value) { return value ? "True" : "False"; }

const char* dtype_of(spec::Precision precision) {
  if (precision == spec::Precision::kFp16) return "torch.float16";
  return precision == spec::Precision::kFp32 ? "torch.float32" : "torch.bfloat16";
}

// The name of a configuration in torchtitan's registry, or "" where there is none of the model.
struct TitanModel {
  const char* model;  // of our presets
  const char* module;
  const char* base;
};
constexpr std::array<TitanModel, 3> kTitanModels{{{"llama3-8b", "llama3", "llama3_8b"},
                                                  {"llama3-70b", "llama3", "llama3_70b"},
                                                  {"llama3-405b", "llama3", "llama3_405b"}}};

const TitanModel& titan_model(const spec::Model& model) {
  const auto found = std::find_if(kTitanModels.begin(), kTitanModels.end(),
                                  [&](const TitanModel& each) { return model.name == each.model; });
  if (found != kTitanModels.end()) return *found;
  throw UserError(
      ExitCode::kAnswerIsNo, fmt::format("torchtitan's registry has no configuration of {}", printable(model.name)),
      "it has llama3-8b, llama3-70b and llama3-405b among ours; for others write one and take the layout from "
      "the plan");
}

std::string titan_schedule(const plan::Layout& layout) {
  switch (layout.schedule) {
    case plan::Schedule::kGpipe:
      return "GPipe";
    case plan::Schedule::kInterleaved:
      return "Interleaved1F1B";
    case plan::Schedule::kZeroBubble:
      return layout.virtual_stages > 1 ? "ZBVZeroBubble" : "InterleavedZeroBubble";
    case plan::Schedule::kNone:
    case plan::Schedule::kOneForwardOneBackward:
      break;
  }
  return "1F1B";
}

}  // namespace

std::vector<ExportedFile> export_torchrun(const SearchRequest& request, const plan::Candidate& plan) {
  if (!request.model.is_language_model() || request.model.arch == spec::Arch::kBert) {
    throw UserError(ExitCode::kAnswerIsNo, "the script is of language models that predict the next token",
                    "export the plan as a job file");
  }
  const plan::Layout& layout = plan.layout;
  const std::int64_t steps = steps_of(request, plan);
  std::string train = plan_summary(request, plan, "#");
  train +=
      "# MODEL: folder or name of a model of transformers. Random tokens until `batches` is yours.\nimport torch\n\n";
  train += fmt::format(
      "REPLICAS, SHARDS, ZERO = {}, {}, {}\nMICRO, ACCUMULATION, SEQUENCE = {}, {}, {}\nDTYPE = {}\nRECOMPUTE, OFFLOAD "
      "= "
      "{}, {}\nSTEPS = {}\n",
      layout.dp, layout.shard, layout.zero, plan.batch.micro, plan.batch.accumulation, plan.batch.sequence_length,
      dtype_of(layout.precision), truth(layout.recompute == plan::Recompute::kFull),
      truth(layout.offload != plan::Offload::kNone), steps > 0 ? steps : 100);
  train += kLoop;
  std::string run = "#!/usr/bin/env bash\n" + plan_summary(request, plan, "#");
  run += fmt::format(
      "set -euo pipefail\nexport MODEL=\"${{MODEL:?folder or name of a model of transformers}}\"\n\n{} \\\n"
      "  \"$(dirname \"$0\")/train_fsdp2.py\" \"$@\"\n",
      torchrun_command(request.cluster));
  return {{.name = "run.sh", .text = run, .executable = true}, {.name = "train_fsdp2.py", .text = train}};
}

std::string export_torchtitan(const SearchRequest& request, const plan::Candidate& plan) {
  const plan::Layout& layout = plan.layout;
  const TitanModel& model = titan_model(request.model);
  const bool sharded = layout.zero > 0;
  std::string text = plan_summary(request, plan, "#");
  text += "# torchtitan 0.3: torchrun ... -m torchtitan.train --module torchtitan_plan --config plan\n";
  text += fmt::format(
      "from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC\n"
      "from torchtitan.models.{}.config_registry import {} as base\n\n\n",
      model.module, model.base);
  text += "def plan():\n    config = base()\n";
  const auto set = [&](const std::string& key, const auto& value) {
    text += fmt::format("    config.{} = {}\n", key, value);
  };
  set("training.local_batch_size", plan.batch.micro * (layout.pp > 1 ? plan.batch.accumulation : 1));
  set("training.global_batch_size", plan.batch.global_sequences);
  set("training.seq_len", plan.batch.sequence_length);
  if (const std::int64_t steps = steps_of(request, plan); steps > 0) set("training.steps", steps);
  if (layout.offload != plan::Offload::kNone) set("training.enable_cpu_offload", "True");
  set("parallelism.data_parallel_replicate_degree", sharded ? layout.dp : layout.data_ranks());
  set("parallelism.data_parallel_shard_degree", sharded ? layout.shard : 1);
  if (sharded) set("parallelism.fsdp_reshard_after_forward", layout.zero == 3 ? "\"always\"" : "\"never\"");
  set("parallelism.tensor_parallel_degree", layout.tp);
  set("parallelism.context_parallel_degree", layout.cp);
  set("parallelism.expert_parallel_degree", layout.ep);
  set("parallelism.pipeline_parallel_degree", layout.pp);
  if (layout.pp > 1) {
    set("parallelism.pipeline_parallel_schedule", fmt::format("\"{}\"", titan_schedule(layout)));
    set("parallelism.pipeline_parallel_microbatch_size", plan.batch.micro);
  }
  const bool full = layout.recompute == plan::Recompute::kFull;
  set("activation_checkpoint", layout.recompute == plan::Recompute::kNone ? "None"
                               : full                                     ? "FullAC.Config()"
                                                                          : "SelectiveAC.Config()");
  return text + "    return config\n";
}

}  // namespace lockstep::planner
