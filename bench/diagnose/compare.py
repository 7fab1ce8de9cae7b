#!/usr/bin/env python3
"""Times `lockstep diagnose` on made traces (make_trace.py) and, in the same run, HolisticTraceAnalysis (PyPI) on those it can
hold in memory; files given as arguments are timed too. Prints a report.

    compare.py [--hta PYTHON_WITH_HTA] [--sizes 5e7,1e9] LOCKSTEP OUT.md [FILE...]
"""
import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import time

HTA = """
import sys, time, json
begin = time.process_time()
from hta.trace_analysis import TraceAnalysis
imported = time.process_time()
analyzer = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="/")
frame = analyzer.get_temporal_breakdown(visualize=False)
print(json.dumps({"cpu_seconds": time.process_time() - imported, "idle_percent": float(frame["idle_time_pctg"].iloc[0])}))
"""


def measured(command):
    """Wall seconds, CPU seconds, peak MiB, exit status, stdout, stderr."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        begin = time.monotonic()
        process = subprocess.Popen(command, stdout=out, stderr=err)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.monotonic() - begin
        out.seek(0)
        err.seek(0)
        return wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, status, out.read(), err.read()


def ours(lockstep, path):
    wall, cpu, peak, status, out, err = measured([lockstep, "diagnose", path, "--json"])
    if status != 0:
        return wall, cpu, peak, "refused: " + err.strip()[:80]
    findings = json.loads(out)["findings"]
    return wall, cpu, peak, ", ".join(f["cause"] for f in findings) or "nothing"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("lockstep")
    parser.add_argument("report")
    parser.add_argument("files", nargs="*")
    parser.add_argument("--hta")
    parser.add_argument("--sizes", default="5e7,1e9")
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        made = []
        for size in filter(None, arguments.sizes.split(",")):
            path = os.path.join(folder, f"made_{size}.json")
            subprocess.run([sys.executable, os.path.join(os.path.dirname(__file__), "make_trace.py"), path, size], check=True)
            made.append(path)
        for path in made + arguments.files:
            ours(arguments.lockstep, path)  # into the page cache
            wall, cpu, peak, answer = min((ours(arguments.lockstep, path) for _ in range(3)), key=lambda row: row[1])
            row = [os.path.basename(path), os.path.getsize(path) / 1e6, wall, cpu, peak, answer, "-"]
            if arguments.hta and os.path.getsize(path) < 2e8 and ".json" in path:
                done = subprocess.run([arguments.hta, "-c", HTA, os.path.abspath(path)], capture_output=True, text=True, timeout=1800, check=False)
                if done.returncode == 0:
                    theirs = json.loads(done.stdout.strip().splitlines()[-1])["cpu_seconds"]
                    row[6] = f"{theirs:.2f} s, {theirs / max(cpu, 1e-3):.0f} times ours"
                else:
                    row[6] = "fails: " + (done.stderr.strip().splitlines() or ["?"])[-1][:60]
            rows.append(row)
    load = os.getloadavg()[0]
    lines = ["# Reading other programs' profiles", "",
             f"{datetime.date.today()}, {os.cpu_count()} cores ({platform.machine()}), load of the machine {load:.0f}: CPU seconds are what to compare. "
             "Best of three by CPU; HTA: reading and temporal breakdown, without its imports.", "",
             "`bench/diagnose/compare.py`; `made_*` by `bench/diagnose/make_trace.py` (a quarter of each step is its loader).", "",
             "| file | MB | wall s | CPU s | peak MiB | answer | HTA, CPU |", "|---|---|---|---|---|---|---|"]
    for row in rows:
        lines.append(f"| {row[0]} | {row[1]:.1f} | {row[2]:.2f} | {row[3]:.2f} | {row[4]:.0f} | {row[5]} | {row[6]} |")
    text = "\n".join(lines) + "\n"
    with open(arguments.report, "w", encoding="utf-8") as out:
        out.write(text)
    print(text)


if __name__ == "__main__":
    main()
