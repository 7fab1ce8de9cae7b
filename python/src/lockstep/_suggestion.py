"""A suggestion with types and words around the planner's plain values."""

from __future__ import annotations

import html
import math
from dataclasses import dataclass, fields
from os import PathLike
from typing import Any, Mapping, Optional, Type, TypeVar, Union

from . import _core

Size = Union[int, float, str]
_T = TypeVar("_T")


@dataclass(frozen=True)
class Interval:
    """90% interval around the expected value."""

    low: float
    expected: float
    high: float

    def __str__(self) -> str:
        return f"{self.expected:.4g} ({self.low:.4g} to {self.high:.4g})"


@dataclass(frozen=True)
class Model:
    """What is trained: a preset, or a shape drawn between two of them (`interpolated`)."""

    name: str
    arch: str
    parameters: int
    layers: int
    hidden: int
    heads: int
    vocab: int
    interpolated: bool


@dataclass(frozen=True)
class Cluster:
    name: str
    gpus: int
    gpu: str
    nodes: int
    gpus_per_node: int


@dataclass(frozen=True)
class Layout:
    """How the ranks are arranged: world = pp x dp x shard x cp x tp."""

    pp: int
    dp: int
    shard: int
    zero: int
    cp: int
    tp: int
    ep: int
    sequence_parallel: bool
    virtual_stages: int
    stage_layers: list[int]
    context_exchange: str
    offload: str

    @property
    def world(self) -> int:
        return self.pp * self.dp * self.shard * self.cp * self.tp

    @property
    def data_ranks(self) -> int:
        return self.dp * self.shard

    def __str__(self) -> str:
        axes = [f"{name}={getattr(self, name)}" for name in ("pp", "dp", "shard", "cp", "tp", "ep")]
        shown = [axis for axis in axes if not axis.endswith("=1")] or ["dp=1"]
        return ", ".join(shown + ([f"zero={self.zero}"] if self.zero else []))


@dataclass(frozen=True)
class Batch:
    micro: int
    accumulation: int
    global_sequences: int
    sequence_length: int


@dataclass(frozen=True)
class Memory:
    """GiB per GPU at the peak of a step."""

    total: float
    parameters: float
    gradients: float
    optimizer: float
    activations: float
    buffers: float
    overhead: float
    capacity: float


@dataclass(frozen=True)
class Prediction:
    tokens_per_second: Interval
    tokens_per_second_per_gpu: Interval
    step_seconds: Interval
    mfu: Interval


@dataclass(frozen=True)
class Cost:
    gpu_hours: float
    usd: float
    days: float


@dataclass(frozen=True)
class Checkpoint:
    interval_seconds: float
    expected_lost_seconds: float
    worst_lost_seconds: float
    stall_seconds: float
    goodput: float


@dataclass(frozen=True)
class Loader:
    num_workers: int
    prefetch_factor: int
    pin_memory: bool


@dataclass(frozen=True)
class Optimizer:
    """The learning rate is a hint from published recipes."""

    kind: str
    learning_rate: float
    warmup_steps: int
    weight_decay: float
    betas: list[float]


@dataclass(frozen=True)
class StudiedKnob:
    """A knob that a stored study found to matter: `set_back_percent` is what its default costs."""

    study: str
    knob: str
    value: str
    set_back_percent: Mapping[str, float]
    simulated: bool
    applied_to: str


def _take(kind: Type[_T], values: Mapping[str, Any]) -> _T:
    return kind(**{field.name: values[field.name] for field in fields(kind)})  # type: ignore[arg-type]


