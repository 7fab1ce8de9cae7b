#!/usr/bin/env python3
"""Drills on a real Ray cluster of one machine: `lockstep launch --on ray`, faults, and the losses beside a local run's.

    python3 bench/launch/ray_drill.py [--python PYTHON] [--lockstep build/release/lockstep] [--report bench/reports/launch_ray.md]

PYTHON is one that has ray[default] (PyPI); without it the program ends with 77.
"""
import argparse
import contextlib
import json
import os
import pathlib
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "bench"))
from measure import machine  # noqa: E402

STEPS, FAULT_STEP = 300, 60
SKIPPED = 77


def wait_for(condition, what, timeout=300):
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError(f"{what}: not in {timeout} s")


def parent_of(pid):
    return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def command_of(pid):
    return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()


class Drill:
    """A folder with a run store, a job, and a cluster to run it on."""

    def __init__(self, lockstep, python, cluster, folder):
        self.lockstep, self.python, self.folder = lockstep, python, folder
        self.address, self.head = cluster["address"], cluster["head"]
        self.environment = {**os.environ, "LOCKSTEP_HOME": str(folder / "home")}
        words = "the lamb and the wolf walk in step over the hill to the old mill by the river".split()
        rng = random.Random(5)
        (folder / "text.txt").write_text(" ".join(rng.choice(words) for _ in range(20000)))

    def job(self, name, **launch):
        launch = {"environment": {"LOCKSTEP_HOME": self.environment["LOCKSTEP_HOME"]},
                  "ray": {"address": self.address, "python": self.python}, **launch}
        job = {"name": name, "cluster": "2x1xcpu", "steps": STEPS, "threads_per_rank": 1, "seed": 3,
               "model": {"arch": "gpt", "layers": 4, "hidden": 96, "heads": 4, "vocab": 256, "max_sequence": 64},
               "data": {"kind": "text", "path": str(self.folder / "text.txt")},
               "batch": {"micro": 8, "accumulation": 2, "sequence_length": 64},
               "optimizer": {"kind": "adamw", "learning_rate": 2e-3, "schedule": "cosine", "warmup_steps": 5,
                             "clip_norm": 1.0},
               "launch": launch}
        path = self.folder / f"{name}.yaml"
        path.write_text(json.dumps(job))
        return path

    def start(self, *arguments):
        return subprocess.Popen([self.lockstep, "launch", *map(str, arguments), "--json"], cwd=self.folder, text=True,
                                env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def finish(self, process, expect=0):
        out, err = process.communicate(timeout=900)
        if process.returncode != expect:
            raise AssertionError(f"exit {process.returncode} instead of {expect}\n{out[-2000:]}\n{err[-6000:]}")
        result = json.loads(out.strip().splitlines()[-1])
        if expect == 0 and "restarts" not in result:
            raise AssertionError(f"no result of the run itself: {result}\n{err[-6000:]}")
        return result, err

    def losses(self, run):
        out = subprocess.run([self.lockstep, "report", run, "--json"], capture_output=True, text=True, check=True,
                             env=self.environment).stdout
        return {int(step): loss for step, loss, *_ in json.loads(out)["loss"]}

    def run_folder(self, name):
        """Of the newest run of that name, once it has ranks."""
        found = sorted((self.folder / "home" / "runs").glob(f"*-{name}"))
        return found[-1] if found else None

    def steps_done(self, name):
        folder = self.run_folder(name)
        if folder is None:
            return 0
        with contextlib.suppress(sqlite3.OperationalError), \
                contextlib.closing(sqlite3.connect(f"file:{self.folder}/home/runs.db?mode=ro", uri=True, timeout=5)) as store:
            return store.execute("SELECT coalesce(max(steps), 0) FROM run_steps WHERE run = (SELECT number FROM runs WHERE id = ?)",
                                 (folder.name,)).fetchone()[0]
        return 0

    def ranks(self, name):
        """[pid by rank], nodes by rank."""
        def look():
            for told in (self.run_folder(name) or pathlib.Path("/nonexistent")).glob("**/ranks.json"):
                with contextlib.suppress(ValueError):
                    found = json.loads(told.read_text())
                    if found["pids"] and all(pathlib.Path(f"/proc/{pid}").exists() for pid in found["pids"]):
                        return found["pids"]
            return None
        return wait_for(look, "ranks")

    def at_fault(self, name):
        wait_for(lambda: self.steps_done(name) >= FAULT_STEP, "steps before the fault")
        return self.ranks(name)

    def api(self, path):
        with urllib.request.urlopen(self.address + path, timeout=30) as answer:
            return json.load(answer)


def compare(mine, other):
    common = sorted(set(mine) & set(other))
    same = sum(mine[step] == other[step] for step in common)
    return {"steps": max(mine), "losses compared": len(common), "bit-identical": same,
            "largest difference": max(abs(mine[step] - other[step]) for step in common)}


def row(drill, result, reference, seconds, **more):
    return {**compare(drill.losses(result["run"]), reference), "restarts": result.get("restarts", 0),
            "recovery seconds": [round(one, 2) for one in result.get("recovery_seconds", [])],
            "wall seconds": round(seconds, 1), **more}


def undisturbed(drill, reference):
    began = time.monotonic()
    result, _ = drill.finish(drill.start(drill.job("plain"), "--on", "ray"))
    listed = drill.api("/api/jobs/")
    mine = [job for job in listed if job["submission_id"] == result["submission"]["id"]]
    assert len(mine) == 1 and mine[0]["status"] == "SUCCEEDED", listed
    assert "TOKEN" not in json.dumps(mine), "the API shows a token"
    return row(drill, result, reference, time.monotonic() - began, **{"API": "GET /api/jobs/ lists it, SUCCEEDED"})


def killed_rank(drill, reference):
    began = time.monotonic()
    process = drill.start(drill.job("rank"), "--on", "ray")
    os.kill(drill.at_fault("rank")[1], signal.SIGKILL)
    result, _ = drill.finish(process)
    assert result["restarts"] == 1, result
    return row(drill, result, reference, time.monotonic() - began)


def killed_actor(drill, reference, name, **launch):
    """Ray's worker process of an actor, below which the agent and its rank are."""
    began = time.monotonic()
    process = drill.start(drill.job(name, **launch), "--on", "ray")
    rank = drill.at_fault(name)[1]
    agent = parent_of(rank)
    actor = parent_of(agent)
    assert "ray::" in command_of(actor), command_of(actor)
    os.kill(actor, signal.SIGKILL)
    wait_for(lambda: not pathlib.Path(f"/proc/{agent}").exists(), "end of the agent")
    result, log = drill.finish(process)
    assert result["restarts"] >= 1 and "its actor was lost" in log, log[-3000:]
    return row(drill, result, reference, time.monotonic() - began)


def killed_actor_with_spare(drill, reference):
    return killed_actor(drill, reference, "spare", spares=1)


def killed_actor_without_spare(drill, reference):
    return killed_actor(drill, reference, "alone")


def lost_machine(drill, reference):
    """The raylet of a Ray node that is not the head: all of the node's processes end, and its place moves to another."""
    began = time.monotonic()
    process = drill.start(drill.job("machine"), "--on", "ray")
    raylets = [parent_of(parent_of(parent_of(rank))) for rank in drill.at_fault("machine")]
    os.kill(next(pid for pid in raylets if pid != drill.head), signal.SIGKILL)
    result, log = drill.finish(process)
    assert result["restarts"] >= 1 and "its actor was lost" in log, log[-3000:]
    return row(drill, result, reference, time.monotonic() - began)


def cancelled(drill, _):
    """`lockstep launch --cancel` lets the run save."""
    process = drill.start(drill.job("stopped"), "--on", "ray")
    drill.at_fault("stopped")
    run = drill.run_folder("stopped").name
    subprocess.run([drill.lockstep, "launch", "--cancel", run], env=drill.environment, check=True, capture_output=True)
    result, _ = drill.finish(process, expect=130)
    saved = sorted(path.name for path in (drill.folder / "home" / "runs" / run / "checkpoints").glob("step-*"))
    assert saved, "no checkpoint"
    state = drill.api(f"/api/jobs/{result['submission']['id']}")["status"]
    assert state == "STOPPED", state
    return {"state": state, "saved": saved[-1]}


DRILLS = [("undisturbed", undisturbed), ("a rank process is killed (SIGKILL)", killed_rank),
          ("the worker process of an actor is killed; a spare node takes its place", killed_actor_with_spare),
          ("the same without a spare: fewer nodes, then Ray's new actor joins", killed_actor_without_spare),
          ("cancelled", cancelled),
          ("a Ray node is lost, without a spare: its place moves to another one", lost_machine)]


@contextlib.contextmanager
def ray_cluster(python, nodes, cpus):
    process = subprocess.Popen([python, str(ROOT / "bench/launch/ray_cluster.py"), str(nodes), str(cpus)], text=True,
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        line = process.stdout.readline()
        if not line:
            raise RuntimeError("the Ray cluster did not start")
        yield json.loads(line)
    finally:
        process.stdin.close()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()


def find_python(given):
    for python in [given] if given else [os.environ.get("LOCKSTEP_RAY_PYTHON"), "python3"]:
        if python and subprocess.run([python, "-c", "import ray, aiohttp"], capture_output=True).returncode == 0:
            return shutil.which(python)
    return None


def write_report(path, rows, version):
    here = machine()
    lines = ["# Drills on a Ray cluster of one machine", "",
             f"{here['date'][:10]}, {here['cores']} cores, Linux {here['kernel']}, ray {version} (PyPI), commit {here['commit']}. Three Ray "
             f"nodes on one machine, a GPT of 4 layers on 2 nodes of one CPU rank, {STEPS} steps, the fault after step "
             f"{FAULT_STEP}: `python3 bench/launch/ray_drill.py`. Losses are compared with a local run (`lockstep launch` without `--on`), "
             "all digits. Without a spare the run goes on with one node for a while; the different order of sums then shows in the last digits and grows with the steps.", "",
             "| drill | figures |", "|---|---|"]
    for name, figures in rows:
        lines.append(f"| {name} | " + ", ".join(f"{key} {value}" for key, value in figures.items()) + " |")
    pathlib.Path(path).write_text("\n".join(lines) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", help="a Python that has ray[default] (default: LOCKSTEP_RAY_PYTHON, then python3)")
    build = os.environ.get("LOCKSTEP_BUILD_DIR", str(ROOT / "build/release"))
    parser.add_argument("--lockstep", default=f"{build}/lockstep")
    parser.add_argument("--only", default="", help="drills whose name holds this")
    parser.add_argument("--report", help="write the table here too")
    options = parser.parse_args()
    python = find_python(options.python)
    if python is None:
        print("skipped: no Python with ray[default]; make venv-launch, or set LOCKSTEP_RAY_PYTHON")
        sys.exit(SKIPPED)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="lockstep-ray-"))
    rows = []
    try:
        with ray_cluster(python, nodes=3, cpus=2) as cluster:
            drill = Drill(os.path.abspath(options.lockstep), python, cluster, folder)
            local, _ = drill.finish(drill.start(drill.job("local")))
            reference = drill.losses(local["run"])
            for name, play in [one for one in DRILLS if options.only in one[0]]:
                rows.append((name, play(drill, reference)))
                print(f"{name}: {json.dumps(rows[-1][1])}", flush=True)
                exact = "without" not in name and "bit-identical" in rows[-1][1]
                if exact:
                    assert rows[-1][1]["bit-identical"] == rows[-1][1]["losses compared"], rows[-1]
                    assert rows[-1][1]["losses compared"] >= 0.8 * STEPS, rows[-1]
            version = cluster["ray"]
        if options.report:
            write_report(options.report, rows, version)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
