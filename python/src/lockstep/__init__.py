"""Lockstep for Python: a starting configuration for distributed training.

>>> from lockstep import suggest
>>> s = suggest(model_size="7B", gpus=8, dataset_size="1B tokens", studies=False)
>>> s.model.name, s.cluster.name, s.task
('llama2-7b', '1x8xH100', 'finetune')
>>> s.batch.micro * s.batch.accumulation * s.layout.data_ranks == s.batch.global_sequences
True
>>> s.prediction.tokens_per_second_per_gpu.low < s.prediction.tokens_per_second_per_gpu.expected
True
"""

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
    "plan",
    "suggest",
]
__version__ = "0.1.0"