class Suggestion:
    """What `suggest` answers. Plain attributes, files as texts, and a page in notebooks.

    >>> from lockstep import suggest
    >>> s = suggest(model_size="13B", gpus=16, dataset_size="50M tokens", gpu="A100", studies=False)
    >>> s.layout.world, s.precision, s.epochs
    (16, 'bf16', 2.0)
    >>> s.environment["NCCL_ALGO"]
    'auto'
    >>> print(s.job_yaml().splitlines()[3])
    model: llama2-13b
    >>> s.deepspeed()["zero_optimization"]["stage"] in (0, 1, 2, 3)
    True
    >>> "torchrun" in s.torchrun() and "distributed_type" in s.accelerate()
    True
    """

    model: Model
    cluster: Cluster
    task: str
    stack: str
    layout: Layout
    batch: Batch
    precision: str
    recompute: str
    schedule: str
    steps: int
    epochs: float
    memory: Memory
    prediction: Prediction
    cost: Optional[Cost]
    checkpoint: Optional[Checkpoint]
    optimizer: Optimizer
    loader: Loader
    environment: dict[str, str]
    environment_reasons: dict[str, str]
    studies: list[StudiedKnob]
    reasons: list[str]
    warnings: list[str]

    def __init__(self, core: _core.Suggestion) -> None:
        self._core = core
        self._document = core.to_dict()
        document = self._document
        for name in ("task", "stack", "precision", "recompute", "schedule", "steps", "environment",
                     "environment_reasons", "reasons", "warnings"):  # fmt: skip
            setattr(self, name, document[name])
        self.epochs = float(document["epochs"])
        self.model = _take(Model, document["model"])
        self.cluster = _take(Cluster, document["cluster"])
        self.layout = _take(Layout, document["layout"])
        self.batch = _take(Batch, document["batch"])
        self.memory = _take(Memory, document["memory_gib"])
        self.loader = _take(Loader, document["loader"])
        self.optimizer = _take(Optimizer, document["optimizer"])
        intervals = document["prediction"]["intervals"]
        self.prediction = Prediction(**{f.name: _take(Interval, intervals[f.name]) for f in fields(Prediction)})
        self.cost = _take(Cost, document["cost"]) if document.get("cost") else None
        self.checkpoint = _take(Checkpoint, document["checkpoint"]) if document.get("checkpoint") else None
        self.studies = [_take(StudiedKnob, knob) for knob in document["studies"]]

    def to_dict(self) -> dict[str, Any]:
        """The document of `lockstep suggest --json`, schema lockstep.suggest/1."""
        return self._core.to_dict()

    def job_yaml(self) -> str:
        """A job file for `lockstep plan` and `lockstep train`."""
        return self._core.job_yaml()

    def torchrun(self) -> str:
        """A shell script: environment and torchrun's command, for the best layout that FSDP or DDP runs."""
        return self._core.torchrun()

    def deepspeed(self) -> dict[str, Any]:
        """A DeepSpeed configuration, for the best layout that ZeRO runs."""
        return self._core.deepspeed()

    def accelerate(self) -> str:
        """A configuration file of Hugging Face Accelerate, for the best layout that FSDP or DDP runs."""
        return self._core.accelerate()

    def _rows(self) -> list[tuple[str, str]]:
        batch, speed = self.batch, self.prediction.tokens_per_second_per_gpu
        rows = [
            ("layout", f"{self.layout}; {self.precision}, recompute {self.recompute}"),
            (
                "batch",
                f"micro {batch.micro} x accumulation {batch.accumulation} x {self.layout.data_ranks} data ranks"
                f" = {batch.global_sequences} sequences of {batch.sequence_length}",
            ),
            ("length", f"{self.steps} steps, {self.epochs:g} epochs"),
            ("speed", f"{speed.expected:.0f} tokens/s per GPU (90%: {speed.low:.0f} to {speed.high:.0f})"),
            ("memory", f"{self.memory.total:.1f} of {self.memory.capacity:.1f} GiB per GPU"),
            ("loader", f"num_workers {self.loader.num_workers}, prefetch_factor {self.loader.prefetch_factor}"),
            ("environment", ", ".join(f"{k}={v}" for k, v in self.environment.items() if v != "auto") or "as it is"),
        ]
        if self.cost is not None:
            rows.append(("cost", f"{self.cost.days:.3g} days, {self.cost.usd:.0f} USD"))
        return rows

    def _title(self) -> str:
        return (f"{self.task} {self.model.name} ({self.model.parameters / 1e9:.3g}B parameters) on "
                f"{self.cluster.name}, for {self.stack}")  # fmt: skip

    def __repr__(self) -> str:
        return f"<Suggestion: {self._title()}: {self.layout}>"

    def __str__(self) -> str:
        lines = [self._title()] + [f"  {name:<12}{text}" for name, text in self._rows()]
        lines += ["Why"] + [f"  - {reason}" for reason in self.reasons]
        if self.warnings:
            lines += ["Mind"] + [f"  - {warning}" for warning in self.warnings]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        def cell(text: str) -> str:
            return html.escape(text)

        rows = "".join(f"<tr><th align=left>{cell(n)}</th><td align=left>{cell(t)}</td></tr>" for n, t in self._rows())
        reasons = "".join(f"<li>{cell(reason)}</li>" for reason in self.reasons)
        warnings = "".join(f"<li><b>{cell(warning)}</b></li>" for warning in self.warnings)
        return f"<b>{cell(self._title())}</b><table>{rows}</table><ul>{warnings}{reasons}</ul>"


