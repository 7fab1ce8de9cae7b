#!/usr/bin/env python3
"""Drills on a real Slurm cluster of this machine: nodes are powered off, a node's network is cut, a time limit is near.

    sudo python3 bench/recovery/slurm_drill.py [--lockstep build/release/lockstep] [--report bench/reports/slurm_drill.md]
    sudo python3 bench/recovery/slurm_drill.py --only cut,limit

Four nodes (namespaces.py says what a node, a power failure and a cut are here), a job that wants three: one is spare. Every
drill is compared with the same job undisturbed. Where the node that leads is taken away, the step is started from outside
the nodes (srun), since with sbatch that node also runs the script and what the job prints is lost with it.

Seconds are counted from before the network of a node goes, on this machine's clock, to the moment an agent's line has come
through srun into the output file.
"""
import argparse
import json
import os
import pathlib
import platform
import random
import re
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from slurm_cluster import SlurmCluster

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "chaos"))
os.environ.setdefault("LOCKSTEP_BUILD_DIR", str(ROOT / "build" / "release"))
os.environ.setdefault("LOCKSTEP_SOURCE_DIR", str(ROOT))
from arena import weights_of  # noqa: E402

SCRIPT = """#!/bin/bash
#SBATCH --job-name={name} --nodes=4 --ntasks-per-node=1 --no-kill --requeue --open-mode=append {options}
#SBATCH --output={folder}/out.txt
export LOCKSTEP_TOKEN={token} LOCKSTEP_HOME={folder}/home
srun --no-kill --kill-on-bad-exit=0 {lockstep} launch {folder}/job.yaml --json
code=$?
if [ $code -eq 75 ]; then scontrol requeue $SLURM_JOB_ID; sleep 30; fi
exit $code
"""


