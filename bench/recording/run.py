#!/usr/bin/env python3
"""What recording costs: a byte-level GPT of 10.8 million parameters on 4 ranks over Gloo, with and without, in turn.

Two measurements. (1) Whole runs in turn (--no-record, metrics alone, metrics and spans), the median step of each and the medians
over rounds. (2) The recording of a real step done again without the training (bench_recording), as processor time: of the
thread that trains, which is what holds up a step, and of all threads, the one that writes to SQLite included. On a busy machine (1) is
mostly noise; (2) is not.

Writes bench/reports/recording.md and .json. The standard library only; /usr/share/common-licenses is the text.
"""
import argparse
import json
import os
import pathlib
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
WAYS = {"not recorded": ["--no-record"], "metrics": ["telemetry.spans=false"], "metrics and spans": []}
MOST_MILLISECONDS = 0.05
LEAST_RATIO = 0.99


def job(folder, args):
    text = folder / "text.txt"
    sources = sorted(path for path in pathlib.Path("/usr/share/common-licenses").iterdir() if path.is_file())
    text.write_text("\n".join(path.read_text(errors="replace") for path in sources))
    path = folder / "job.yaml"
    path.write_text(json.dumps({
        "model": {"arch": "gpt", "layers": 6, "hidden": 384, "heads": 6, "vocab": 256, "max_sequence": 256},
        "cluster": f"1x{args.ranks}xcpu", "layout": {"dp": args.ranks},
        "data": {"kind": "text", "path": str(text), "tokenizer": "bytes", "holdout": 0},
        "batch": {"micro": 1, "sequence_length": args.sequence}, "optimizer": {"kind": "adamw", "learning_rate": 3e-4},
        "checkpoint": {"every": "0", "final": False}, "steps": args.steps, "threads_per_rank": 1}))
    return path


def train(args, folder, home, way):
    """(median seconds of a step after the first tenth, tokens per second by it, run)"""
    environment = {**os.environ, "LOCKSTEP_HOME": str(home)}
    done = subprocess.run([args.lockstep, "train", str(folder / "job.yaml"), *WAYS[way], "--json", "--report-steps"],
                          env=environment, capture_output=True, text=True, timeout=3600)
    if done.returncode != 0:
        sys.exit(done.stderr[-3000:])
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    steps = [line["seconds"] for line in lines[:-1] if "step" in line and "seconds" in line]
    steps = steps[len(steps) // 10:]
    return statistics.median(steps), lines[-1]["run"]


def cost(args, home, run, folder):
    values = []
    for round_ in range(args.cost_rounds):
        scratch = folder / f"scratch-{round_}"
        done = subprocess.run([args.cost, str(home), run, str(args.cost_steps), str(scratch)], capture_output=True,
                              text=True, timeout=3600)
        if done.returncode != 0:
            sys.exit(done.stderr)
        values.append(json.loads(done.stdout))
    return {key: statistics.median(value[key] for value in values) for key in values[0]}


def at_real_time():
    """`chrt --rr 5 python3 ...` on a machine that does other things: they get what is left."""
    real_time = os.sched_getscheduler(0) in (os.SCHED_RR, os.SCHED_FIFO)
    return "of other programs, before which these runs come (chrt --rr), " if real_time else ""


def report(args, medians, ratios, parts):
    lines = ["# What recording costs", "",
             f"{time.strftime('%Y-%m-%d')}, {platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, "
             f"{at_real_time()}{args.ranks} ranks of one thread, gpt 10.8M, sequence {args.sequence}, {args.steps} steps, "
             f"{args.rounds} rounds in turn. `python3 bench/recording/run.py`", "",
             "## Processor time of the recording of one step, by itself", "",
             f"A real step of the run above ({parts['spans_per_step']:.0f} spans, 20 metrics), done again without the training, "
             f"{args.cost_steps} steps, median of {args.cost_rounds}.", "",
             "| of | ms a step | allowed |", "|---|---|---|",
             f"| the thread that trains | {parts['step_thread_us'] / 1e3:.4f} | {MOST_MILLISECONDS} |",
             f"| all threads, the writer to SQLite included, when every step keeps its spans | {parts['all_threads_us'] / 1e3:.4f} | |",
             "", f"Records dropped: {parts['dropped']:.0f}. A run keeps spans of at most four steps in a second, so the writer's part is an "
             "upper bound."]
    if not medians:
        return "\n".join(lines + ["", "Whole runs were not compared (`--rounds 0`: the machine was busy)."]) + "\n"
    base = medians["not recorded"]
    lines += ["", "## Whole runs in turn", "", "| | median step, ms | against not recorded |", "|---|---|---|"]
    for way, median in medians.items():
        lines.append(f"| {way} | {1e3 * median:.2f} | {base / median:.4f} |")
    lines += ["", f"Speed with metrics and spans over that without, pair by pair: median {ratios['median']:.4f}, "
              f"from {ratios['low']:.4f} to {ratios['high']:.4f} (wanted: at least {LEAST_RATIO})."]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lockstep", default=str(ROOT / "build/release/lockstep"))
    parser.add_argument("--cost", default=str(ROOT / "build/release/bench_recording"))
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--sequence", type=int, default=64)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=5, help="0: no whole runs, on a machine that does other things")
    parser.add_argument("--pairs", action="store_true", help="leave out the runs with metrics alone: more pairs in the same time")
    parser.add_argument("--cost-steps", type=int, default=2000)
    parser.add_argument("--cost-rounds", type=int, default=5)
    args = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="lockstep-recording-"))
    try:
        home = folder / "home"
        job(folder, args)
        ways = [way for way in WAYS if not (args.pairs and way == "metrics")]
        seconds = {way: [] for way in ways}
        run = None
        for round_ in range(args.rounds):
            for way in ways[round_ % len(ways):] + ways[:round_ % len(ways)]:
                median, told = train(args, folder, home, way)
                seconds[way].append(median)
                run = told if way == "metrics and spans" else run
                print(f"round {round_ + 1}: {way}: {1e3 * median:.2f} ms", file=sys.stderr)
        ratios, medians = None, {}
        if args.rounds > 0:
            pairs = sorted(a / b for a, b in zip(seconds["not recorded"], seconds["metrics and spans"]))
            ratios = {"median": statistics.median(pairs), "low": pairs[0], "high": pairs[-1]}
            medians = {way: statistics.median(values) for way, values in seconds.items()}
        else:
            run = train(args, folder, home, "metrics and spans")[1]
        parts = cost(args, home, run, folder)
        (ROOT / "bench/reports/recording.md").write_text(report(args, medians, ratios, parts))
        (ROOT / "bench/reports/recording.json").write_text(json.dumps(
            {"step_seconds": seconds, "ratios": ratios, "cost": parts, "arguments": {k: v for k, v in vars(args).items()
                                                                                   if isinstance(v, int)}}, indent=1) + "\n")
        ok = parts["step_thread_us"] <= 1e3 * MOST_MILLISECONDS
        print((ROOT / "bench/reports/recording.md").read_text())
        sys.exit(0 if ok else 1)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
