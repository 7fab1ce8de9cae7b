"""Runs of the store of `lockstep`, to read (docs/reference/python.md).

    >>> from lockstep.store import open_run
    >>> run = open_run("last")                                   # doctest: +SKIP
    >>> [(step, value) for step, _, value in run.points("loss")]  # doctest: +SKIP

The compiled module reads tables and JSON lines as one store, also while the run is recorded.
"""

from __future__ import annotations

import json
import time
from os import PathLike
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Optional, Tuple, Union

from ._log import home_directory

if TYPE_CHECKING:
    from ._core import Store

__all__ = ["Run", "open_run", "runs"]

Home = Union[str, "PathLike[str]", None]


class Run:
    """One run. What it holds grows while the run lasts; `refresh()` reads its facts again."""

    id: str
    name: str
    status: str  # running, done, failed, interrupted, or lost: it claims to run and its process is gone
    started_at: float  # seconds since 1970
    ended_at: float  # 0: has not
    exit_reason: str  # one line; "" when done
    world: int
    backend: str
    host: str
    job_yaml: str
    versions: Dict[str, Any]
    tags: List[str]
    summary: Dict[str, Any]  # what `lockstep train --json` ends with

    def __init__(self, store: Store, facts: Dict[str, Any]) -> None:
        self._store = store
        self._facts = facts

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["_facts"][name]
        except KeyError:
            raise AttributeError(f"a run has no {name!r}") from None

    def __repr__(self) -> str:
        return f"<lockstep.Run {self.id}: {self.status}>"

    def refresh(self) -> None:
        self._facts = json.loads(self._store.find(self.id))

    @property
    def is_over(self) -> bool:
        return self.status != "running"

    @property
    def final_loss(self) -> Optional[float]:
        """The last loss that was recorded; None where there is none."""
        points = self.points("loss")
        return points[-1][2] if points else None

    def wait(self, timeout: Optional[float] = None, interval: float = 0.5) -> Run:
        """Until the run is over; TimeoutError after `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            self.refresh()
            if self.is_over:
                return self
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"run {self.id} still runs after {timeout:g} s")
            time.sleep(interval)

    def metric_names(self) -> List[str]:
        return self._store.metric_names(self.id)

    def ranks(self, metric: str) -> List[int]:
        return self._store.ranks(self.id, metric)

    def points(
        self, metric: str, rank: Optional[int] = None, after: int = -(1 << 62), limit: int = 100_000
    ) -> List[Tuple[int, float, float]]:
        """[(step, time, value)] by step, those after `after`; of the lowest rank unless one is given."""
        if rank is None:
            ranks = self.ranks(metric)
            if not ranks:
                return []
            rank = ranks[0]
        return self._store.points_after(self.id, metric, rank, after, limit)

    def metrics(self, names: Optional[Iterable[str]] = None, rank: int = 0) -> Dict[str, List[Tuple[int, float]]]:
        """Name to [(step, value)] of one rank; all that it recorded unless `names` says which."""
        result = {}
        for name in self.metric_names() if names is None else names:
            points = [(step, value) for step, _, value in self._all_points(name, rank)]
            if points or names is not None:
                result[name] = points
        return result

    def steps(self, rank: int = 0) -> List[Dict[str, Any]]:
        """One dict per step, by step: `step`, `time` and every metric that this rank recorded of it.

        What agents record by the second of the run (`node_*`, `gpu_*`, cpu_percent, resident_bytes) is left out:
        `points()` has it.
        """
        rows: Dict[int, Dict[str, Any]] = {}
        for name in self.metric_names():
            if is_by_second(name):
                continue
            for step, when, value in self._all_points(name, rank):
                row = rows.setdefault(step, {"step": step, "time": when})
                row["time"] = max(row["time"], when)
                row[name] = value
        return [rows[step] for step in sorted(rows)]

    def to_pandas(self, rank: int = 0) -> Any:
        """`steps()` as a pandas.DataFrame whose index is the step."""
        try:
            import pandas
        except ImportError as problem:
            raise ImportError(f"to_pandas() needs pandas ({problem}); install it, or use steps()") from None
        frame = pandas.DataFrame.from_records(self.steps(rank), columns=None)
        if frame.empty:
            return pandas.DataFrame(index=pandas.Index([], name="step"))
        frame["time"] = pandas.to_datetime(frame["time"], unit="s", utc=True)
        return frame.set_index("step")

    def events(self, after: float = float("-inf"), kind: Optional[str] = None) -> List[Dict[str, Any]]:
        """Dicts with time, level, kind, rank, step, message, data; by time, those later than `after`."""
        found = [json.loads(text) for text in self._store.events_after(self.id, after)]
        return [event for event in found if kind is None or event["kind"] == kind]

    def plan(self) -> Optional[Dict[str, Any]]:
        """lockstep.plan/1, or None."""
        return json.loads(self._store.plan(self.id))  # type: ignore[no-any-return]

    def predicted(self) -> Dict[str, Dict[str, float]]:
        """{"tokens_per_second": {"low", "expected", "high"}, ...} of the plan; empty where it has none."""
        best = (self.plan() or {}).get("best") or {}
        prediction = best.get("prediction") or {}
        return {name: value for name, value in prediction.items() if isinstance(value, dict) and value.get("expected")}

    def _all_points(self, name: str, rank: int) -> Iterable[Tuple[int, float, float]]:
        after, limit = -(1 << 62), 100_000
        while True:
            points = self._store.points_after(self.id, name, rank, after, limit)
            yield from points
            if len(points) < limit:
                return
            after = points[-1][0]


# Metrics of agents: their step is the second of the run.
BY_SECOND_PREFIXES = ("node_", "gpu_")
BY_SECOND_NAMES = ("cpu_percent", "resident_bytes")


def is_by_second(metric: str) -> bool:
    return metric.startswith(BY_SECOND_PREFIXES) or metric in BY_SECOND_NAMES


def _store_of(home: Home) -> Store:
    from ._core import Store  # the compiled module

    return Store(str(home or home_directory()))


def open_run(run: str = "last", home: Home = None) -> Run:
    """The run `run`: its id, the beginning of one, or "last". SpecError (a ValueError) where there is none."""
    store = _store_of(home)
    return Run(store, json.loads(store.find(run)))


def runs(limit: int = 100, beginning: str = "", home: Home = None) -> List[Run]:
    """Runs of the store, newest first; only those whose id begins with `beginning`."""
    store = _store_of(home)
    return [Run(store, json.loads(text)) for text in store.runs(limit, beginning)]
