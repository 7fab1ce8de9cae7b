#!/usr/bin/env python3
"""What a checkpoint costs a job on a GPU: the stall of every save, and the steps that run while it is written against those that do not.

usage: bench/checkpoint/gpu.py [--lockstep build/cuda/lockstep] [--job specs/jobs/llama-1b-h200.yaml] [--steps 200] [--every 60]
Steps are compared by the clock of the store, from one step's record to the next, so that what a step loses outside its own count is
seen too. Standard library only.
"""
import argparse
import csv
import json
import os
import pathlib
import shutil
import sqlite3
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import measure  # noqa: E402

STALL_LIMIT, SLOWER_LIMIT = 0.1, 0.05


def steps_of(lockstep, home, run):
    """(step, seconds of its own count, wall time of its record)"""
    words = [lockstep, "export", run, "--to", "-", "--format", "csv", "--long", "--metric", "step_seconds", "--rank", "0"]
    done = subprocess.run(words, env={**os.environ, "LOCKSTEP_HOME": str(home)}, capture_output=True, text=True, check=True)
    return [(int(row["step"]), float(row["value"]), float(row["time"])) for row in csv.DictReader(done.stdout.splitlines())]


def saves_of(home, run):
    with sqlite3.connect(f"file:{home / 'runs.db'}?mode=ro", uri=True) as store:
        rows = store.execute("SELECT step, time, data FROM events JOIN runs ON runs.number = events.run WHERE kind = 'checkpoint' "
                             "AND runs.id = ? ORDER BY time", (run,)).fetchall()
    return [{"step": step, "end": when, **json.loads(data)} for step, when, data in rows]


def gpu_name():
    done = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], capture_output=True, text=True,
                          timeout=60)
    return done.stdout.strip() or "no GPU"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lockstep", default=str(measure.ROOT / "build/cuda/lockstep"))
    parser.add_argument("--job", default=str(measure.ROOT / "specs/jobs/llama-1b-h200.yaml"))
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=int, default=60)
    parser.add_argument("--warm-up", type=int, default=10)
    parser.add_argument("--folder", type=pathlib.Path, help="where to write (default: a temporary folder)")
    parser.add_argument("--timeout", type=float, default=500)
    parser.add_argument("--no-report", action="store_true", help="print, but leave bench/reports as it is")
    parser.add_argument("override", nargs="*", help="KEY=VALUE of the job")
    args = parser.parse_args()
    machine = {**measure.machine(), "gpu": gpu_name()}
    folder = pathlib.Path(tempfile.mkdtemp(prefix="lockstep-bench-", dir=args.folder))
    home = folder / "home"
    try:
        said = subprocess.run([args.lockstep, "train", args.job, f"steps={args.steps}", f"checkpoint.every_steps={args.every}",
                               "checkpoint.keep=1", f"checkpoint.directory={folder / 'checkpoints'}", *args.override, "--json"],
                              env={**os.environ, "LOCKSTEP_HOME": str(home)}, capture_output=True, text=True, timeout=args.timeout)
        print(said.stderr[-3000:], file=sys.stderr)
        if said.returncode != 0:
            sys.exit(f"lockstep train ended with {said.returncode}: {said.stdout[-2000:]}")
        run = measure.last_json(said.stdout)["run"]
        steps, saves = steps_of(args.lockstep, home, run), saves_of(home, run)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    free, during, stalled = [], [], []
    for (_, _, before), (step, own, after) in zip(steps, steps[1:]):
        if step <= args.warm_up:
            continue
        if any(save["step"] == step - 1 for save in saves):
            stalled.append(after - before)  # the step after a save began: its record is later by the stall
            continue
        busy = any(save["step"] < step and before < save["end"] for save in saves)
        (during if busy else free).append(after - before)
    if not free or not during:
        sys.exit("too few steps: raise --steps, lower --every")
    free, during = measure.summary(free), measure.summary(during)
    slower = during["median"] / free["median"] - 1
    stalls = [save["stall_seconds"] for save in saves]
    lines = [f"# Checkpoints of a job on a GPU: {pathlib.Path(args.job).stem}", "",
             f"{machine['gpu']}, {machine['cores']} x {machine['cpu']}, {machine['date']}, commit {machine['commit']}.",
             f"{args.steps} steps, a checkpoint every {args.every}; {saves[0]['bytes'] / 1e9:.1f} GB each.", "",
             "| | median | low - high |", "|---|---|---|",
             f"| step, nothing written beside it | {free['median'] * 1e3:.1f} ms | {free['low'] * 1e3:.1f} - {free['high'] * 1e3:.1f} |",
             f"| step while a checkpoint is written | {during['median'] * 1e3:.1f} ms ({slower * 100:+.1f}%, limit +{SLOWER_LIMIT * 100:.0f}%) "
             f"| {during['low'] * 1e3:.1f} - {during['high'] * 1e3:.1f} |", "",
             "| save after step | stall | limit | the next step by the clock, more than usual | until durable | bandwidth |",
             "|---|---|---|---|---|---|"]
    for index, save in enumerate(saves):
        extra = f"{(stalled[index] - free['median']) * 1e3:.0f} ms" if index < len(stalled) else "last"
        lines.append(f"| {save['step']} | {save['stall_seconds'] * 1e3:.0f} ms | {STALL_LIMIT * 1e3:.0f} ms | {extra} "
                     f"| {save['seconds']:.1f} s | {save['bytes'] / save['seconds'] / 1e9:.2f} GB/s |")
    lines.append("")
    text = "\n".join(lines)
    if args.no_report:
        print(text)
    else:
        measure.keep("checkpoint_gpu", {"machine": machine, "steps": steps, "saves": saves}, text)
    sys.exit(0 if max(stalls) <= STALL_LIMIT and slower <= SLOWER_LIMIT else 1)


if __name__ == "__main__":
    main()
