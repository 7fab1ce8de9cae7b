"""Layouts priced a second and the time of whole searches: writes bench/reports/planner.md and planner.json.

Usage: run.py [--build DIR]    DIR holds bench_planner and lockstep (default build/bench: `make bench-planner`)
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import measure  # noqa: E402

PLANS = [("llama2-13b", "4x8xH100", 0.3), ("gpt3-175b", "128x8xH100", 3.0)]
TARGET = 300_000


def plan_seconds(lockstep, model, cluster, repetitions=5):
    """Wall seconds of the whole command, start of the process included."""
    seconds = []
    for _ in range(repetitions):
        start = time.monotonic()
        subprocess.run([str(lockstep), "plan", "--model", model, "--cluster", cluster], check=True,
                       capture_output=True, timeout=120)
        seconds.append(time.monotonic() - start)
    return seconds


def pricing_table(rows):
    yield "| case | distinct layouts | layouts/s, one core busy | layouts/s per core, all busy | 1,000 priced singly |"
    yield "|---|---|---|---|---|"
    for row in rows:
        same = "same bits" if row["samples_that_differ"] == 0 else f"{row['samples_that_differ']} differ"
        yield (f"| {row['case']} | {row['distinct']:,} | {row['layouts_per_second_on_one_core']:,.0f} "
               f"| {row['layouts_per_second_per_core_on_all']:,.0f} | {same} |")


def search_table(rows):
    yield "| search | candidates | priced | fit | seconds | enumerate + divide + floor | price | rank |"
    yield "|---|---|---|---|---|---|---|---|"
    for row in rows:
        passes = {p["name"]: p for p in row["passes"]}
        before = sum(passes[name]["seconds"] for name in ("enumerate", "divide", "floor"))
        yield (f"| {row['case']} | {row['candidates']:,} | {passes['price']['in']:,} | {row['feasible']:,} "
               f"| {row['seconds']:.3f} | {before * 1e3:.2f} ms | {passes['price']['seconds'] * 1e3:.0f} ms "
               f"| {passes['rank']['seconds'] * 1e3:.2f} ms |")


def command_table(commands):
    yield "| command | wall seconds, median | low - high | target |"
    yield "|---|---|---|---|"
    for row in commands:
        seconds = row["seconds"]
        yield (f"| `lockstep plan --model {row['model']} --cluster {row['cluster']}` | {statistics.median(seconds):.3f} "
               f"| {min(seconds):.3f} - {max(seconds):.3f} | {row['target']} |")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=pathlib.Path, default=measure.ROOT / "build" / "bench")
    build = parser.parse_args().build
    machine = measure.machine()
    result = measure.last_json(measure.run([str(build / "bench_planner")], timeout=600))
    commands = [{"model": model, "cluster": cluster, "target": target,
                 "seconds": plan_seconds(build / "lockstep", model, cluster)} for model, cluster, target in PLANS]
    slowest = min(row["layouts_per_second_on_one_core"] for row in result["pricing"])
    lines = ["# Planner: layouts priced a second, and whole searches", "",
             f"{machine['cores']} x {machine['cpu']}, {machine['memory_gib']} GiB, {machine['date']}, "
             f"commit {machine['commit']}; load before: {machine['load_before']:.2f}.", "",
             "Every layout of a case is priced once, in full, in seconds of the core that does it; no total comes from a",
             "cache, and all (layout, batch) pairs are distinct. A random thousand of each case is priced again, each by a",
             f"Pricer of its own. Target: {TARGET:,} a second and core; slowest case here: {slowest:,.0f}.", "",
             *pricing_table(result["pricing"]), "",
             f"Searches in the process, all {machine['cores']} cores, best of 5:", "",
             *search_table(result["searches"]), "",
             "The whole command, from the start of the process to its explanation:", "", *command_table(commands), ""]
    (measure.REPORTS / "planner.md").write_text("\n".join(lines))
    document = {"machine": machine, **result, "commands": commands}
    (measure.REPORTS / "planner.json").write_text(json.dumps(document, indent=2) + "\n")
    print("\n".join(lines))
    return 0 if result["sound"] and slowest >= TARGET else 3


if __name__ == "__main__":
    sys.exit(main())
