"""Drills on a real Slurm cluster of this machine: a node is powered off, a node's network is cut, a time limit is near.

    sudo python3 bench/recovery/slurm_drill.py [--lockstep build/release/lockstep] [--report bench/reports/slurm_drill.md]

Four nodes, a job that wants three: one is spare. Every drill is compared with the same job undisturbed. Where the node
that leads is taken away, the step is started from outside the nodes (srun), since with sbatch that node also runs the
script: Slurm ends such a job, starts it again on other nodes, and it goes on from its last checkpoint.
"""
import argparse
import json
import os
import pathlib
import random
import re
import sqlite3
import subprocess
import sys
import tempfile
import time

from slurm_cluster import SlurmCluster

SCRIPT = """#!/bin/bash
#SBATCH --job-name={name} --nodes=4 --ntasks-per-node=1 --no-kill --requeue --open-mode=append {options}
#SBATCH --output={folder}/out.txt
export LOCKSTEP_TOKEN={token} LOCKSTEP_HOME={folder}/home
srun --no-kill --kill-on-bad-exit=0 {lockstep} launch {folder}/job.yaml --json
code=$?
[ $code -eq 75 ] && scontrol requeue $SLURM_JOB_ID
exit $code
"""


class Drill:
    """One job on the cluster, watched through what it writes."""

    def __init__(self, cluster, lockstep, folder, name, steps=400, options="", from_outside=False, **fields):
        self.cluster = cluster
        self.folder = folder / name
        self.folder.mkdir()
        words = "the lamb and the wolf walk in step over the hill to the old mill by the river".split()
        rng = random.Random(5)
        (self.folder / "text.txt").write_text(" ".join(rng.choice(words) for _ in range(20000)))
        job = {"model": {"arch": "gpt", "layers": 2, "hidden": 64, "heads": 2, "vocab": 256, "max_sequence": 64},
               "cluster": "3x1xcpu", "data": {"kind": "text", "path": str(self.folder / "text.txt")},
               "batch": {"micro": 4, "accumulation": 2, "sequence_length": 64},
               "optimizer": {"kind": "adamw", "learning_rate": 1e-3}, "steps": steps, "threads_per_rank": 1, "seed": 3,
               "checkpoint": {"directory": str(self.folder / "checkpoints"), "every_steps": 50}, **fields}
        (self.folder / "job.yaml").write_text(json.dumps(job))
        script = self.folder / "job.sh"
        script.write_text(SCRIPT.format(name=name, folder=self.folder, lockstep=lockstep, options=options,
                                        token=os.urandom(8).hex()))
        self.out = self.folder / "out.txt"
        self.seen = []  # (time, line)
        if from_outside:
            environment = {**cluster.environment, "LOCKSTEP_TOKEN": os.urandom(8).hex(),
                           "LOCKSTEP_HOME": str(self.folder / "home")}
            subprocess.Popen(["srun", f"--job-name={name}", *options.split(), "--ntasks-per-node=1", "--no-kill",
                              "--kill-on-bad-exit=0", lockstep, "launch", str(self.folder / "job.yaml"), "--json"],
                             env=environment, stdin=subprocess.DEVNULL, stdout=open(self.out, "w"),
                             stderr=subprocess.STDOUT, cwd="/")
        else:
            cluster.run("sbatch", "--parsable", str(script))

    def read(self):
        lines = self.out.read_text(errors="replace").splitlines() if self.out.exists() else []
        for line in lines[len(self.seen):]:
            self.seen.append((time.monotonic(), line))

    def wait_for_line(self, pattern, since=0.0, timeout=180):
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            self.read()
            for when, line in self.seen:
                if when >= since and re.search(pattern, line):
                    return when, line
            time.sleep(0.01)
        raise SystemExit(f"{pattern!r} was not said in {timeout} s; {self.out}:\n" + "\n".join(l for _, l in self.seen[-30:]))

    def steps(self):
        try:
            with sqlite3.connect(f"file:{self.folder}/home/runs.db?mode=ro", uri=True, timeout=5) as store:
                return store.execute("SELECT count(DISTINCT step) FROM metrics").fetchone()[0]
        except sqlite3.OperationalError:
            return 0

    def wait_for_steps(self, count, timeout=180):
        deadline = time.monotonic() + timeout
        while self.steps() < count:
            if time.monotonic() > deadline:
                self.read()
                raise SystemExit(f"{self.out}: no {count} steps in {timeout} s\n" + "\n".join(l for _, l in self.seen[-30:]))
            time.sleep(0.05)

    def result(self, timeout=300):
        _, line = self.wait_for_line(r'^\{.*"schema":"lockstep.run/1".*"status":"done"', timeout=timeout)
        return json.loads(line)