class Drill:
    """One job on the cluster, watched through what it writes."""

    def __init__(self, cluster, lockstep, folder, name, steps, options="", from_outside=False, **fields):
        self.cluster, self.lockstep, self.name, self.steps_wanted = cluster, lockstep, name, steps
        self.folder = folder / name
        self.folder.mkdir()
        words = "the lamb and the wolf walk in step over the hill to the old mill by the river".split()
        rng = random.Random(5)
        (self.folder / "text.txt").write_text(" ".join(rng.choice(words) for _ in range(20000)))
        job = {"model": {"arch": "gpt", "layers": 2, "hidden": 64, "heads": 2, "vocab": 256, "max_sequence": 64},
               "cluster": "3x1xcpu", "data": {"kind": "text", "path": str(self.folder / "text.txt")},
               "batch": {"micro": 4, "accumulation": 2, "sequence_length": 64},
               "optimizer": {"kind": "adamw", "learning_rate": 1e-3}, "steps": steps, "threads_per_rank": 1, "seed": 3,
               "checkpoint": {"directory": str(self.folder / "checkpoints"), "every_steps": 50, "keep": 3}, **fields}
        (self.folder / "job.yaml").write_text(json.dumps(job))
        self.out = self.folder / "out.txt"
        self.out.touch()
        self.seen = []  # (time, line)
        self.ended = False
        self.outside = None
        if from_outside:
            environment = {**cluster.environment, "LOCKSTEP_TOKEN": os.urandom(8).hex(),
                           "LOCKSTEP_HOME": str(self.folder / "home")}
            self.outside = subprocess.Popen(
                ["srun", f"--job-name={name}", *options.split(), "--ntasks-per-node=1", "--no-kill", "--kill-on-bad-exit=0",
                 lockstep, "launch", str(self.folder / "job.yaml"), "--json"], env=environment, stdin=subprocess.DEVNULL,
                stdout=open(self.out, "w"), stderr=subprocess.STDOUT, cwd="/")
        else:
            script = self.folder / "job.sh"
            script.write_text(SCRIPT.format(name=name, folder=self.folder, lockstep=lockstep, options=options,
                                            token=os.urandom(8).hex()))
            cluster.run("sbatch", "--parsable", str(script))
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        """The next drill finds idle nodes."""
        self.ended = True
        self.reader.join()
        self.cluster.run("scancel", f"--name={self.name}")
        self.cluster.wait(lambda: not self.cluster.run("squeue", "-h", f"--name={self.name}").strip(), "the end of the job")
        if self.outside:
            self.outside.wait(60)

    def read(self):
        with open(self.out, errors="replace") as file:
            rest = ""
            while not self.ended:
                rest += file.read()
                *lines, rest = rest.split("\n")
                now = time.monotonic()
                self.seen += [(now, line) for line in lines]
                time.sleep(0.005)

    def fail(self, text):
        raise SystemExit(f"{self.name}: {text}; the end of {self.out}:\n" + "\n".join(line for _, line in self.seen[-40:]) +
                         "\n" + self.cluster.run("squeue") + self.cluster.run("sinfo", "-N"))

    def check(self, condition, text):
        if not condition:
            self.fail(text)

    def wait_for(self, condition, what, timeout=180):
        deadline = time.monotonic() + timeout
        while True:
            found = condition()
            if found:
                return found
            if time.monotonic() > deadline:
                self.fail(f"{what}: not within {timeout} s")
            time.sleep(0.005)

    def line(self, pattern, since=0.0):
        return next(((when, line) for when, line in list(self.seen) if when >= since and re.search(pattern, line)), None)

    def wait_for_line(self, pattern, since=0.0, timeout=180):
        return self.wait_for(lambda: self.line(pattern, since), repr(pattern), timeout)

    def recorded(self, question):
        try:
            with sqlite3.connect(f"file:{self.folder}/home/runs.db?mode=ro", uri=True, timeout=5) as store:
                return store.execute(question).fetchall()
        except sqlite3.OperationalError:
            return []

    def steps(self):
        found = self.recorded("SELECT coalesce(max(steps), 0) FROM run_steps")
        return found[0][0] if found else 0

    def wait_for_steps(self, count, timeout=180):
        self.wait_for(lambda: time.sleep(0.05) or self.steps() >= count, f"{count} steps", timeout)

    def result(self, timeout=300):
        _, line = self.wait_for_line(r'^\{.*"schema":"lockstep.run/1".*"status":"done"', timeout=timeout)
        return json.loads(line)

    def weights(self):
        return weights_of(self.folder / "checkpoints")

    def losses(self):
        """{step: loss} of the newest run."""
        run = self.recorded("SELECT id FROM runs ORDER BY number DESC LIMIT 1")[0][0]
        out = subprocess.run([self.lockstep, "report", run, "--json"], capture_output=True, text=True, check=True,
                             env={**os.environ, "LOCKSTEP_HOME": str(self.folder / "home")}).stdout
        return {int(step): loss for step, loss, *_ in json.loads(out)["loss"]}

    def lease(self):
        return json.loads((self.folder / "checkpoints" / ".lease").read_text())

    def ranks_on(self, node):
        return self.cluster.pids(node, "lockstep rank ")

    def timed(self, act, detect):
        """Seconds from `act` to the agents' word of it, and to the first step after it."""
        begin = time.monotonic()
        act()
        noticed, line = self.wait_for_line(detect, begin)
        recovered, _ = self.wait_for_line(r"recovered in", noticed)
        return begin, {"detected": noticed - begin, "recovered": recovered - begin}


