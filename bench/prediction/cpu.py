#!/usr/bin/env python3
"""Four jobs on two CPU ranks, each predicted after one run of the other three: how far off is the prediction?

GPT with dp=2, Llama with ZeRO-3, GPT with tp=2, a CNN with dp=2. In a store of its own: the machine is calibrated, every job is
trained, and for each job its own run is forgotten (`lockstep profile forget`) before `lockstep train --dry-run` predicts it. What is
compared is the median of several measured runs; the runs go in turn, so that a machine that slows down does so for all. A figure
is worth something only where nothing else runs (the report says what the load was).

Writes bench/reports/prediction_cpu.md and .json. The standard library only.

    python3 bench/prediction/cpu.py                 # ten minutes of two cores
    python3 bench/prediction/cpu.py --quick         # does it work at all
"""
import argparse
import json
import os
import pathlib
import platform
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIMIT = 6.0  # percent
RANKS = 2
GPT = {"arch": "gpt", "layers": 6, "hidden": 384, "heads": 6, "vocab": 256, "max_sequence": 256}
LLAMA = {"arch": "llama", "layers": 6, "hidden": 320, "heads": 5, "ffn_hidden": 896, "vocab": 256, "max_sequence": 256}
SGD = {"kind": "sgd", "learning_rate": 0.01, "momentum": 0.9}
ADAMW = {"kind": "adamw", "learning_rate": 3e-4}


def idx(path, shape, value):
    """An IDX file of MNIST's kind; what is in the pictures changes no time."""
    size = 1
    for length in shape:
        size *= length
    header = struct.pack(">BBBB", 0, 0, 8, len(shape)) + b"".join(struct.pack(">I", length) for length in shape)
    path.write_bytes(header + bytes((value(i) for i in range(size))))


def make_data(folder):
    text = folder / "text.txt"
    sources = sorted(path for path in pathlib.Path("/usr/share/common-licenses").iterdir() if path.is_file())
    text.write_text("\n".join(path.read_text(errors="replace") for path in sources))
    pictures = folder / "mnist"
    pictures.mkdir()
    for name, count in (("train", 2048), ("t10k", 256)):
        idx(pictures / f"{name}-images-idx3-ubyte", (count, 28, 28), lambda i: i * 37 % 251)
        idx(pictures / f"{name}-labels-idx1-ubyte", (count,), lambda i: i % 10)
    return text, pictures


def jobs(folder, steps):
    text, pictures = make_data(folder)
    words = {"kind": "text", "path": str(text), "tokenizer": "bytes", "holdout": 0}
    common = {"cluster": f"1x{RANKS}xcpu", "communication": {"backend": "gloo"}, "threads_per_rank": 1,
              "checkpoint": {"every": "0", "final": False}, "seed": 1, "steps": steps}
    language = {"data": words, "optimizer": ADAMW, "batch": {"micro": 4, "sequence_length": 256}}
    made = {
        "GPT, dp=2": {"model": GPT, **language, "layout": {"dp": 2}},
        "Llama, ZeRO-3": {"model": LLAMA, **language, "layout": {"shard": 2, "zero": 3}},
        "GPT, tp=2": {"model": GPT, **language, "layout": {"tp": 2}},
        "CNN, dp=2": {"model": "mnist-cnn", "data": {"kind": "mnist", "path": str(pictures)}, "optimizer": SGD,
                      "batch": {"micro": 64}, "layout": {"dp": 2}},
    }
    files = {}
    for number, (name, job) in enumerate(made.items()):
        files[name] = folder / f"job{number}.yaml"
        files[name].write_text(json.dumps({**common, **job}))
    return files


class Store:
    """One $LOCKSTEP_HOME."""

    def __init__(self, lockstep, home):
        self.lockstep, self.home = lockstep, pathlib.Path(home)

    def run(self, *arguments, timeout=1800):
        environment = {**os.environ, "LOCKSTEP_HOME": str(self.home)}
        environment.pop("LOCKSTEP_NO_OBSERVATIONS", None)
        done = subprocess.run([self.lockstep, *map(str, arguments)], env=environment, capture_output=True, text=True,
                              timeout=timeout)
        if done.returncode != 0:
            sys.exit(f"lockstep {' '.join(map(str, arguments))}: {done.stderr[-3000:]}")
        return done.stdout

    def copy(self, home):
        shutil.copytree(self.home, home)
        return Store(self.lockstep, home)

    def train(self, job):
        last = [line for line in self.run("train", job, "--json").splitlines() if line.startswith("{")][-1]
        result = json.loads(last)
        return result["seconds_per_step"], result["run"]

    def predict(self, job):
        # One document, or lines of which the last one is it.
        text = self.run("train", job, "--dry-run", "--json")
        plan = json.loads(text[text.index("{"):])
        return plan["best"]["prediction"]["step_seconds"]


