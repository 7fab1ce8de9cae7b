"""`lockstep.record()`: a plain training loop as a run that `report`, `serve` and `diagnose` show (docs/how-to/python.md).

    with lockstep.record("resnet") as run:
        for x, y in run.load(loader):
            with run.time("forward"):
                loss = criterion(model(x), y)
            with run.time("backward"):
                loss.backward()
            with run.time("optimizer"):
                optimizer.step()
            run.step(loss=loss, samples=len(x))

Every step gets what ranks of our engine record: step = data + compute + comm + optimizer + checkpoint + host. Recording
never raises into the loop and never waits for a disk.
"""

from __future__ import annotations

import math
import resource
import statistics
import time
import warnings
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Dict, Iterable, Iterator, List, Mapping, Optional, Type, TypeVar

from . import _log
from .errors import SpecError
from .observations import observe

if TYPE_CHECKING:
    from .store import Run

__all__ = ["Recording", "record"]

T = TypeVar("T")
_PHASES = ("data", "forward", "backward", "comm", "optimizer", "checkpoint")
# What a step time means nothing without.
_ENOUGH = ("hardware", "gpus", "model", "seq_len", "micro_batch", "global_batch_seqs")
_MORE = ("interconnect", "gpus_per_node", "sharding", "dp", "tp", "pp", "vpp", "cp", "ep", "grad_accum", "act_ckpt",
         "precision", "compile_or_notes", "task")
_LEVELS = ("debug", "info", "warning", "error")


def _facts_of(config: Mapping[str, Any]) -> Dict[str, Any]:
    """What a program says of itself in the columns of `lockstep.observe`; nothing where it is not enough."""
    if not all(config.get(name) for name in _ENOUGH):
        return {}
    return {name: config[name] for name in (*_ENOUGH, *_MORE) if config.get(name) is not None}


def record(
    name: Optional[str] = None,
    *,
    config: Optional[Mapping[str, Any]] = None,
    observed_as: Optional[Mapping[str, Any]] = None,
) -> Recording:
    """Begins a run of this program; use it in `with`, or call `close()`.

    name    of the run; default: the name of the script
    config  plain values that belong to it: learning rate, sizes, ... They become an event `config`
    observed_as  what it ran, in the columns of `lockstep.observe`: with the median of its step times it becomes an
            observed run when it ends well, from which later plans learn. Default: `config`, where it has hardware,
            gpus, model, seq_len, micro_batch and global_batch_seqs; {}: not observed

    Under `lockstep launch` the records become part of its run. Elsewhere all ranks share one run where
    `lockstep.comm` was initialised before; without it the first rank alone records.
    """
    return Recording(name, config, observed_as)


