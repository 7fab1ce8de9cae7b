"""One line in a trainer, and its metrics are in the run store: see `lockstep.log`.

    Trainer(..., callbacks=[lockstep.callbacks.HuggingFaceCallback()])          # transformers
    Trainer(..., logger=lockstep.callbacks.LightningLogger())                   # lightning, or pytorch_lightning

The classes are made when they are asked for: neither library is needed to import this module.
"""

import functools

from ._log import log

__all__ = ["HuggingFaceCallback", "LightningLogger"]

# Names that `lockstep report` reads, for those of the trainers.
_NAMES = {"grad_norm": "gradient_norm", "eval_loss": "evaluation_loss", "eval_accuracy": "evaluation_accuracy",
          "val_loss": "evaluation_loss", "val_acc": "evaluation_accuracy", "val_accuracy": "evaluation_accuracy",
          "train_loss": "loss", "lr": "learning_rate"}


def _renamed(metrics):
    return {_NAMES.get(name, name.replace("/", "_").replace("-", "_")): value for name, value in metrics.items()
            if isinstance(value, (int, float)) or hasattr(value, "item")}


@functools.lru_cache(maxsize=None)
def _hugging_face():
    from transformers import TrainerCallback

    class HuggingFaceCallback(TrainerCallback):
        """Records what transformers' Trainer logs, and the time of every step of every rank."""

        def __init__(self):
            self._tokens = 0

        def on_step_end(self, args, state, control, **ignored):
            tokens = getattr(state, "num_input_tokens_seen", 0) or 0
            samples = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
            # Without include_num_input_tokens_seen the count stays 0.
            log(state.global_step, samples=samples, tokens=tokens - self._tokens if tokens > self._tokens else None)
            self._tokens = tokens

        def on_log(self, args, state, control, logs=None, **ignored):
            if not state.is_world_process_zero or not logs:
                return
            # The summary at the end repeats the mean of all losses under the name train_loss.
            ended = "train_runtime" in logs
            log(state.global_step, **{name: value for name, value in _renamed(logs).items()
                                      if name != "step" and not (ended and name == "loss")})

    return HuggingFaceCallback


@functools.lru_cache(maxsize=None)
def _lightning():
    try:
        from lightning.pytorch.loggers.logger import Logger, rank_zero_experiment
    except ImportError:
        from pytorch_lightning.loggers.logger import Logger, rank_zero_experiment

    class LightningLogger(Logger):
        """Records what Lightning logs."""

        @property
        def name(self):
            return "lockstep"

        @property
        def version(self):
            import os
            return os.environ.get("LOCKSTEP_RUN_ID", "")

        @property
        @rank_zero_experiment
        def experiment(self):
            return log

        def log_hyperparams(self, params, *ignored, **also_ignored):
            """The run's command line has them."""

        def log_metrics(self, metrics, step=None):
            values = _renamed(metrics)
            log(step, **{name: value for name, value in values.items() if name != "step"})

    return LightningLogger


def __getattr__(name):
    if name == "HuggingFaceCallback":
        return _hugging_face()
    if name == "LightningLogger":
        return _lightning()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