def measure(args, folder):
    store = Store(args.lockstep, folder / "home")
    store.home.mkdir()
    files = jobs(folder, args.steps)
    store.run("calibrate", next(iter(files.values())), "--ranks", RANKS, "--backend", "gloo", *(["--quick"] if args.quick else []))
    calibrated = store.copy(folder / "calibrated")
    seconds = {name: [] for name in files}
    runs = {}
    for round_ in range(args.rounds):
        for name, file in files.items():
            # Only the first run of each is seen by predictions.
            where = store if round_ == 0 else Store(args.lockstep, folder / "aside")
            if not where.home.exists():
                shutil.copytree(calibrated.home, where.home)
            taken, run = where.train(file)
            seconds[name].append(taken)
            runs.setdefault(name, run)
    rows = []
    for name, file in files.items():
        others = store.copy(folder / f"without-{len(rows)}")
        others.run("profile", "forget", runs[name])
        measured = statistics.median(seconds[name])
        before, after = calibrated.predict(file), others.predict(file)
        rows.append({"job": name, "measured_seconds": measured, "all_measured": seconds[name], "calibrated": before,
                     "after_three": after, "calibrated_percent": 100 * (before / measured - 1),
                     "after_three_percent": 100 * (after / measured - 1)})
    return rows


def report(args, rows, load):
    cpu = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "")
    version = subprocess.run([args.lockstep, "--version"], capture_output=True, text=True).stdout.strip()
    commit = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty"], capture_output=True, text=True).stdout.strip()
    worst = max(abs(row["after_three_percent"]) for row in rows)
    lines = ["# Four jobs on a CPU, each predicted after a run of the three others", "",
             f"{time.strftime('%Y-%m-%d')}, {cpu or platform.machine()}, {os.cpu_count()} cores, load {load:.1f} before, "
             f"{version}, commit {commit}. {RANKS} ranks over gloo, {args.steps} steps, median of {args.rounds} runs in turn. "
             f"`python3 bench/prediction/cpu.py{' --quick' if args.quick else ''}`", "",
             "| job | measured step | runs differ by | predicted, calibrated only | off by | predicted after three | off by |",
             "|---|---|---|---|---|---|---|"]
    for row in rows:
        spread = 100 * (max(row["all_measured"]) / min(row["all_measured"]) - 1)
        lines.append(f"| {row['job']} | {1e3 * row['measured_seconds']:.1f} ms | {spread:.1f}% | {1e3 * row['calibrated']:.1f} ms | "
                     f"{row['calibrated_percent']:+.1f}% | {1e3 * row['after_three']:.1f} ms | {row['after_three_percent']:+.1f}% |")
    lines += ["", f"Worst after three observed runs: {worst:.1f}% (limit {LIMIT:.0f}%)."]
    if load > 0.5:
        lines.append("Other programs ran: figures of this report are of a look, not of a measurement.")
    return "\n".join(lines) + "\n", worst


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lockstep", default=str(ROOT / "build/release/lockstep"))
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="few steps, one round, a quick calibration; no report kept")
    parser.add_argument("--report", default=str(ROOT / "bench/reports/prediction_cpu"))
    parser.add_argument("--keep", type=pathlib.Path, help="folder for stores and jobs that stays (default: a temporary one)")
    args = parser.parse_args()
    if args.quick:
        args.steps, args.rounds = 8, 1
    load = os.getloadavg()[0]
    if args.keep:
        args.keep.mkdir(parents=True)
        rows = measure(args, args.keep)
    else:
        with tempfile.TemporaryDirectory() as folder:
            rows = measure(args, pathlib.Path(folder))
    text, worst = report(args, rows, load)
    print(text)
    if not args.quick:
        pathlib.Path(args.report + ".md").write_text(text)
        pathlib.Path(args.report + ".json").write_text(json.dumps({"load": load, "rows": rows}, indent=1) + "\n")
    sys.exit(0 if worst <= LIMIT else 1)


if __name__ == "__main__":
    main()
