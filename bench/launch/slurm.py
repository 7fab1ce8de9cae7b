#!/usr/bin/env python3
"""`lockstep launch --on slurm` and `lockstep tune --on slurm` on a real Slurm cluster of four nodes on this machine.

    sudo python3 bench/launch/slurm.py [--lockstep build/release/lockstep] [--report bench/reports/launch_slurm.md]
    sudo python3 bench/launch/slurm.py --only done,cancel

Every run is submitted and followed by the command a user types; its losses and weights are compared with those of `lockstep
train` of the same job on this machine. bench/recovery/namespaces.py says what a node and a power failure are here.
"""
import argparse
import json
import os
import pathlib
import platform
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench" / "recovery"), str(ROOT / "tests" / "chaos")]
os.environ.setdefault("LOCKSTEP_BUILD_DIR", str(ROOT / "build" / "release"))
os.environ.setdefault("LOCKSTEP_SOURCE_DIR", str(ROOT))
from arena import weights_of  # noqa: E402
from slurm_cluster import SlurmCluster  # noqa: E402

# Beside the cluster of bench/recovery.
PLACE = {"prefix": "lsl", "network": "10.83.0", "port": 17827}
STEPS = 300


class Submitted:
    """One `lockstep` command that follows a submission; what it prints, with the time it came."""

    def __init__(self, launches, *words):
        self.launches = launches
        self.process = subprocess.Popen([launches.lockstep, *map(str, words)], env=launches.environment, cwd=launches.folder,
                                        text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.seen = []
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            self.seen.append((time.monotonic(), line.rstrip("\n")))

    def text(self):
        return "\n".join(line for _, line in self.seen)

    def line(self, pattern, since=0.0):
        return next(((when, line) for when, line in list(self.seen) if when >= since and re.search(pattern, line)), None)

    def wait_for_line(self, pattern, since=0.0, timeout=180):
        def look():
            if self.process.poll() is not None and not self.reader.is_alive() and not self.line(pattern, since):
                raise AssertionError(f"it ended without {pattern!r}:\n{self.text()}")
            return self.line(pattern, since)
        return self.launches.wait(look, f"{pattern!r} in\n", timeout, self.text)

    def ends(self, code=0, timeout=300):
        """The run's result, the last line."""
        try:
            got = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(f"not over after {timeout} s:\n{self.text()}\n{self.launches.squeue()}") from None
        self.reader.join(30)
        assert got == code, f"exit code {got} instead of {code}:\n{self.text()}"
        results = [line for _, line in self.seen if line.startswith("{")]
        return json.loads(results[-1]) if results else {}

    def run(self):
        return self.wait_for_line(r"^submitted to slurm as (\d+), run (\S+)")[1].split()[-1]

    def job(self):
        return re.search(r"as (\d+),", self.wait_for_line(r"^submitted to slurm as")[1]).group(1)


class Launches:
    """A cluster, a shared folder and jobs for it."""

    def __init__(self, cluster, lockstep, folder):
        self.cluster, self.lockstep, self.folder = cluster, lockstep, folder
        self.environment = {**cluster.environment, "LOCKSTEP_HOME": str(folder / "home")}
        words = "the lamb and the wolf walk in step over the hill to the old mill by the river".split()
        rng = random.Random(5)
        self.data = folder / "text.txt"
        self.data.write_text(" ".join(rng.choice(words) for _ in range(20000)))
        self.expected = {}
        self.jobs = 0

    def job(self, steps=STEPS, cluster="3x1xcpu", launch=None, **fields):
        """A job file of its own folder, and that folder."""
        self.jobs += 1
        folder = self.folder / f"job-{self.jobs}"
        folder.mkdir()
        job = {"name": f"gpt-{self.jobs}", "model": {"arch": "gpt", "layers": 2, "hidden": 64, "heads": 2, "vocab": 256,
                                                     "max_sequence": 64},
               "cluster": cluster, "data": {"kind": "text", "path": str(self.data)},
               "batch": {"micro": 4, "accumulation": 2, "sequence_length": 64},
               "optimizer": {"kind": "adamw", "learning_rate": 1e-3}, "steps": steps, "threads_per_rank": 1, "seed": 3,
               "checkpoint": {"directory": str(folder / "checkpoints"), "every_steps": 50, "keep": 3},
               "launch": launch or {}, **fields}
        (folder / "job.yaml").write_text(json.dumps(job))
        return folder

    def here(self, steps=STEPS, cluster="3x1xcpu"):
        """Losses and weights of the same job by `lockstep train` on this machine."""
        key = (steps, cluster)
        if key not in self.expected:
            folder = self.job(steps, cluster)
            environment = {**os.environ, "LOCKSTEP_HOME": str(folder / "home")}
            done = subprocess.run([self.lockstep, "train", "job.yaml", "--json"], cwd=folder, env=environment, text=True,
                                  capture_output=True, timeout=600)
            assert done.returncode == 0, done.stderr
            result = json.loads(done.stdout.strip().splitlines()[-1])
            self.expected[key] = {"final_loss": result["final_loss"], "weights": weights_of(folder / "checkpoints"),
                                  "losses": self.losses(result["run"], folder / "home")}
        return self.expected[key]

    def losses(self, run, home=None):
        out = subprocess.run([self.lockstep, "report", run, "--json"], capture_output=True, text=True, check=True,
                             env={**os.environ, "LOCKSTEP_HOME": str(home or self.folder / "home")}).stdout
        report = json.loads(out)
        return {int(step): loss for step, loss, *_ in report["loss"]}

    def status(self, run):
        out = subprocess.run([self.lockstep, "report", run, "--json"], capture_output=True, text=True, check=True,
                             env=self.environment).stdout
        return json.loads(out)["run"]["status"]

    def check_same(self, folder, run, result, steps=STEPS):
        expected = self.here(steps)
        assert result["final_loss"] == expected["final_loss"], (result["final_loss"], expected["final_loss"])
        assert weights_of(folder / "checkpoints") == expected["weights"], "other weights"
        mine = self.losses(run)
        assert mine == expected["losses"], "other losses"
        assert self.status(run) == "done", self.status(run)
        return {"losses_compared": len(mine), "losses_and_weights": "identical"}

    def submit(self, folder, *flags):
        self.cluster.wait_for_nodes()
        return Submitted(self, "launch", "--on", "slurm", folder / "job.yaml", "--json", *flags)

    def squeue(self):
        return self.cluster.run("squeue") + self.cluster.run("sinfo", "-N")

    def wait(self, condition, what, timeout=180, more=str):
        deadline = time.monotonic() + timeout
        while True:
            found = condition()
            if found:
                return found
            if time.monotonic() > deadline:
                raise AssertionError(f"{what}: not within {timeout} s\n{more()}\n{self.squeue()}")
            time.sleep(0.05)

    def steps_of(self, run):
        try:
            return len(self.losses(run))
        except subprocess.CalledProcessError:
            return 0

    def wait_for_steps(self, run, count):
        self.wait(lambda: time.sleep(0.3) or self.steps_of(run) >= count, f"{count} steps")

    def wait_until_free(self):
        """Seconds until Slurm has no job any more."""
        begin = time.monotonic()
        self.wait(lambda: not self.cluster.run("squeue", "-h").strip(), "the end of the Slurm job")
        return time.monotonic() - begin

    # --- drills ----------------------------------------------------------------------------------------------------------
    def done(self):
        """submitted, followed to the end"""
        folder = self.job()
        begin = time.monotonic()
        command = self.submit(folder)
        result = command.ends()
        seconds = time.monotonic() - begin
        return {"slurm_job": command.job(), "seconds": seconds, **self.check_same(folder, command.run(), result)}

    def cancel(self):
        """cancelled while it runs (`launch --cancel RUN`): it saves; submitted again with --resume it ends"""
        folder = self.job(steps=1500)
        command = self.submit(folder)
        run = command.run()
        self.wait_for_steps(run, 30)
        begin = time.monotonic()
        Submitted(self, "launch", "--cancel", run).ends()
        command.ends(code=130)
        seconds = time.monotonic() - begin
        saved = weights_of(folder / "checkpoints")[0]
        assert self.status(run) == "interrupted", self.status(run)
        again = self.submit(folder, "--resume")
        result = again.ends()
        expected = self.here(1500)
        assert result["final_loss"] == expected["final_loss"]
        assert weights_of(folder / "checkpoints") == expected["weights"]
        return {"exit_code": 130, "seconds_to_the_end": seconds, "saved": saved, "after_the_resume": "identical weights"}

    def waiting(self):
        """cancelled while it waits for nodes"""
        folder = self.job(launch={"slurm": {"nodelist": "n1"}, "spares": 1})
        blocker = self.cluster.run("sbatch", "--parsable", "--nodes=4", "--exclusive", "--wrap=sleep 600").strip()
        try:
            self.wait(lambda: "RUNNING" in self.cluster.run("squeue", "-h", "-o", "%T"), "the job before it")
            command = Submitted(self, "launch", "--on", "slurm", folder / "job.yaml", "--cancel-on-interrupt")
            command.wait_for_line("queued")
            command.process.send_signal(2)
            command.ends(code=130)
        finally:
            self.cluster.run("scancel", blocker)
        return {"exit_code": 130, "said": re.search(r"queued, (\S+)", command.text()).group(1)}

    def limit(self):
        """a time limit of a minute: it saves before, is requeued, goes on by itself and ends"""
        folder = self.job(steps=1500, launch={"time": "1m", "notice": "50s"})
        command = self.submit(folder)
        saved, _ = command.wait_for_line("Slurm starts it again", timeout=150)
        again, _ = command.wait_for_line(r"started again 1 time", since=saved, timeout=150)
        running, _ = command.wait_for_line(r"running, on .*started again", since=again, timeout=150)
        result = command.ends(timeout=600)
        starts = max(int(number) for number in re.findall(r"started again (\d+)", command.text()))
        return {"starts": starts, "started_again_after": running - saved,
                **self.check_same(folder, command.run(), result, 1500)}

    def spare(self):
        """a node that holds a rank is powered off; the spare node takes its place"""
        return self.power_off(2, {"spares": 1}, True)

    def batch_host(self):
        """the first node, which leads and runs the batch script, is powered off; the spare takes its place, the log goes on"""
        return self.power_off(1, {"spares": 1}, True)

    def smaller(self):
        """a node is powered off and there is no spare: the run goes on with fewer"""
        return self.power_off(2, {}, False, steps=400)

    def power_off(self, node, launch, same, steps=1500):
        folder = self.job(steps=steps, launch=launch)
        self.here(steps)
        command = self.submit(folder)
        run = command.run()
        self.wait_for_steps(run, 50)
        begin = time.monotonic()
        self.cluster.power_off(node)
        recovered, _ = command.wait_for_line("recovered in", begin)
        result = command.ends()
        freed = self.wait_until_free()
        self.cluster.power_on(node)
        figures = {"recovered": recovered - begin, "world": result["world"], "lost_steps": result["lost_steps"],
                   "nodes_free_after": freed}
        if same:
            return {**figures, **self.check_same(folder, run, result, steps)}
        mine, others = self.losses(run), self.here(steps)["losses"]
        apart = [step for step in sorted(mine) if mine[step] != others[step]]
        first = max((abs(mine[step] - others[step]) for step in apart if step < apart[0] + 50), default=0.0)
        assert first < 1e-4, first  # round-off, which grows with the steps
        last = abs(result["final_loss"] - self.here(steps)["final_loss"])
        return {**figures, "loss_difference_in_50_steps": f"{first:.1e}", "at_the_end": f"{last:.1e}"}

    def tune(self):
        """a study of a job with four lanes as a job array; the node of one lane is powered off on the way"""
        folder = self.job(steps=40, cluster="1x2xcpu", tune={
            "knobs": {"micro_batch": {"choices": [1, 2, 4, 8]}, "accumulation": {"choices": [1, 2, 4, 8]},
                      "bucket_mib": {"choices": [0.25, 1, 4]}}, "constraints": ["micro_batch * accumulation == 8"]})
        self.cluster.wait_for_nodes()
        command = Submitted(self, "tune", folder / "job.yaml", "--on", "slurm", "--parallel", 4, "--trials", 16, "--trial-seconds", 60,
                            "--json")
        job = re.search(r"Slurm job (\d+)", command.wait_for_line("trials run as Slurm job")[1]).group(1)
        self.wait(lambda: list((self.folder / "home" / "studies").glob("*/array-*/2.result")), "a result of lane 2", 240, command.text)
        where = self.cluster.run("squeue", "-h", "-r", "-j", f"{job}_2", "-o", "%N").strip()
        self.cluster.power_off(int(where[1:]))
        result = command.ends(timeout=900)
        freed = self.wait_until_free()
        self.cluster.power_on(int(where[1:]))
        assert result["status"] == "done" and result["trials"] == 16, result
        again = len(list((self.folder / "home" / "studies").glob("*/array-*/slurm-*.out"))) - 4
        assert again >= 1, "no task was submitted again"
        return {"trials": result["trials"], "lanes": 4, "tasks_submitted_again": again, "best": json.dumps(result["best"]["config"]),
                "nodes_free_after": freed}


NAMES = ("done", "cancel", "waiting", "limit", "spare", "batch_host", "smaller", "tune")


def shown(figures):
    return ", ".join(f"{name.replace('_', ' ')} {f'{value:.2f} s' if isinstance(value, float) else value}"
                     for name, value in figures.items())


def write_report(path, rows):
    """Drills that were not run this time keep their rows."""
    path = pathlib.Path(path)
    kept = json.loads(path.with_suffix(".json").read_text())["drills"] if path.with_suffix(".json").exists() else {}
    kept.update({name: {"what": text, **figures} for name, text, figures in rows})
    rows = [(name, kept[name].pop("what"), kept[name]) for name in NAMES if name in kept]
    slurm = subprocess.check_output(["slurmctld", "-V"], text=True).strip()
    machine = f"{os.cpu_count()} cores, Linux {platform.release()}, {slurm}"
    path.write_text(
        "# `--on slurm` on a Slurm cluster of one machine\n\n"
        f"{time.strftime('%Y-%m-%d')}, {machine}. Four nodes in network, PID, mount and host-name namespaces on one bridge, three ranks "
        "(and a spare node where it says so), `sudo python3 bench/launch/slurm.py`. Every run is submitted and followed by `lockstep launch "
        "--on slurm`. \"identical\": every weight, and every loss that `lockstep report` keeps (at most 400 of a run), is bit for bit that of `lockstep "
        "train` of the same job on this machine. "
        "\"Powered off\": the node's link goes down first, then its processes are killed. Seconds are on the submitter's clock, from before "
        "that to the run's own line in what the command prints.\n\n"
        "| drill | figures |\n|---|---|\n" +
        "".join(f"| {text} | {shown(figures)} |\n" for _, text, figures in rows))
    path.with_suffix(".json").write_text(json.dumps(
        {"date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "machine": machine,
         "drills": {name: {"what": text, **figures} for name, text, figures in rows}}, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lockstep", default=str(ROOT / "build/release/lockstep"))
    parser.add_argument("--only", default=",".join(NAMES), help="drills, of " + ", ".join(NAMES))
    parser.add_argument("--report", help="write the table here too, and .json beside it")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # the cluster goes with us
    folder = pathlib.Path(tempfile.mkdtemp(prefix="lockstep-launch-"))
    rows = []
    with SlurmCluster(4, **PLACE) as cluster:
        launches = Launches(cluster, str(pathlib.Path(options.lockstep).resolve()), folder)
        for name in options.only.split(","):
            action = getattr(launches, name)
            figures = action()
            rows.append((name, action.__doc__, figures))
            print(f"{action.__doc__}: {shown(figures)}", flush=True)
            if options.report:
                write_report(options.report, rows)
    shutil.rmtree(folder, ignore_errors=True)  # kept where a drill failed
    return 0


if __name__ == "__main__":
    sys.exit(main())
