#!/usr/bin/env python3
"""The engine's measured timeline against the simulator: pipelines of 4 and 8 ranks on this machine, within 3%.

Ranks sleep a known time in every pass (`lockstep train --chaos "slow phase=... delay=..."`), so that eight of them need no eight
cores. For each schedule one run, with equal sleeps, teaches what the engine adds to them (timeline_probe.cpp); other runs, with other
sleeps on every rank and twice as many micro-batches, are foretold from their sleeps alone, and begin and end of every pass compared.

    timeline.py [--runs 1] [--only 1f1b] [--report bench/reports/sim_timeline.md]

Exit code 0: every step and the mean of every timeline within 3%, and no pass out of order.
"""
import argparse
import datetime
import json
import os
import pathlib
import platform
import random
import shutil
import statistics
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("LOCKSTEP_BUILD_DIR", SOURCE / "build/release"))
PROBE = pathlib.Path(os.environ.get("TIMELINE_PROBE", BUILD / "tests/sim_timeline_probe"))
BOUND = 0.03
WARM_UP, STEPS = 2, 7
SCHEDULES = [("1f1b", 1), ("interleaved", 2), ("zero_bubble", 1), ("zero_bubble", 2)]
WORLDS = (4, 8)


def job(folder, world, schedule, chunks, micro_batches):
    text = folder / "text.txt"
    if not text.exists():
        rng = random.Random(5)
        text.write_text(" ".join(rng.choice(("step", "by", "step", "in", "time")) for _ in range(20000)))
    layout = {"pp": world, "schedule": schedule, "virtual_stages": chunks}
    return {"model": {"arch": "gpt", "layers": 16, "hidden": 32, "heads": 2, "vocab": 256, "max_sequence": 32},
            "cluster": f"1x{world}xcpu", "layout": layout, "data": {"kind": "text", "path": str(text)},
            "batch": {"micro": 1, "accumulation": micro_batches, "sequence_length": 32},
            "optimizer": {"kind": "adamw", "learning_rate": 1e-3}, "steps": STEPS, "threads_per_rank": 1,
            "checkpoint": {"final": False}, "evaluation": {"batches": 1}, "recovery": {"standby": 0, "snapshots": {"every": 0}}, "seed": 3}


def priority():
    """What else this machine does is no part of the comparison."""
    return ["chrt", "--rr", "5"] if os.geteuid() == 0 and shutil.which("chrt") else []