def timed(drill, act, detect):
    """Seconds from `act` to the agents' word of it, and to the first step after it."""
    begin = time.monotonic()
    act()
    noticed, line = drill.wait_for_line(detect, begin)
    recovered, _ = drill.wait_for_line(r"recovered in", noticed)
    return {"detected": noticed - begin, "recovered": recovered - begin, "said": line.strip()}


def check(condition, text):
    if not condition:
        raise SystemExit(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    root = pathlib.Path(__file__).resolve().parents[2]
    parser.add_argument("--lockstep", default=str(root / "build/release/lockstep"))
    parser.add_argument("--report", help="write the table here too")
    options = parser.parse_args()
    lockstep = str(pathlib.Path(options.lockstep).resolve())
    folder = pathlib.Path(tempfile.mkdtemp(prefix="lockstep-drill-"))
    rows = []

    def row(name, **figures):
        rows.append((name, figures))
        print(f"{name}: " + ", ".join(f"{k} {v:.2f} s" if isinstance(v, float) else f"{k} {v}" for k, v in figures.items()),
              flush=True)

    with SlurmCluster(4) as cluster:
        whole = Drill(cluster, lockstep, folder, "undisturbed")
        expected = whole.result()["final_loss"]
        row("undisturbed", loss=expected)

        drill = Drill(cluster, lockstep, folder, "spare")
        drill.wait_for_steps(50)
        times = timed(drill, lambda: cluster.power_off(2), r"node n2 is lost")
        end = drill.result()
        check(end["final_loss"] == expected, "the loss differs from the undisturbed run's")
        row("a node that holds ranks is powered off, the spare takes its place", detected=times["detected"],
            recovered=times["recovered"], world=end["world"], identical=end["final_loss"] == expected)

        drill = Drill(cluster, lockstep, folder, "smaller", options="--nodes=3", from_outside=True)
        drill.wait_for_steps(50)
        leader = 1
        times = timed(drill, lambda: cluster.power_off(leader), rf"node n{leader}, which led the run, is lost")
        end = drill.result()
        check(abs(end["final_loss"] - expected) < 1e-3, "the loss differs from the undisturbed run's")
        row("the node that leads is powered off and there is no spare", detected=times["detected"],
            recovered=times["recovered"], world=end["world"], difference=abs(end["final_loss"] - expected))

        for node in (1, 2):
            cluster.heal(node)
            cluster.power_on(node)
        cluster.wait(lambda: len(set(cluster.run("sinfo", "-h", "-N", "-t", "idle", "-o", "%N").split())) == 4, "nodes")

        drill = Drill(cluster, lockstep, folder, "cut", steps=1500, options="--nodes=4", from_outside=True)
        drill.wait_for_steps(50)
        times = timed(drill, lambda: cluster.cut(1), r"node n1, which led the run, is lost")
        _, fenced = drill.wait_for_line(r"out of reach")
        cluster.heal(1)
        end = drill.result()
        row("the network of the node that leads is cut", detected=times["detected"], recovered=times["recovered"],
            world=end["world"], fenced=bool(fenced))

        drill = Drill(cluster, lockstep, folder, "limit", steps=4000, options="--time=2 --signal=USR1@90")
        drill.wait_for_line(r"to be started again|requeue|\"status\":\"interrupted\"", timeout=120)
        end = drill.result(timeout=400)
        row("a time limit is near", steps=end["steps"], resumed=True)

    if options.report:
        table = "\n".join(f"| {name} | " + ", ".join(f"{k} {v:.2f}" if isinstance(v, float) else f"{k} {v}"
                                                      for k, v in figures.items()) + " |" for name, figures in rows)
        pathlib.Path(options.report).write_text(
            "# Drills on a Slurm cluster of one machine\n\n"
            f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores, {subprocess.check_output(['slurmctld', '-V'], text=True).strip()}; "
            "4 nodes in network namespaces, 3 ranks, `bench/recovery/slurm_drill.py`. Seconds are from the moment the node was "
            "taken away.\n\n| drill | what happened |\n|---|---|\n" + table + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