class Recording:
    def __init__(
        self,
        name: Optional[str] = None,
        config: Optional[Mapping[str, Any]] = None,
        observed_as: Optional[Mapping[str, Any]] = None,
    ) -> None:
        self._observed_as = _facts_of(config or {}) if observed_as is None else dict(observed_as)
        self._durations: List[float] = []
        self._log = _log.RunLog(name, _shared_id(name))
        self._before = _log.use(self._log)  # lockstep.log() inside of it is about this run
        self._phases: Dict[str, float] = {}
        self._step = 0
        self._steps = 0
        self._loss: Optional[float] = None
        self._closed = False
        self._last = _Moment()
        if config:
            self.event("settings of the program", kind="config", **config)

    @property
    def id(self) -> str:
        return str(self._log.id)

    def run(self) -> Run:
        """What was recorded by now; records of the last moments may still be on their way."""
        from .store import open_run

        return open_run(self.id)

    @contextmanager
    def time(self, phase: str) -> Iterator[None]:
        """Counts to `phase` of the step: data, forward, backward, comm, optimizer or checkpoint. They do not nest."""
        if phase not in _PHASES:
            raise SpecError(f"there is no phase {phase!r} of a step; use one of {', '.join(_PHASES)}")
        begin = time.monotonic()
        try:
            yield
        finally:
            self._phases[phase] = self._phases.get(phase, 0.0) + time.monotonic() - begin

    def load(self, loader: Iterable[T]) -> Iterator[T]:
        """The loader's batches; waiting for them counts as `data`."""
        batches = iter(loader)
        while True:
            with self.time("data"):
                try:
                    batch = next(batches)
                except StopIteration:
                    return
            yield batch

    def step(
        self,
        step: Optional[int] = None,
        *,
        loss: Any = None,
        tokens: Optional[float] = None,
        samples: Optional[float] = None,
        **metrics: Any,
    ) -> None:
        """Ends a step.

        step             its number; without it: one more than last time
        tokens, samples  of all ranks in this step; recorded per second
        metrics          any other numbers: learning_rate, gradient_norm, evaluation_loss, ... A tensor of one element is
                         one
        """
        now = _Moment()
        seconds = now.time - self._last.time
        self._step = self._step + 1 if step is None else int(step)
        self._steps += 1
        if self._observed_as:
            self._durations.append(seconds)
        values: Dict[str, Any] = {"loss": loss, **metrics, **self._parts(seconds), **now.since(self._last)}
        for name, count in (("tokens", tokens), ("samples", samples)):
            if count is not None and seconds > 0:
                values.setdefault(name + "_per_second", float(count) / seconds)
        self._last = now
        self._phases = {}
        try:
            self._log.log(self._step, values, None, None)
            if loss is not None:
                self._loss = float(loss.detach() if hasattr(loss, "detach") else loss)
        except Exception:  # noqa: BLE001 - a metric is never worth a training run
            pass

    def event(self, message: str, *, kind: str = "note", level: str = "info", **data: Any) -> None:
        """Something that happened: a checkpoint, a new learning rate, ... `report` lists it."""
        if level not in _LEVELS:
            raise SpecError(f"there is no level {level!r}; use one of {', '.join(_LEVELS)}")
        self._log.event(kind, str(message).splitlines()[0] if str(message) else "", level, self._step or -1, _plain(data))

    def close(self, error: Optional[BaseException] = None) -> None:
        if self._closed:
            return
        self._closed = True
        _log.use(self._before)
        summary = _plain({"steps": self._step, "final_loss": self._loss})
        if error is None:
            self._log.end("done", summary=summary)
            self._observe()
        elif isinstance(error, KeyboardInterrupt):
            self._log.end("interrupted", "stopped by Ctrl-C", summary)
        else:
            text = f"{type(error).__name__}: {error}".splitlines()[0]
            self._log.end("failed", text, summary)

    def _observe(self) -> None:
        """The first steps are the start of the program, not its pace. Ranks of one run are one observation."""
        durations = self._durations[2:]
        if not self._observed_as or len(durations) < 3 or _log.rank_and_world()[0] > 0:
            return
        try:
            observe({"id": self.id, "step_time_s": statistics.median(durations), **self._observed_as})
        except (OSError, SpecError) as problem:
            warnings.warn(f"lockstep: the run is not kept as observed: {problem}", stacklevel=3)

    def __enter__(self) -> Recording:
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close(error)

    def _parts(self, seconds: float) -> Dict[str, float]:
        """`step_seconds` and what it is made of, as far as the program said."""
        values = {"step_seconds": seconds}
        if not self._phases:
            return values
        for phase in _PHASES:
            values[phase + "_seconds"] = self._phases.get(phase, 0.0)
        values["compute_seconds"] = values["forward_seconds"] + values["backward_seconds"]
        values["host_seconds"] = max(0.0, seconds - sum(self._phases.values()))
        return values


class _Moment:
    """What the kernel counts about this process."""

    def __init__(self) -> None:
        self.time = time.monotonic()
        self._cpu = time.process_time()
        self._usage = resource.getrusage(resource.RUSAGE_SELF)

    def since(self, before: _Moment) -> Dict[str, float]:
        return {"cpu_seconds": self._cpu - before._cpu, "memory_bytes": 1024.0 * self._usage.ru_maxrss,
                "preemptions": float(self._usage.ru_nivcsw - before._usage.ru_nivcsw)}


def _shared_id(name: Optional[str]) -> Optional[str]:
    """The first rank's, where the ranks can speak to each other."""
    from . import comm

    if not comm.is_initialized() or comm.size() == 1:
        return None
    return str(comm.broadcast_object(_log.make_id(name or _log.program_name()), name="lockstep.record"))


def _plain(data: Mapping[str, Any]) -> Dict[str, Any]:
    """JSON has no NaN, no infinity and none of the program's own types."""
    kinds = (str, int, bool, type(None))
    return {str(key): value if isinstance(value, kinds) or (isinstance(value, float) and math.isfinite(value)) else str(value)
            for key, value in data.items()}
