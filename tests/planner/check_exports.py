"""`lockstep plan --export` read by the frameworks that it is for: their own parsers say whether every key is theirs and the figures agree.

usage: check_exports.py LOCKSTEP        (a python with torch, transformers, deepspeed, megatron-core, megatron-bridge, torchtitan)
"""

import ast
import importlib.metadata
import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

LOCKSTEP = sys.argv[1]
TINY = """arch: llama
layers: 2
hidden: 64
heads: 4
ffn_hidden: 128
vocab: 256
max_sequence: 64
"""


def export(kind, folder, *question):
    """The files of one export, and the plan's JSON."""
    command = [LOCKSTEP, "plan", *question, "--export", kind, "-o", str(folder), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"{shlex.join(command)}: {done.stderr}"
    return json.loads(done.stdout)["best"]


def check_deepspeed(folder):
    from deepspeed import comm
    from deepspeed.runtime.config import DeepSpeedConfig

    comm.get_rank = lambda group=None: 0  # where ranks are not joined it takes the world for one, whatever mpu says
    best = export("deepspeed", folder, "--model", "llama2-7b", "--cluster", "1x8xA100", "--stack", "deepspeed")

    class Ranks:
        @staticmethod
        def get_data_parallel_world_size():
            return best["layout"]["dp"] * best["layout"]["shard"]

    config = DeepSpeedConfig(str(folder / "ds_config.json"), mpu=Ranks())
    assert config.zero_config.stage == best["layout"]["zero"], config.zero_config.stage
    assert config.train_micro_batch_size_per_gpu == best["batch"]["micro"]
    assert config.gradient_accumulation_steps == best["batch"]["accumulation"]
    assert config.train_batch_size == best["batch"]["global_sequences"]
    assert not config.zero_config.model_extra, config.zero_config.model_extra


def shell_flags(text):
    """{flag: value} of the arrays of megatron.sh."""
    flags = {}
    for line in text.splitlines():
        if line.startswith("  --") and "=" not in line:
            name, _, value = line.strip().partition(" ")
            flags[name] = value or True
    return flags


def check_megatron(folder):
    import torch
    from megatron.core.distributed import DistributedDataParallelConfig
    from megatron.core.transformer.transformer_config import TransformerConfig

    layout = "pp=2,dp=2,shard=4,zero=1,tp=8,sequence_parallel=true,recompute=full,virtual_stages=5,schedule=interleaved"
    question = ["--model", "llama2-70b", "--cluster", "16x8xH100", "--stack", "megatron", "--layout", layout]
    best = export("megatron", folder, *question)
    flags = shell_flags((folder / "megatron.sh").read_text())
    number = lambda name: int(flags.pop(name))
    config = TransformerConfig(
        num_layers=number("--num-layers"),
        hidden_size=number("--hidden-size"),
        ffn_hidden_size=number("--ffn-hidden-size"),
        num_attention_heads=number("--num-attention-heads"),
        num_query_groups=number("--num-query-groups"),
        kv_channels=number("--kv-channels"),
        tensor_model_parallel_size=number("--tensor-model-parallel-size"),
        pipeline_model_parallel_size=number("--pipeline-model-parallel-size"),
        virtual_pipeline_model_parallel_size=80 // 2 // number("--num-layers-per-virtual-pipeline-stage"),
        context_parallel_size=number("--context-parallel-size"),
        sequence_parallel=flags.pop("--sequence-parallel"),
        recompute_granularity=flags.pop("--recompute-granularity"),
        recompute_method=flags.pop("--recompute-method"),
        recompute_num_layers=number("--recompute-num-layers"),
        normalization=flags.pop("--normalization"),
        gated_linear_unit=flags.pop("--swiglu"),
        add_bias_linear=not flags.pop("--disable-bias-linear"),
        bf16=flags.pop("--bf16"),
        params_dtype=torch.bfloat16,
        pipeline_dtype=torch.bfloat16,
    )
    DistributedDataParallelConfig(
        use_distributed_optimizer=flags.pop("--use-distributed-optimizer"),
        overlap_grad_reduce=flags.pop("--overlap-grad-reduce"),
        overlap_param_gather=flags.pop("--overlap-param-gather"),
        num_distributed_optimizer_instances=number("--num-distributed-optimizer-instances"),
    )
    assert config.virtual_pipeline_model_parallel_size == best["layout"]["virtual_stages"]
    assert number("--micro-batch-size") == best["batch"]["micro"]
    assert number("--global-batch-size") == best["batch"]["global_sequences"]
    known = {
        "--seq-length", "--max-position-embeddings", "--group-query-attention", "--position-embedding-type", "--rotary-base",
        "--rotary-percent", "--untie-embeddings-and-output-weights", "--train-iters",
    }  # of pretrain_gpt.py alone  # fmt: skip
    assert set(flags) <= known, set(flags) - known


def fields_of(package, file, name):
    """Fields of a dataclass in a source file, those of its bases in the file included; nothing is imported."""
    path = next(f for f in importlib.metadata.files(package) if str(f).endswith(file)).locate()
    classes = {node.name: node for node in ast.parse(Path(path).read_text()).body if isinstance(node, ast.ClassDef)}
    names = {part.target.id for part in classes[name].body if isinstance(part, ast.AnnAssign)}
    for base in classes[name].bases:
        if isinstance(base, ast.Name) and base.id in classes:
            names |= fields_of(package, file, base.id)
    return names


def check_nemo(folder):
    best = export("nemo", folder, "--model", "llama2-70b", "--cluster", "8x8xH100", "--stack", "nemo")
    sections, section = {}, None
    for line in (folder / "nemo.yaml").read_text().splitlines():
        if line.startswith("#"):
            continue
        key, _, value = line.partition(":")
        if not line.startswith(" "):
            section = sections.setdefault(key, {})
        else:
            section[key.strip()] = value.strip()
    bridge = fields_of("megatron-bridge", "training/config.py", "ConfigContainer")
    assert set(sections) <= bridge, set(sections) - bridge
    train = fields_of("megatron-bridge", "training/config.py", "TrainingConfig")
    assert set(sections["train"]) <= train, set(sections["train"]) - train
    model = fields_of("megatron-core", "core/transformer/transformer_config.py", "TransformerConfig")
    model |= fields_of("megatron-core", "core/model_parallel_config.py", "ModelParallelConfig")
    model |= fields_of("megatron-bridge", "models/gpt_provider.py", "GPTModelProvider")
    assert set(sections["model"]) <= model, set(sections["model"]) - model
    ddp = fields_of("megatron-core", "core/distributed/distributed_data_parallel_config.py", "DistributedDataParallelConfig")
    assert set(sections["ddp"]) <= ddp, set(sections["ddp"]) - ddp
    assert int(sections["model"]["tensor_model_parallel_size"]) == best["layout"]["tp"]
    assert int(sections["train"]["global_batch_size"]) == best["batch"]["global_sequences"]


def check_torchtitan(folder):
    best = export("torchtitan", folder, "--model", "llama3-8b", "--cluster", "2x8xH100", "--stack", "torchtitan",
                  "--layout", "dp=2,shard=4,zero=3,tp=2,sequence_parallel=true,recompute=full")  # fmt: skip
    sys.path.insert(0, str(folder))
    from torchtitan.config import ConfigManager

    config = ConfigManager().parse_args(["--module", "torchtitan_plan", "--config", "plan"])
    assert config.parallelism.data_parallel_replicate_degree == best["layout"]["dp"]
    assert config.parallelism.data_parallel_shard_degree == best["layout"]["shard"]
    assert config.parallelism.tensor_parallel_degree == best["layout"]["tp"]
    assert config.training.local_batch_size == best["batch"]["micro"]
    assert config.training.global_batch_size == best["batch"]["global_sequences"]
    assert type(config.activation_checkpoint).__qualname__ == "FullAC.Config", config.activation_checkpoint


def check_torchrun(folder):
    (folder / "tiny.yaml").write_text(TINY)
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 256, "max_position_embeddings": 64,
    }))  # fmt: skip
    for layout in ("shard=2,zero=3,recompute=full", "dp=2"):
        export("torchrun", folder, "--model", str(folder / "tiny.yaml"), "--cluster", "1x2xA100", "--stack",
               "ddp" if layout == "dp=2" else "fsdp", "--layout", layout, "--global-batch", "8", "--micro", "2",
               "--seq", "32")  # fmt: skip
        environment = os.environ | {"MODEL": str(folder), "STEPS": "2", "OMP_NUM_THREADS": "1", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        done = subprocess.run(["bash", str(folder / "run.sh")], capture_output=True, text=True, timeout=240, env=environment)
        assert done.returncode == 0 and "step 2 loss" in done.stdout, done.stdout + done.stderr[-3000:]


def main():
    failed = []
    for check in (check_deepspeed, check_megatron, check_nemo, check_torchtitan, check_torchrun):
        with tempfile.TemporaryDirectory() as folder:
            try:
                check(Path(folder))
                print(f"{check.__name__}: reads", flush=True)
            except Exception as error:  # one framework says nothing about the next
                failed.append(check.__name__)
                print(f"{check.__name__}: {type(error).__name__}: {error}", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
