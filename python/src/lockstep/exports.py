"""Runs of the store to Weights & Biases, MLflow and TensorBoard, through their own clients (docs/how-to/wandb-and-mlflow.md).

A run goes over once or while it lasts, and again without anything twice: what was sent is kept beside the run, in
`runs/<id>/sent-<where>.json` of the home folder, and the run there has a name that follows from the run's id.
"""

import hashlib
import importlib
import json
import math
import os
import pathlib
import re
import tempfile
import time
from typing import Any, Dict

from ._log import home_directory
from .store import BY_SECOND_NAMES, BY_SECOND_PREFIXES, is_by_second, open_run

__all__ = ["export_to_mlflow", "export_to_tensorboard", "export_to_wandb"]

_BATCH = 1000  # points of one request
_LONGEST_VALUE = 500  # of a parameter


def export_to_wandb(run="last", *, home=None, project="lockstep", follow=False, interval=5.0, **init):
    """Sends a run to Weights & Biases; with `follow`, until it is over. Other arguments are those of wandb.init()."""
    return _export(run, home, _Wandb(project, init), follow, interval)


def export_to_mlflow(run="last", *, home=None, tracking_uri=None, experiment="lockstep", follow=False, interval=5.0):
    """Sends a run to MLflow; with `follow`, until it is over. Returns the id of its run there."""
    return _export(run, home, _Mlflow(tracking_uri, experiment), follow, interval)


def export_to_tensorboard(run="last", *, home=None, folder="tensorboard", follow=False, interval=5.0):
    """Writes event files by TensorBoard's own writer; `lockstep export --format tensorboard` needs no Python."""
    return _export(run, home, _TensorBoard(folder), follow, interval)


def _client(name, package=None):
    try:
        return importlib.import_module(name)
    except ImportError as problem:
        package = package or name.split(".")[0]
        raise ImportError(f"{name} is not installed ({problem}); install it: pip install {package}") from None


def _export(run, home, sink, follow, interval):
    source = open_run(run, home)
    sent = _Sent(pathlib.Path(home or home_directory()), source.id, sink.where())
    sink.begin(source, _config(source))
    try:
        while True:
            source.refresh()
            over = source.is_over  # before reading: what it recorded last is read too
            _send_new(source, sink, sent)
            if over or not follow:
                break
            time.sleep(interval)
        return sink.end(source)
    finally:
        sink.close()


def _send_new(source, sink, sent):
    rows: Dict[Any, Any] = {}  # (axis, step) -> time, values
    for metric in source.metric_names():
        axis = "second" if is_by_second(metric) else "step"
        for rank in source.ranks(metric):
            name = metric if rank == 0 else f"rank{rank}/{metric}"
            after = sent.last(name)
            while points := source.points(metric, rank, after, _BATCH):
                for step, when, value in points:
                    row = rows.setdefault((axis, step), [when, {}])
                    row[0] = max(row[0], when)
                    row[1][name] = value
                after = points[-1][0]
    for (axis, step), (when, values) in sorted(rows.items()):
        sink.log(axis, step, when, values)
        for name in values:
            sent.remember(name, step)
    events = source.events(sent.event_time())
    for event in events:
        sink.event(event)
        sent.remember_event(event["time"])
    sink.flush()
    sent.keep()


def _config(source):
    config = {"lockstep_run": source.id, "name": source.name, "world": source.world, "backend": source.backend,
              "host": source.host, "versions": source.versions, "job_yaml": source.job_yaml}
    for name, interval in source.predicted().items():
        for end in ("low", "expected", "high"):
            config[f"predicted.{name}.{end}"] = interval.get(end)
    return config


class _Sent:
    """How far each series went; written whole, so that a kill leaves the old file or the new one."""

    def __init__(self, home, run, where):
        digest = hashlib.sha256(where.encode()).hexdigest()[:12]
        self._path = home / "runs" / run / f"sent-{where.split(':')[0]}-{digest}.json"
        try:
            self._state = json.loads(self._path.read_text())
        except (OSError, ValueError):
            self._state = {}
        self._state.setdefault("steps", {})

    def last(self, name):
        return self._state["steps"].get(name, -(1 << 62))

    def remember(self, name, step):
        self._state["steps"][name] = max(step, self.last(name))

    def event_time(self):
        return self._state.get("event_time", float("-inf"))

    def remember_event(self, when):
        self._state["event_time"] = max(when, self.event_time())

    def keep(self):
        self._path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=self._path.parent, prefix=".sent-")
        with os.fdopen(handle, "w") as file:
            json.dump(self._state, file)
        os.replace(name, self._path)


def _safe(name, allowed, most):
    """A name that the other side takes; names that differ stay different."""
    safe = re.sub(f"[^{allowed}]", "_", name)
    if safe == name and len(name) <= most:
        return name
    return f"{safe[:most - 9]}-{hashlib.sha256(name.encode(errors='replace')).hexdigest()[:8]}"