class Drills:
    def __init__(self, cluster, lockstep, folder):
        self.cluster, self.lockstep, self.folder = cluster, lockstep, folder
        self.made = 0
        self.expected, self.losses_undisturbed = {}, {}  # by steps

    def drill(self, name, steps=400, **options):
        if not name.startswith("undisturbed"):
            self.undisturbed(steps)  # which takes all nodes
        self.cluster.wait_for_nodes()
        self.made += 1
        return Drill(self.cluster, self.lockstep, self.folder, f"{name}-{self.made}", steps, **options)

    def undisturbed(self, steps):
        """Result and weights of the same job when nothing happens."""
        if steps not in self.expected:
            with self.drill("undisturbed", steps=steps) as drill:
                self.expected[steps] = drill.result(), drill.weights()
                self.losses_undisturbed[steps] = drill.losses()
        return self.expected[steps]

    def same(self, drill):
        """The result; its loss and weights are those of the undisturbed run, bit for bit."""
        end, (expected, weights) = drill.result(), self.undisturbed(drill.steps_wanted)
        drill.check(end["final_loss"] == expected["final_loss"], "the loss differs from the undisturbed run's")
        drill.check(drill.weights() == weights, "the weights differ from the undisturbed run's")
        return {"world": end["world"], "lost_steps": end["lost_steps"], "weights": "identical"}

    def close(self, drill, end=None):
        """`end`, or the result of a run that had fewer ranks for a while: equal to round-off, which grows with the steps."""
        end, (expected, _) = end or drill.result(), self.undisturbed(drill.steps_wanted)
        mine, others = drill.losses(), self.losses_undisturbed[drill.steps_wanted]
        apart = [step for step in sorted(mine) if mine[step] != others[step]]
        first = max((abs(mine[step] - others[step]) for step in apart if step < apart[0] + 50), default=0.0)
        last = abs(end["final_loss"] - expected["final_loss"])
        drill.check(first < 1e-4 and last < 1e-2, f"the losses differ from the undisturbed run's by {first}, at the end {last}")
        return {"world": end["world"], "lost_steps": end["lost_steps"], "loss_difference_in_50_steps": f"{first:.1e}",
                "at_the_end": f"{last:.1e}"}

    def spare(self):
        """a node that holds a rank is powered off; the spare node takes its place"""
        with self.drill("spare") as drill:
            drill.wait_for_steps(50)
            _, times = drill.timed(lambda: self.cluster.power_off(2), r"node n2 is lost")
            end = self.same(drill)
        self.cluster.power_on(2)
        return {**times, **end}

    def leader(self):
        """the node that leads is powered off; the next one leads, the spare node takes its place"""
        with self.drill("leader", options="--nodes=4", from_outside=True) as drill:
            drill.wait_for_steps(50)
            _, times = drill.timed(lambda: self.cluster.power_off(1), r"node n1, which led the run, is lost")
            end = self.same(drill)
        self.cluster.power_on(1)
        return {**times, **end}

    def smaller(self):
        """a node is powered off and there is no spare: the run goes on with fewer"""
        with self.drill("smaller", options="--nodes=3 --nodelist=n1,n2,n3", from_outside=True) as drill:
            drill.wait_for_steps(50)
            _, times = drill.timed(lambda: self.cluster.power_off(3), r"node n3 is lost")
            end = self.close(drill)
        self.cluster.power_on(3)
        return {**times, **end}

    def cut(self):
        """the network of a node that holds a rank is cut; the spare takes its place; healed, it comes back with nothing"""
        with self.drill("cut", steps=1500, options="--nodes=4", from_outside=True) as drill:
            drill.wait_for_steps(50)
            before = drill.ranks_on(2)
            drill.check(before, "no ranks were seen on n2")
            _, times = drill.timed(lambda: self.cluster.cut(2), r"node n2 is lost")
            drill.wait_for_steps(drill.steps() + 50)
            self.cluster.heal(2)
            drill.wait_for_line(r"node n2 is back")
            drill.wait_for(lambda: not set(before) & set(drill.ranks_on(2)), "the end of the old ranks on n2")
            end = self.same(drill)
        return {**times, **end, "old_ranks": "ended"}

    def cut_leader(self):
        """the network of the node that leads and has rank 0 is cut: it ends its ranks, the others go on; healed, it is spare"""
        with self.drill("cut_leader", steps=1500, options="--nodes=4", from_outside=True) as drill:
            drill.wait_for_steps(50)
            before = drill.ranks_on(1)
            drill.check(before and drill.lease()["host"] == "n1", "n1 does not have rank 0")
            fenced = []
            watch = threading.Thread(target=lambda: fenced.append(
                drill.wait_for(lambda: not set(before) & set(drill.ranks_on(1)) and time.monotonic(), "the end of n1's ranks")))
            watch.start()
            begin, times = drill.timed(lambda: self.cluster.cut(1), r"node n1, which led the run, is lost")
            watch.join()
            drill.wait_for_steps(drill.steps() + 100)
            drill.check(drill.lease()["host"] != "n1", "n1 still has the checkpoint folder")
            self.cluster.heal(1)
            drill.wait_for_line(r"node n1 is back")
            end = self.same(drill)
        return {**times, "fenced": fenced[0] - begin, **end}

    def batch_host(self):
        """the node that leads and runs the batch script is powered off: the others end the run, the run store tells"""
        with self.drill("batch_host", options="--nodes=3") as drill:
            drill.wait_for_steps(50)
            self.cluster.power_off(1)
            done = drill.wait_for(lambda: drill.recorded("SELECT summary FROM runs WHERE status = 'done'"), "the end of the run")
            end = json.loads(done[0][0])
            figures = {"recovered_after_detection": end["recovery_seconds"][0], **self.close(drill, end)}
        self.cluster.power_on(1)
        return figures

    def limit(self):
        """a time limit is near (SIGUSR1 90 s before): checkpoint, requeue, the next start goes on and ends"""
        with self.drill("limit", steps=1500, options="--time=2 --signal=USR1@90") as drill:
            asked, _ = drill.wait_for_line(r'"status":"interrupted"', timeout=150)
            stopped = json.loads(drill.line(r'"status":"interrupted"')[1])
            drill.check(0 < stopped["steps"] < 1500, f"it was stopped after {stopped['steps']} steps")
            saved = drill.weights()[0]
            again, _ = drill.wait_for_line(r"resum|goes on from", since=asked, timeout=150)
            end = self.same(drill)
        return {"stopped_after_steps": stopped["steps"], "saved": saved, "started_again_after": again - asked, **end}


