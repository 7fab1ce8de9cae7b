"""Runs of the store of `lockstep`, to read (docs/how-to/wandb-and-mlflow.md).

    >>> from lockstep.store import open_run
    >>> run = open_run("last")                                   # doctest: +SKIP
    >>> [(step, value) for step, _, value in run.points("loss")]  # doctest: +SKIP

The compiled module reads tables and JSON lines as one store, also while the run is recorded.
"""

import json

from ._log import home_directory

__all__ = ["Run", "open_run"]


class Run:
    """One run. What it holds grows while the run lasts; `refresh()` reads its facts again."""

    def __init__(self, store, facts):
        self._store = store
        self._facts = facts

    def __getattr__(self, name):
        """id, name, status, started_at, ended_at, exit_reason, world, backend, host, job_yaml, versions, tags, summary."""
        try:
            return self.__dict__["_facts"][name]
        except KeyError:
            raise AttributeError(f"a run has no {name!r}") from None

    def refresh(self):
        self._facts = json.loads(self._store.find(self.id))

    @property
    def is_over(self):
        return self.status != "running"

    def metric_names(self):
        return self._store.metric_names(self.id)

    def ranks(self, metric):
        return self._store.ranks(self.id, metric)

    def points(self, metric, rank=None, after=-(1 << 62), limit=100_000):
        """[(step, time, value)] by step, those after `after`; of the lowest rank unless one is given."""
        if rank is None:
            ranks = self.ranks(metric)
            if not ranks:
                return []
            rank = ranks[0]
        return self._store.points_after(self.id, metric, rank, after, limit)

    def events(self, after=float("-inf")):
        """Dicts with time, level, kind, rank, step, message, data; by time, those later than `after`."""
        return [json.loads(text) for text in self._store.events_after(self.id, after)]

    def plan(self):
        """lockstep.plan/1, or None."""
        return json.loads(self._store.plan(self.id))

    def predicted(self):
        """{"tokens_per_second": {"low", "expected", "high"}, ...} of the plan; empty where it has none."""
        best = (self.plan() or {}).get("best") or {}
        prediction = best.get("prediction") or {}
        return {name: value for name, value in prediction.items() if isinstance(value, dict) and value.get("expected")}


def open_run(run="last", home=None):
    """The run `run`: its id, the beginning of one, or "last". ValueError where there is none."""
    from ._core import Store  # the compiled module

    store = Store(str(home or home_directory()))
    return Run(store, json.loads(store.find(run)))
