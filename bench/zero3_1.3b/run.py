#!/usr/bin/env python3
"""A few steps of the 1.3B GPT under ZeRO-3 with offload on four CPU ranks, with the memory of all processes watched.

Proportional set size (each shared page counted once) of the launcher and its ranks, sampled twice a second; the run is stopped when
it passes the limit. Standard library only.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import measure  # noqa: E402

JOB = measure.ROOT / "specs" / "jobs" / "gpt-1.3b-zero3-cpu.yaml"


def family(root):
    """The process and everything it started."""
    parents = {}
    for folder in pathlib.Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parents[int(folder.name)] = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except (OSError, IndexError):
                continue
    found, grew = {root}, True
    while grew:
        more = {pid for pid, parent in parents.items() if parent in found} - found
        found |= more
        grew = bool(more)
    return found


def resident_bytes(pids):
    total = 0
    for pid in pids:
        try:
            for line in pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
        except OSError:
            continue
    return total


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lockstep", default=str(measure.ROOT / "build/release/lockstep"))
    parser.add_argument("--limit-gib", type=float, default=20.0)
    parser.add_argument("overrides", nargs="*", help="key=value for the job")
    args = parser.parse_args()
    machine = measure.machine()
    plan = json.loads(measure.run([args.lockstep, "train", str(JOB), "--dry-run", "--json", *args.overrides], 60))
    planned = plan["best"]["memory_gib"]["total"]
    log = pathlib.Path("/tmp/lockstep-zero3-1.3b.log")
    with log.open("w") as out:
        run = subprocess.Popen([args.lockstep, "train", str(JOB), "--json", *args.overrides], cwd=measure.ROOT, text=True,
                               stdout=subprocess.PIPE, stderr=out)
        peak, begin = 0, time.monotonic()
        while run.poll() is None:
            peak = max(peak, resident_bytes(family(run.pid)))
            if peak > args.limit_gib * 2**30:
                run.terminate()
                sys.exit(f"stopped at {peak / 2**30:.1f} GiB, over the limit of {args.limit_gib} GiB")
            time.sleep(0.5)
    if run.returncode != 0:
        sys.exit(f"exit {run.returncode}:\n{log.read_text()[-3000:]}")
    seconds = time.monotonic() - begin
    result = measure.last_json(run.stdout.read())
    progress = [line for line in log.read_text().splitlines() if " loss " in line and "/" in line]
    lines = ["# GPT-1.3B under ZeRO-3 with offload, four CPU ranks", "",
             f"{machine['cores']} x {machine['cpu']}, {machine['memory_gib']} GiB, {machine['date']}, commit {machine['commit']}.", "",
             f"{result['parameters']:,} parameters, layout {result['layout']}, {result['steps']} steps in {seconds:.0f} s "
             f"({result['seconds_per_step']:.0f} s a step), load before {machine['load_before']:.1f}.", "",
             "| | GiB |", "|---|---|",
             f"| tensors of one rank, planned | {planned:.2f} |",
             f"| tensors of one rank, counted by the allocator | {result['peak_allocated_bytes'] / 2**30:.2f} |",
             f"| all processes, resident at the peak | {peak / 2**30:.2f} (limit {args.limit_gib:.0f}) |", "",
             "```", *progress, "```", ""]
    measure.keep("zero3_1.3b", {"machine": machine, "result": result, "planned_gib": planned, "peak_bytes": peak}, "\n".join(lines))


if __name__ == "__main__":
    main()
