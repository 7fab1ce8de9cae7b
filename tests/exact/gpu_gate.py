#!/usr/bin/env python3
"""Runs the exactness gate on the GPU in fp64 and fp32, several processes at a time, and prints layout, error, verdict.

usage: gpu_gate.py path/to/exact_layouts_test [--shards N] [--filter GTEST_FILTER] [--output TABLE.md]
Exit code 0 when every layout passed; 77 (skipped) where there is no GPU.
"""
import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

parser = argparse.ArgumentParser()
parser.add_argument("test")
parser.add_argument("--shards", type=int, default=4)
parser.add_argument("--filter", default="*")
parser.add_argument("--output")
parser.add_argument("--precisions", default="fp64,fp32")
arguments = parser.parse_args()

if not pathlib.Path("/dev/nvidia0").exists():
    print("no GPU here")
    sys.exit(77)

folder = pathlib.Path(tempfile.mkdtemp(prefix="exact-"))
processes = []
for precision in arguments.precisions.split(","):
    for shard in range(arguments.shards):
        environment = dict(os.environ)
        environment.update(
            LOCKSTEP_EXACT_DEVICE="cuda",
            LOCKSTEP_EXACT_PRECISION=precision,
            LOCKSTEP_EXACT_TABLE=str(folder / f"{precision}-{shard}"),
            GTEST_TOTAL_SHARDS=str(arguments.shards),
            GTEST_SHARD_INDEX=str(shard),
        )
        log = open(folder / f"{precision}-{shard}.log", "w")
        command = [arguments.test, f"--gtest_filter={arguments.filter}"]
        processes.append((precision, shard, subprocess.Popen(command, env=environment, stdout=log, stderr=log)))

codes = {(precision, shard): process.wait() for precision, shard, process in processes}
errors = {}
for precision, shard, _ in processes:
    table = folder / f"{precision}-{shard}"
    for line in table.read_text().splitlines() if table.exists() else []:
        layout, error, verdict = line.split("\t")
        errors.setdefault(layout, {})[precision] = (error, verdict)

columns = arguments.precisions.split(",")
rows = ["| layout | " + " | ".join(f"{p} error | {p}" for p in columns) + " |", "|---|" + "---:|---|" * len(columns)]
for layout, found in errors.items():
    cells = [" | ".join(found.get(p, ("-", "no result"))) for p in columns]
    rows.append(f"| {layout} | " + " | ".join(cells) + " |")
passed = {p: sum(found.get(p, ("", ""))[1] == "pass" for found in errors.values()) for p in columns}
rows.append("")
rows.append(f"{len(errors)} rows; passed: " + ", ".join(f"{p} {passed[p]}" for p in columns))
print("\n".join(rows))
if arguments.output:
    pathlib.Path(arguments.output).write_text("\n".join(rows) + "\n")
failed = False
for (precision, shard), code in codes.items():
    if code == 0:
        continue
    failed = True
    print(f"--- {precision}, shard {shard}: exit code {code}")
    lines = (folder / f"{precision}-{shard}.log").read_text(errors="replace").splitlines()
    wanted = [line for line in lines if "FAILED" in line or "rror" in line or "differs" in line or "what()" in line]
    print("\n".join(wanted[:40] + lines[-15:]))
sys.exit(1 if failed else 0)
