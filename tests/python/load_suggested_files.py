"""Files of `lockstep suggest` read by the tools they are for: DeepSpeed's and Accelerate's own loaders.

Usage: PYTHON load_suggested_files.py LOCKSTEP, with a python that has torch, deepspeed and accelerate."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

os.environ.setdefault("DS_ACCELERATOR", "cpu")
import accelerate  # noqa: E402
import deepspeed  # noqa: E402
from accelerate.commands.config.config_args import load_config_from_file  # noqa: E402
from accelerate.commands.launch import _validate_launch_command, launch_command_parser  # noqa: E402
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin  # noqa: E402
from accelerate.utils.launch import prepare_multi_gpu_env  # noqa: E402
from deepspeed.runtime.config import DeepSpeedConfig  # noqa: E402
from deepspeed.runtime.lr_schedules import WarmupDecayLR  # noqa: E402
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig  # noqa: E402

LOCKSTEP = sys.argv[1]
deepspeed.comm.get_rank = lambda group=None: 0  # no process group here: the ranks come from Ranks below
QUESTIONS = [
    ["--params", "7B", "--gpus", "8", "--dataset-tokens", "1B"],
    ["--params", "1.1B", "--gpus", "8", "--dataset-tokens", "30B"],
    ["--params", "13B", "--gpus", "32", "--gpu", "A100", "--dataset-tokens", "100M"],
    ["--params", "7B", "--gpus", "8", "--gpu", "A10G", "--dataset-tokens", "1B"],
    ["--params", "1.1B", "--gpus", "512", "--dataset-tokens", "100B"],  # sharded within nodes, replicated between them
    ["--params", "124M", "--gpus", "1", "--dataset-tokens", "1B"],
    ["--params", "1.1B", "--gpus", "4", "--gpu", "V100", "--dataset-tokens", "100M"],
]


def suggest(folder: pathlib.Path, question: list[str], stack: str, file: str) -> dict:
    done = subprocess.run([LOCKSTEP, "suggest", *question, "--no-studies", "--stack", stack, "--write",
                           str(folder / file), "--json"], capture_output=True, text=True, timeout=60, check=True)
    return json.loads(done.stdout)


class Ranks:
    """What DeepSpeedConfig asks a launcher for."""

    def __init__(self, count: int):
        self.count = count

    def get_data_parallel_world_size(self) -> int:
        return self.count


def check_deepspeed(folder: pathlib.Path, question: list[str]) -> None:
    answer = suggest(folder, question, "deepspeed", "ds.json")
    raw = json.loads((folder / "ds.json").read_text())
    # An unknown key of a section is an error of its model; of the top level it would pass in silence.
    known = {"train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping",
             "bf16", "fp16", "zero_optimization", "optimizer", "scheduler", "activation_checkpointing",
             "steps_per_print", "wall_clock_breakdown"}
    assert set(raw) <= known, set(raw) - known
    config = DeepSpeedConfig(str(folder / "ds.json"), mpu=Ranks(answer["cluster"]["gpus"]))
    assert config.train_batch_size == answer["batch"]["global_sequences"]
    assert config.train_micro_batch_size_per_gpu == answer["batch"]["micro"]
    assert config.gradient_accumulation_steps == answer["batch"]["accumulation"]
    assert int(config.zero_config.stage) == answer["layout"]["zero"]
    fields = DeepSpeedZeroConfig.model_fields
    names = set(fields) | {field.alias for field in fields.values()}
    assert set(raw["zero_optimization"]) <= names, raw["zero_optimization"]
    offloaded = config.zero_config.offload_optimizer is not None
    assert offloaded == (answer["layout"]["offload"] != "none")
    import torch

    optimizer = torch.optim.AdamW([torch.zeros(1, requires_grad=True)],
                                  **{k: v for k, v in raw["optimizer"]["params"].items()})
    WarmupDecayLR(optimizer, **raw["scheduler"]["params"])


def check_accelerate(folder: pathlib.Path, question: list[str]) -> bool:
    """Whether the layout was a hybrid of sharding and replication."""
    answer = suggest(folder, question, "accelerate", "accelerate.yaml")
    path = str(folder / "accelerate.yaml")
    config = load_config_from_file(path)  # refuses unknown keys
    assert config.num_processes == answer["cluster"]["gpus"]
    assert config.num_machines == answer["cluster"]["nodes"]
    assert config.mixed_precision == answer["precision"]
    zero = answer["layout"]["zero"]
    wanted = DistributedType.FSDP if zero else DistributedType.MULTI_GPU
    if config.num_processes > 1:
        assert config.distributed_type == wanted, config.distributed_type
    if not zero:
        return False
    # What `accelerate launch` would hand to the script, read by the plugin that the script makes.
    arguments = launch_command_parser().parse_args(["--config_file", path, "train.py"])
    arguments, _, _ = _validate_launch_command(arguments)
    environment = prepare_multi_gpu_env(arguments)
    before = dict(os.environ)
    os.environ.update({key: value for key, value in environment.items() if key.startswith(("FSDP", "ACCELERATE"))})
    # Broadcasting the first rank's weights asks for a GPU when the plugin is made; this machine has none.
    os.environ.update({"FSDP_SYNC_MODULE_STATES": "false", "FSDP_CPU_RAM_EFFICIENT_LOADING": "false"})
    try:
        plugin = FullyShardedDataParallelPlugin()
    finally:
        os.environ.clear()
        os.environ.update(before)
    hybrid = answer["layout"]["dp"] > 1
    if hybrid:
        assert "HYBRID" in str(plugin.sharding_strategy), plugin.sharding_strategy
    else:
        assert plugin.reshard_after_forward == (zero == 3), plugin.reshard_after_forward
    assert plugin.activation_checkpointing == (answer["recompute"] == "full")
    return hybrid


def main() -> int:
    hybrid = 0
    for question in QUESTIONS:
        with tempfile.TemporaryDirectory() as name:
            check_deepspeed(pathlib.Path(name), question)
            hybrid += check_accelerate(pathlib.Path(name), question)
        print("loads:", " ".join(question))
    assert hybrid > 0, "no question was answered with hybrid sharding"
    print(f"deepspeed {deepspeed.__version__}, accelerate {accelerate.__version__}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
