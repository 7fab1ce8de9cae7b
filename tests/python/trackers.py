"""A run goes to Weights & Biases (offline), MLflow and TensorBoard by their clients; their readers give back what the store has.

    trackers.py PACKAGE    (a folder with the built package; with a python that has wandb, mlflow and tensorboard)
"""
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import time

PACKAGE = str(pathlib.Path(sys.argv[1]).resolve())
sys.path.insert(0, PACKAGE)
os.environ.update(WANDB_MODE="offline", WANDB_SILENT="true", MLFLOW_DISABLE_TELEMETRY="true", DO_NOT_TRACK="true")

import lockstep.exports  # noqa: E402
import lockstep.store  # noqa: E402

RUN = "20261118-010203-abcdef-job"
HOSTILE = "a\"b'c<script>;\n../x"


def write(home, rank, records, mode="a"):
    folder = home / "runs" / RUN
    folder.mkdir(parents=True, exist_ok=True)
    name = "run.jsonl" if rank < 0 else f"rank-{rank:05d}.jsonl"
    with open(folder / name, mode) as file:
        for record in records:
            file.write(json.dumps({"run": RUN, **record}) + "\n")


def metrics(rank, first, last):
    for step in range(first, last + 1):
        values = {"step_seconds": 0.1 * rank + 0.001 * step}
        if rank == 0:
            values.update({"loss": "nan" if step == 7 else 5.0 / step, "mfu": 0.4, HOSTILE: float(step)})
        yield {"type": "metrics", "rank": rank, "step": step, "time": 1.8e9 + step, "values": values}


def begin(home):
    write(home, -1, [
        {"type": "run", "name": HOSTILE, "started_at": 1.8e9, "world": 2, "backend": "gloo", "host": "h", "pid": 0,
         "pid_started": 0, "job": "name: " + HOSTILE, "versions": {"lockstep": "0.1"}},
        {"type": "plan", "plan": {"best": {"prediction": {"tokens_per_second": {"low": 90.0, "expected": 100.0, "high": 110.0}}}}},
        {"type": "event", "time": 1.8e9 + 4, "level": "warning", "kind": "alert", "rank": -1, "step": 4, "message": HOSTILE,
         "data": {"rule": "loss_spike", "state": "firing"}}])
    for rank in (0, 1):
        write(home, rank, metrics(rank, 1, 10))


def finish(home):
    for rank in (0, 1):
        write(home, rank, metrics(rank, 11, 15))
    write(home, -1, [{"type": "end", "time": 1.8e9 + 20, "status": "done", "exit_reason": "", "summary": {"steps": 15}}])


def store_points(home):
    """{(name, rank): {step: value}}"""
    run = lockstep.store.open_run(RUN, home)
    return {(name, rank): {step: value for step, _, value in run.points(name, rank)}
            for name in run.metric_names() for rank in run.ranks(name)}


def same(left, right):
    return left == right or (math.isnan(left) and math.isnan(right))


def check(theirs, ours, where):
    """`theirs`: {name: [(step, value)]}; every point once and equal."""
    for (name, rank), points in ours.items():
        key = name if rank == 0 else f"rank{rank}/{name}"
        if name == HOSTILE:
            (key,) = [one for one in theirs if one.startswith("a_b_c")]
        found = theirs[key]
        assert len(found) == len(points), (where, key, len(found), len(points))
        for step, value in found:
            assert same(value, points[step]), (where, key, step, value, points[step])


def wandb_points(folder):
    """As wandb's own reader of its files has them."""
    from wandb.proto import wandb_internal_pb2
    from wandb.sdk.internal import datastore
    points, configs, alerts, tables = {}, {}, 0, 0
    for file in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        reader = datastore.DataStore()
        reader.open_for_scan(str(file))
        while (data := reader.scan_data()) is not None:
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            kind = record.WhichOneof("record_type")
            alerts += kind == "alert"
            if kind == "run":
                configs.update({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.run.config.update})
            if kind != "history":
                continue
            row = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            tables += "events" in row
            axis = row.get("step", row.get("second"))
            for key, value in row.items():
                if axis is not None and key not in ("step", "second") and not key.startswith("_"):
                    points.setdefault(key, []).append((axis, float("nan") if value == "NaN" else value))
    return points, configs, alerts, tables