NAMES = ("spare", "leader", "smaller", "cut", "cut_leader", "batch_host", "limit")
ONCE = ("batch_host", "limit")


def shown(figures):
    def text(value):
        if isinstance(value, list):
            return f"{statistics.median(value):.2f} s (largest of {len(value)}: {max(value):.2f} s)"
        return f"{value:.2f} s" if isinstance(value, float) else value
    return ", ".join(f"{name.replace('_', ' ')} {text(value)}" for name, value in figures.items())


def together(runs):
    """Of several runs of one drill: all seconds, the rest of the last."""
    return {name: [run[name] for run in runs] if isinstance(value, float) and len(runs) > 1 else value
            for name, value in runs[-1].items()}


def write_report(path, rows):
    path = pathlib.Path(path)
    slurm = subprocess.check_output(["slurmctld", "-V"], text=True).strip()
    machine = f"{os.cpu_count()} cores, Linux {platform.release()}, {slurm}"
    path.write_text(
        "# Drills on a Slurm cluster of one machine\n\n"
        f"{time.strftime('%Y-%m-%d')}, {machine}. Four nodes in network, PID, mount and host-name namespaces on one bridge, three "
        "ranks, `sudo python3 bench/recovery/slurm_drill.py`. \"Powered off\": the node's link goes down first, so that nothing is "
        "closed or reset, then its processes are killed. \"Cut\": its link alone. Seconds are from before the link goes to the "
        "agent's line in the job's output (`detected`), to the first step after it (`recovered`), and to the end of the last "
        "rank of the node that was cut off (`fenced`). Where there is no spare, `recovered` has the 2 s of `recovery.wait`. Slurm "
        "itself starts a requeued job after two minutes. Targets: a dead node within 1 s, a cut within 2 s.\n\n"
        "| drill | figures |\n|---|---|\n" +
        "".join(f"| {text} | {shown(figures)} |\n" for _, text, figures in rows))
    path.with_suffix(".json").write_text(json.dumps(
        {"date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "machine": machine,
         "drills": {name: {"what": text, **figures} for name, text, figures in rows}}, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lockstep", default=str(ROOT / "build/release/lockstep"))
    parser.add_argument("--only", default=",".join(NAMES), help="drills, of " + ", ".join(NAMES))
    parser.add_argument("--repeat", type=int, default=1, help="how often each, but for those that wait for Slurm")
    parser.add_argument("--report", help="write the table here too, and .json beside it")
    options = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="lockstep-drill-"))
    rows = []
    with SlurmCluster(4) as cluster:
        drills = Drills(cluster, str(pathlib.Path(options.lockstep).resolve()), folder)
        for name in options.only.split(","):
            action = getattr(drills, name)
            figures = together([action() for _ in range(1 if name in ONCE else options.repeat)])
            rows.append((name, action.__doc__, figures))
            print(f"{action.__doc__}: {shown(figures)}", flush=True)
            if options.report:
                write_report(options.report, rows)
    shutil.rmtree(folder, ignore_errors=True)  # kept where a drill failed
    return 0


if __name__ == "__main__":
    sys.exit(main())
