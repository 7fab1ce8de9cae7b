"""Lockstep for Python: a starting configuration for distributed training, and metrics of any training program.

>>> from lockstep import suggest
>>> s = suggest(model_size="7B", gpus=8, dataset_size="1B tokens", studies=False)
>>> s.model.name, s.cluster.name, s.task
('llama2-7b', '1x8xH100', 'finetune')
>>> s.batch.micro * s.batch.accumulation * s.layout.data_ranks == s.batch.global_sequences
True
>>> s.prediction.tokens_per_second_per_gpu.low < s.prediction.tokens_per_second_per_gpu.expected
True
"""

from . import callbacks
from ._log import log
from .exports import export_to_mlflow, export_to_tensorboard, export_to_wandb

try:
    from ._suggestion import (
        Batch,
        Checkpoint,
        Cluster,
        Cost,
        Interval,
        Layout,
        Loader,
        Memory,
        Model,
        Optimizer,
        Prediction,
        StudiedKnob,
        Suggestion,
        plan,
        suggest,
    )
except ImportError as _problem:  # the planner needs the compiled module; log() and the callbacks do not
    _missing = str(_problem)

    def __getattr__(name):
        if name in __all__:
            raise ImportError(f"lockstep.{name} needs the compiled module, which is missing: {_missing}")
        raise AttributeError(f"module 'lockstep' has no attribute {name!r}")

__all__ = [
    "Batch",
    "Checkpoint",
    "Cluster",
    "Cost",
    "Interval",
    "Layout",
    "Loader",
    "Memory",
    "Model",
    "Optimizer",
    "Prediction",
    "StudiedKnob",
    "Suggestion",
    "callbacks",
    "export_to_mlflow",
    "export_to_tensorboard",
    "export_to_wandb",
    "log",
    "plan",
    "suggest",
]
__version__ = "0.1.0"
