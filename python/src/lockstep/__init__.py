"""Lockstep for Python: train with the C++ engine, read and record runs, collectives for arrays, a starting configuration.

>>> from lockstep import suggest
>>> s = suggest(model_size="7B", gpus=8, dataset_size="1B tokens", studies=False)
>>> s.model.name, s.cluster.name, s.task
('llama2-7b', '1x8xH100', 'finetune')
>>> s.batch.micro * s.batch.accumulation * s.layout.data_ranks == s.batch.global_sequences
True
>>> s.prediction.tokens_per_second_per_gpu.low < s.prediction.tokens_per_second_per_gpu.expected
True
"""

from . import callbacks, errors
from ._log import log
from .errors import (
    Aborted,
    DoesNotFit,
    EnvironmentError,
    Fault,
    Interrupted,
    LockstepError,
    PeerLost,
    RunFailed,
    SpecError,
    TimeoutFault,
    UserError,
    WorthRetrying,
)
from .exports import export_to_mlflow, export_to_tensorboard, export_to_wandb
from .observations import observe
from .store import Run, open_run, runs

try:
    from . import comm
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
    from .recording import Recording, record
    from .training import Callback, Step, StopTraining, train
except ImportError as _problem:  # the planner needs the compiled module; log() and the callbacks do not
    _missing = str(_problem)

    def __getattr__(name: str) -> object:
        if name in __all__:
            raise ImportError(f"lockstep.{name} needs the compiled module, which is missing: {_missing}")
        raise AttributeError(f"module 'lockstep' has no attribute {name!r}")

__all__ = [
    "Aborted",
    "Batch",
    "Callback",
    "Checkpoint",
    "Cluster",
    "Cost",
    "DoesNotFit",
    "EnvironmentError",
    "Fault",
    "Interrupted",
    "Interval",
    "Layout",
    "Loader",
    "LockstepError",
    "Memory",
    "Model",
    "Optimizer",
    "PeerLost",
    "Prediction",
    "Recording",
    "Run",
    "RunFailed",
    "SpecError",
    "Step",
    "StopTraining",
    "StudiedKnob",
    "Suggestion",
    "TimeoutFault",
    "UserError",
    "WorthRetrying",
    "callbacks",
    "comm",
    "errors",
    "export_to_mlflow",
    "export_to_tensorboard",
    "export_to_wandb",
    "log",
    "observe",
    "open_run",
    "plan",
    "record",
    "runs",
    "suggest",
    "train",
]
__version__ = "0.1.0"
