"""The command line: python3 -m lockstep.suggest --model-size 7B --gpus 8 --dataset-size "1B tokens"

The module can be called as the function of the same name, so that both of these work whoever imported what first:

>>> import lockstep.suggest
>>> lockstep.suggest(model_size="1.1B", gpus=1, dataset_size="20M tokens", studies=False).cluster.gpus
1
"""

from __future__ import annotations

import argparse
import json
import sys
import types
from pathlib import Path
from typing import Any, Optional, Sequence

from ._suggestion import Suggestion
from ._suggestion import suggest as _suggest

_FORMATS = ("job", "torchrun", "deepspeed", "accelerate")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python3 -m lockstep.suggest",
        description="Suggests a starting configuration for a model size, GPUs and dataset.",
        epilog='Example: python3 -m lockstep.suggest --model-size 7B --gpus 8 --dataset-size "1B tokens"',
    )
    parser.add_argument("--model-size", "--params", default=None, help="parameters: 7B, 7e9")
    parser.add_argument("--model", default=None, help="instead: preset, YAML file or Hugging Face folder")
    parser.add_argument("--gpus", default=None, help="GPUs in all")
    parser.add_argument("--dataset-size", "--dataset-tokens", required=True, help='tokens: 1e9, "1B tokens"')
    parser.add_argument("--gpu", default="H100", help="kind of GPU (default: H100)")
    parser.add_argument("--gpus-per-node", type=int, default=None)
    parser.add_argument("--cluster", default=None, help="instead of --gpus and --gpu: 4x8xH100 or a YAML file")
    parser.add_argument("--seq", type=int, default=None, dest="sequence_length", help="sequence length")
    parser.add_argument("--global-batch", type=int, default=None, help="sequences")
    parser.add_argument("--epochs", type=float, default=None)
    parser.add_argument("--host-cores", type=int, default=None, help="CPU cores of a node")
    parser.add_argument("--task", default="auto", help="auto, pretrain, finetune or lora")
    parser.add_argument("--stack", default="lockstep", help="lockstep, torchrun, deepspeed or accelerate")
    parser.add_argument("--profile", default=None)
    parser.add_argument("--no-studies", action="store_true", help="leave stored studies alone")
    parser.add_argument("--json", action="store_true", help="JSON on stdout (lockstep.suggest/1)")
    parser.add_argument("--print", choices=_FORMATS, default=None, dest="file", help="print this file instead")
    parser.add_argument("--output", type=Path, default=None, help="write there instead of to stdout")
    return parser


def _text(suggestion: Suggestion, arguments: argparse.Namespace) -> str:
    if arguments.file == "job":
        return suggestion.job_yaml()
    if arguments.file == "torchrun":
        return suggestion.torchrun()
    if arguments.file == "deepspeed":
        return json.dumps(suggestion.deepspeed(), indent=2) + "\n"
    if arguments.file == "accelerate":
        return suggestion.accelerate()
    if arguments.json:
        return json.dumps(suggestion.to_dict(), indent=1) + "\n"
    return f"{suggestion}\n"


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Returns the exit code: 2 for questions that have no answer, as the ValueError says."""
    arguments = _parser().parse_args(argv)
    named = {
        name: getattr(arguments, name)
        for name in (
            "model_size", "model", "gpus", "dataset_size", "gpu", "gpus_per_node", "cluster", "sequence_length",
            "global_batch", "epochs", "host_cores", "task", "stack", "profile",
        )
    }  # fmt: skip
    try:
        text = _text(_suggest(**named, studies=not arguments.no_studies), arguments)
    except ValueError as error:
        print(f"lockstep: {error}", file=sys.stderr)
        return 2
    if arguments.output is not None:
        arguments.output.write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)
    return 0


class _Callable(types.ModuleType):
    def __call__(self, *arguments: Any, **named: Any) -> Suggestion:
        return _suggest(*arguments, **named)


if __name__ == "__main__":
    raise SystemExit(main())
sys.modules[__name__].__class__ = _Callable