class _Wandb:
    def __init__(self, project, init):
        self._wandb = _client("wandb")
        self._project = project
        self._init = init
        self._run: Any = None
        self._events = []

    def where(self):
        return f"wandb:{self._init.get('entity')}:{self._project}:{self._init.get('mode') or os.environ.get('WANDB_MODE')}" \
               f":{self._init.get('dir')}"

    def begin(self, source, config):
        self._run = self._wandb.init(**{"project": self._project, "id": _safe(source.id, "A-Za-z0-9_-", 64),
                                        "name": source.id, "tags": source.tags, "config": config, "resume": "allow",
                                        **self._init})
        # Late points of other ranks are taken too: the step is a value, not wandb's own counter.
        self._run.define_metric("second", hidden=True)
        self._run.define_metric("*", step_metric="step")
        for pattern in (*(f"{prefix}*" for prefix in BY_SECOND_PREFIXES), *BY_SECOND_NAMES):
            self._run.define_metric(pattern, step_metric="second")

    def log(self, axis, step, when, values):
        self._run.log({axis: step, "_lockstep_time": when,
                       **{_safe(name, r"A-Za-z0-9_./ -", 128): value for name, value in values.items()}})

    def event(self, event):
        self._events.append(event)
        if event["kind"] == "alert" and event["data"].get("state") == "firing":
            level = "ERROR" if event["level"] == "error" else "WARN"
            self._run.alert(title=f"lockstep: {event['data'].get('rule')}", text=event["message"], level=level)

    def flush(self):
        pass

    def end(self, source):
        if self._events:
            columns = ["time", "level", "kind", "rank", "step", "message"]
            table = self._wandb.Table(columns=columns, data=[[one[key] for key in columns] for one in self._events])
            self._run.log({"events": table})
        if source.is_over:
            self._run.summary["status"] = source.status
            self._run.summary["exit_reason"] = source.exit_reason
        return self._run.id

    def close(self):
        if self._run is not None:
            self._run.finish()


class _Mlflow:
    def __init__(self, tracking_uri, experiment):
        _client("mlflow")
        self._tracking = _client("mlflow.tracking", "mlflow")
        self._entities = _client("mlflow.entities", "mlflow")
        self._client = self._tracking.MlflowClient(tracking_uri)
        self._uri = tracking_uri or self._tracking.get_tracking_uri()
        self._experiment = experiment
        self._run_id = None
        self._metrics = []
        self._events = 0

    def where(self):
        return f"mlflow:{self._uri}:{self._experiment}"

    def begin(self, source, config):
        known = self._client.get_experiment_by_name(self._experiment)
        experiment = known.experiment_id if known else self._client.create_experiment(self._experiment)
        quoted = source.id.replace("'", "")  # ids hold letters, digits, - and _
        found = self._client.search_runs([experiment], f"tags.`lockstep.run` = '{quoted}'", max_results=1)
        if found:
            self._run_id = found[0].info.run_id
            return
        tags = {"lockstep.run": source.id, "lockstep.tags": json.dumps(source.tags)}
        created = self._client.create_run(experiment, start_time=int(1000 * source.started_at), run_name=source.id, tags=tags)
        self._run_id = created.info.run_id
        for name, value in config.items():
            if name != "job_yaml" and value is not None:
                text = value if isinstance(value, str) else json.dumps(value)
                self._client.log_param(self._run_id, _safe(name, r"\w./ -", 250), text[:_LONGEST_VALUE] or "-")
        self._client.log_text(self._run_id, source.job_yaml, "job.yaml")

    def log(self, axis, step, when, values):
        for name, value in values.items():
            self._metrics.append(self._entities.Metric(_safe(name, r"\w./ -", 250), value, int(1000 * when), step))
        if len(self._metrics) >= _BATCH:
            self.flush()

    def event(self, event):
        if event["kind"] == "alert" and event["data"].get("state") == "firing":
            self._client.set_tag(self._run_id, f"lockstep.alert.{event['data'].get('rule')}", event["message"][:_LONGEST_VALUE])

    def flush(self):
        for begin in range(0, len(self._metrics), _BATCH):
            self._client.log_batch(self._run_id, metrics=self._metrics[begin:begin + _BATCH])
        self._metrics = []

    def end(self, source):
        events = source.events()
        if events:
            self._client.log_text(self._run_id, "".join(json.dumps(one) + "\n" for one in events), "events.jsonl")
        if source.is_over:
            status = {"done": "FINISHED", "interrupted": "KILLED"}.get(source.status, "FAILED")
            self._client.set_terminated(self._run_id, status, int(1000 * (source.ended_at or time.time())))
        return self._run_id

    def close(self):
        pass


class _TensorBoard:
    def __init__(self, folder):
        writer = _client("tensorboard.summary", "tensorboard").Writer
        self._folder = pathlib.Path(folder)
        self._make = writer
        self._writer: Any = None

    def where(self):
        return f"tensorboard:{self._folder.resolve()}"

    def begin(self, source, config):
        self._writer = self._make(str(self._folder / _safe(source.id, "A-Za-z0-9_-", 128)))

    def log(self, axis, step, when, values):
        for name, value in values.items():
            self._writer.add_scalar(name, value if math.isfinite(value) else float("nan"), step=step, wall_time=when)

    def event(self, event):
        pass

    def flush(self):
        self._writer.flush()

    def end(self, source):
        return str(self._folder)

    def close(self):
        if self._writer is not None:
            self._writer.close()