def _text(value: Optional[Size]) -> str:
    """A count as the planner reads it; 7e9 and 7_000_000_000 are the same."""
    if value is None:
        return ""
    if isinstance(value, float) and math.isfinite(value) and value == int(value):
        return str(int(value))
    return str(value)


def suggest(
    model_size: Optional[Size] = None,
    gpus: Optional[Size] = None,
    dataset_size: Size = "",
    *,
    model: Union[str, PathLike[str], None] = None,
    gpu: str = "H100",
    gpus_per_node: Optional[int] = None,
    cluster: Union[str, PathLike[str], None] = None,
    sequence_length: Optional[int] = None,
    global_batch: Optional[int] = None,
    epochs: Optional[float] = None,
    host_cores: Optional[int] = None,
    task: str = "auto",
    stack: str = "lockstep",
    profile: Optional[str] = None,
    studies: bool = True,
) -> Suggestion:
    """A complete starting configuration, with predictions, intervals and reasons.

    ``model_size`` ("7B", 7e9) or ``model`` (preset, YAML file, Hugging Face folder), ``gpus`` with ``gpu`` or a
    ``cluster`` ("4x8xH100"), and the tokens of the dataset ("1B tokens", 1e9). ``task`` is auto, pretrain, finetune or
    lora; ``stack`` says who will run it: lockstep, torchrun, deepspeed or accelerate. ``studies=False`` leaves what
    `lockstep tune` found on this machine out of it. No network, no GPU needed.

    Questions without an answer are a ValueError of one line that says what to do:

    >>> from lockstep import suggest
    >>> suggest(model_size="7B", gpus=8, dataset_size="1B tokens", gpu="H1000", studies=False)
    Traceback (most recent call last):
        ...
    lockstep.SpecError: there is no GPU kind `H1000`; did you mean `H100`?
    >>> suggest(model_size="7B", gpus=0, dataset_size="1B tokens", studies=False)
    Traceback (most recent call last):
        ...
    lockstep.SpecError: gpus: `0` is nothing; give a number above 0
    """
    return Suggestion(
        _core.suggest(
            model_size=_text(model_size),
            model="" if model is None else str(model),
            gpus=_text(gpus),
            dataset_size=_text(dataset_size),
            gpu=gpu,
            gpus_per_node=_given(gpus_per_node, "gpus_per_node"),
            cluster="" if cluster is None else str(cluster),
            sequence_length=_given(sequence_length, "sequence_length"),
            global_batch=_given(global_batch, "global_batch"),
            epochs=_given(epochs, "epochs"),
            host_cores=_given(host_cores, "host_cores"),
            task=task,
            stack=stack,
            profile=profile or "",
            home=_core.home_directory() if studies else "",
        )
    )


_N = TypeVar("_N", int, float)


def _given(value: Optional[_N], name: str) -> _N:
    """0 stands for "not given" below, so nobody may mean it."""
    if value is None:
        return 0
    if not value > 0:
        raise ValueError(f"{name}: `{value}` is nothing; give a number above 0")
    return value


def plan(
    model: Union[str, PathLike[str]],
    cluster: Union[str, PathLike[str]],
    *,
    sequence_length: Optional[int] = None,
    global_batch: Optional[int] = None,
    tokens: Optional[Size] = None,
    profile: Union[str, PathLike[str]] = "",
) -> dict[str, Any]:
    """The document of `lockstep plan --json` (schema lockstep.plan/1): the best of every layout, and who lost.

    `profile` is a name or a file as `lockstep plan --profile` takes it; without it $LOCKSTEP_PROFILE, then what was
    measured on this machine, then the embedded one.

    >>> from lockstep import plan
    >>> plan("llama2-7b", "1x8xH100", global_batch=128)["best"]["batch"]["global_sequences"]
    128
    """
    return _core.plan(
        model=str(model),
        cluster=str(cluster),
        sequence_length=_given(sequence_length, "sequence_length"),
        global_batch=_given(global_batch, "global_batch"),
        tokens=0.0 if tokens is None else float(tokens),
        profile=str(profile),
    )