def check_wandb(home, folder):
    lockstep.exports.export_to_wandb(RUN, home=home, dir=str(folder))
    finish(home)
    lockstep.exports.export_to_wandb(RUN, home=home, dir=str(folder))
    lockstep.exports.export_to_wandb(RUN, home=home, dir=str(folder))  # nothing is new
    points, configs, alerts, _ = wandb_points(folder)
    check(points, store_points(home), "wandb")
    assert configs["predicted.tokens_per_second.expected"] == 100.0, configs
    assert configs["lockstep_run"] == RUN and configs["name"] == HOSTILE
    assert alerts == 1, alerts


def check_mlflow(home, folder):
    import mlflow
    uri = f"sqlite:///{folder}/mlflow.db"
    os.chdir(folder)  # where its artifacts go
    first = lockstep.exports.export_to_mlflow(RUN, home=home, tracking_uri=uri)
    finish(home)
    second = lockstep.exports.export_to_mlflow(RUN, home=home, tracking_uri=uri)
    third = lockstep.exports.export_to_mlflow(RUN, home=home, tracking_uri=uri)
    assert first == second == third, "the same run there"
    client = mlflow.tracking.MlflowClient(uri)
    run = client.get_run(first)
    points = {name: [(one.step, one.value) for one in client.get_metric_history(first, name)] for name in run.data.metrics}
    check(points, store_points(home), "mlflow")
    assert run.data.params["predicted.tokens_per_second.expected"] == "100.0", run.data.params
    assert run.data.tags["lockstep.alert.loss_spike"] == HOSTILE, run.data.tags
    assert run.info.status == "FINISHED"
    assert len(client.search_runs([run.info.experiment_id])) == 1


def check_tensorboard(home, folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    finish(home)
    lockstep.exports.export_to_tensorboard(RUN, home=home, folder=folder)
    reader = EventAccumulator(str(folder / RUN), size_guidance={"tensors": 0, "scalars": 0})
    reader.Reload()
    from tensorboard.util import tensor_util
    points = {name: [(one.step, float(tensor_util.make_ndarray(one.tensor_proto))) for one in reader.Tensors(name)]
              for name in reader.Tags()["tensors"]}
    ours = {key: {step: float(f"{value:.9g}") for step, value in points.items()} for key, points in store_points(home).items()}
    for (name, rank), expected in ours.items():
        key = name if rank == 0 else f"rank{rank}/{name}"
        assert len(points[key]) == len(expected), (key, points[key])
        for step, value in points[key]:
            assert math.isnan(value) if math.isnan(expected[step]) else abs(value - expected[step]) <= 1e-6 * abs(expected[step])


def check_following(home, folder):
    """A process that follows ends with the run and has all of it."""
    begin(home)
    pid = os.getpid()  # the run is alive as long as this process is
    started = int(pathlib.Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19])
    lines = (home / "runs" / RUN / "run.jsonl").read_text().replace('"pid": 0, "pid_started": 0', f'"pid": {pid}, "pid_started": {started}')
    import socket
    (home / "runs" / RUN / "run.jsonl").write_text(lines.replace('"host": "h"', f'"host": "{socket.gethostname()}"'))
    follower = subprocess.Popen([sys.executable, "-m", "lockstep.follow", RUN, "--to", "mlflow", "--home", str(home), "--uri",
                                 f"sqlite:///{folder}/mlflow.db", "--interval", "0.2"], cwd=folder,
                                env={**os.environ, "PYTHONPATH": PACKAGE})
    time.sleep(3)
    assert follower.poll() is None, "it ended before the run"
    finish(home)
    assert follower.wait(300) == 0
    import mlflow
    client = mlflow.tracking.MlflowClient(f"sqlite:///{folder}/mlflow.db")
    (run,) = client.search_runs([client.get_experiment_by_name("lockstep").experiment_id])
    points = {name: [(one.step, one.value) for one in client.get_metric_history(run.info.run_id, name)] for name in run.data.metrics}
    check(points, store_points(home), "followed")


for test in (check_wandb, check_mlflow, check_tensorboard, check_following):
    with tempfile.TemporaryDirectory() as name:
        home, folder = pathlib.Path(name) / "home", pathlib.Path(name) / "out"
        folder.mkdir()
        if test is not check_following:
            begin(home)
        test(home, folder)
        os.chdir("/")
        print(f"{test.__name__}: as the store has it")