def train(folder, world, schedule, chunks, micro_batches, sleeps):
    path = folder / "job.yaml"
    path.write_text(json.dumps(job(folder, world, schedule, chunks, micro_batches)))
    events = [f"slow rank={rank} phase={phase} delay={1e3 * seconds:.3f}ms"
              for phase in ("forward", "backward") for rank, seconds in enumerate(sleeps[phase])]
    command = [*priority(), str(BUILD / "lockstep"), "train", str(path), "--chaos", "; ".join(events), "--json"]
    environment = {**os.environ, "LOCKSTEP_HOME": str(folder / "home"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: {done.stderr[-2000:]}")
    return {"run": json.loads(done.stdout.strip().splitlines()[-1])["run"], "micro_batches": micro_batches, **sleeps}


def equal_sleeps(world):
    return {"forward": [0.040] * world, "backward": [0.060] * world}


def unlike_sleeps(world, seed):
    rng = random.Random(seed)
    return {"forward": [round(rng.uniform(0.030, 0.055), 4) for _ in range(world)],
            "backward": [round(rng.uniform(0.045, 0.080), 4) for _ in range(world)]}


def compare(folder, world, schedule, chunks, calibration, report):
    question = {"home": str(folder / "home"), "schedule": schedule, "stages": world, "chunks": chunks, "warm_up": WARM_UP,
                "calibrate": calibration, "report": report}
    done = subprocess.run([str(PROBE)], input=json.dumps(question), capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        raise SystemExit(f"timeline_probe: {done.stderr}")
    return json.loads(done.stdout)


def measure_case(world, schedule, chunks, runs):
    folder = pathlib.Path(tempfile.mkdtemp(prefix="lockstep-timeline-"))
    try:
        calibration = train(folder, world, schedule, chunks, world, equal_sleeps(world))
        answers = []
        for seed in range(1, runs + 1):
            report = train(folder, world, schedule, chunks, 2 * world, unlike_sleeps(world, 100 * world + seed))
            answers.append(compare(folder, world, schedule, chunks, calibration, report))
        return summary(world, schedule, chunks, answers)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def summary(world, schedule, chunks, answers):
    steps = [step for answer in answers for step in answer["steps"]]
    errors = [step["simulated"] / step["measured"] - 1 for step in steps]
    worst = max(errors, key=abs)
    timeline = statistics.mean(answer["timeline"]["mean"] for answer in answers)
    out_of_order = sum(answer["out_of_order"] for answer in answers)
    return {"world": world, "schedule": schedule + (" (V)" if (schedule, chunks) == ("zero_bubble", 2) else ""), "chunks": chunks,
            "steps": len(steps), "measured": statistics.mean(step["measured"] for step in steps),
            "simulated": statistics.mean(step["simulated"] for step in steps), "mean_error": statistics.mean(map(abs, errors)),
            "worst_error": worst, "timeline": timeline, "worst_pass": max(answer["timeline"]["worst"] for answer in answers),
            "passes": sum(answer["passes"] for answer in answers), "out_of_order": out_of_order,
            "calibrated": answers[0]["calibrated"],
            "holds": abs(worst) <= BOUND and timeline <= BOUND and out_of_order == 0}


def line(row):
    return (f"| {row['schedule']} | {row['world']} | {row['steps']} | {row['measured']:.3f} s | {row['simulated']:.3f} s "
            f"| {100 * row['mean_error']:.2f}% | {100 * row['worst_error']:+.2f}% | {row['passes']} | {100 * row['timeline']:.2f}% "
            f"| {100 * row['worst_pass']:.2f}% | {'yes' if row['holds'] else '**no**'} |")


def write_report(path, rows, load):
    added = "; ".join(f"{row['schedule']} on {row['world']}: {1e3 * row['calibrated']['late']:.1f} ms a message, "
                      f"{1e3 * (row['calibrated']['before'] + row['calibrated']['after']):.0f} ms around the passes" for row in rows)
    head = ["| schedule | ranks | steps | measured | simulated | step off by, mean | worst | passes | begin and end off by, mean | worst pass | within 3% |",
            "|---|---|---|---|---|---|---|---|---|---|---|"]
    page = f"""# The engine's timeline and the simulator's

`tests/sim/timeline.py` on {platform.machine()}, {os.cpu_count()} cores, {datetime.date.today()}, load before {load:.1f}, real-time priority
{'on' if priority() else 'off'}. Ranks are processes of `lockstep train` that sleep a known time in every pass. One run with equal sleeps calibrates; the
figures are of other runs, whose ranks sleep other times each and go through twice as many micro-batches. Their own durations are not used: the
simulator is given their sleeps and what the first run added to its own. Begin and end of passes are off by shares of the step.

{chr(10).join(head + [line(row) for row in rows])}

What calibration found: {added}.
"""
    pathlib.Path(path).write_text(page)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1, help="that are compared, of each schedule and number of ranks")
    parser.add_argument("--only", default="", help="schedules whose name begins with this")
    parser.add_argument("--report", help="write the table there")
    given = parser.parse_args()
    load = os.getloadavg()[0]
    rows = []
    for world in WORLDS:
        for schedule, chunks in SCHEDULES:
            if not schedule.startswith(given.only):
                continue
            rows.append(measure_case(world, schedule, chunks, given.runs))
            print(line(rows[-1]), flush=True)
    if given.report:
        write_report(given.report, rows, load)
    return 0 if all(row["holds"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
