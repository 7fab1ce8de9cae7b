#!/usr/bin/env python3
"""Ten questions planned again: writes validation/results/scenarios.md, before beside after.

"Before" is what the kept scenarios.json says (or, with --before, another build of lockstep); "after" is --lockstep. The page ends in
what changed and why, which people write: that part is kept, with a line that says for which figures it was written.

    python3 validation/scenarios.py                       # after a fit: before is what was kept
    python3 validation/scenarios.py --before OLD/lockstep
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
RESULTS = ROOT / "validation/results"
MIXED = """name: mixed
between_groups: {kind: infiniband, bandwidth: 100Gb/s}
groups:
  - {kind: A100, nodes: 2, nics_per_node: 8}
  - {kind: A100, nodes: 2, intra: {kind: pcie, bandwidth: 25GB/s}, nic: {kind: ethernet, bandwidth: 100Gb/s}, nics_per_node: 1}
"""
# name, model, cluster, tokens (samples of ResNet)
QUESTIONS = [
    ("13b-32xH100", "llama2-13b", "4x8xH100", "300B"),
    ("1.3b-4xH100", "gpt-1.3b", "1x4xH100", "26B"),
    ("7b-8xH100", "llama2-7b", "1x8xH100", "1B"),
    ("100b-64xA100", "gpt-100b", "8x8xA100", "300B"),
    ("70b-256xH100", "llama2-70b", "32x8xH100", "2T"),
    ("10b-mixed", "gpt-10b", "mixed", "100B"),
    ("bert-4xV100", "bert-large", "4x1xV100-16", "1B"),
    ("mixtral-64xH100", "mixtral-8x7b", "8x8xH100", "300B"),
    ("mamba-32xA100", "mamba-2.8b", "4x8xA100", "300B"),
    ("resnet-4xH100", "resnet50", "1x4xH100", "100M"),
]
SHOWN = ("pp", "dp", "shard", "zero", "tp", "cp", "ep", "virtual_stages")


def count(value):
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.1f} {unit}"
    return f"{value:.1f}"


def plan(lockstep, folder):
    """The figures of every question."""
    mixed = folder / "mixed.yaml"
    mixed.write_text(MIXED)
    environment = {**os.environ, "LOCKSTEP_NO_OBSERVATIONS": "1", "LOCKSTEP_HOME": str(folder)}
    environment.pop("LOCKSTEP_PROFILE", None)
    figures = {}
    for name, model, cluster, tokens in QUESTIONS:
        where = str(mixed) if cluster == "mixed" else cluster
        done = subprocess.run([lockstep, "plan", "--model", model, "--cluster", where, "--tokens", tokens, "--json"],
                              env=environment, capture_output=True, text=True, timeout=600)
        if done.returncode != 0:
            sys.exit(f"{name}: {done.stderr}")
        best = json.loads(done.stdout)["best"]
        layout, batch, intervals = best["layout"], best["batch"], best["prediction"]["intervals"]
        rate = intervals.get("tokens_per_second") or {}
        if not rate.get("expected"):
            rate = intervals["samples_per_second"]
        mfu = intervals.get("mfu") or {}
        figures[name] = {
            "layout": ",".join(f"{key}={layout[key]}" for key in SHOWN if layout.get(key, 1) not in (1, None) or key == "zero"),
            "schedule": best.get("schedule") or "none", "recompute": best.get("recompute") or "none",
            "micro": f"{batch['micro']}x{batch['accumulation']}",
            "rate": [rate["expected"], rate["low"], rate["high"]],
            "mfu": [mfu.get("expected") or 0, mfu.get("high") or 0],
            "memory": [best["memory_gib"]["total"], best["memory_gib"]["capacity"]],
            "days": best["cost"]["days"], "usd": best["cost"]["usd"],
        }
    return figures


def row(name, which, one):
    rate, low, high = one["rate"]
    mfu = f"{100 * one['mfu'][0]:.1f}% (to {100 * one['mfu'][1]:.1f})" if one["mfu"][0] > 0 else "-"
    return (f"| {name} | {which} | {one['layout']}, {one['schedule']}, {one['recompute']}, micro {one['micro']} | "
            f"{count(rate)} ({count(low)} to {count(high)}) | {mfu} | {one['memory'][0]:.1f} of {one['memory'][1]:.1f} | "
            f"{one['days']:.3g} | {one['usd']:.0f} |")


def commit():
    return subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty"], capture_output=True, text=True).stdout.strip()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lockstep", default=str(ROOT / "build/release/lockstep"))
    parser.add_argument("--before", help="another build, instead of the figures that were kept")
    args = parser.parse_args()
    kept = RESULTS / "scenarios.json"
    with tempfile.TemporaryDirectory() as folder:
        after = {"commit": commit(), "figures": plan(args.lockstep, pathlib.Path(folder))}
        if args.before:
            before = {"commit": args.before, "figures": plan(args.before, pathlib.Path(folder))}
        else:
            before = json.loads(kept.read_text()) if kept.exists() else after
    page = RESULTS / "scenarios.md"
    old = page.read_text() if page.exists() else ""
    words = old[old.index("What changed"):] if "What changed" in old else "What changed: not written yet.\n"
    lines = ["# The ten scenarios, planned before and after", "",
             f"`lockstep plan` of ten questions (`python3 validation/scenarios.py`): before at {before['commit']}, after at {after['commit']}, "
             f"{time.strftime('%Y-%m-%d')}.", "Speeds are tokens/s (samples for ResNet) with their 90% interval, memory is GiB of the fullest rank. The "
             "figures do not depend on the machine.", "",
             "| job | | layout | speed | MFU | memory | days | USD |", "|---|---|---|---|---|---|---|---|"]
    for name, one in after["figures"].items():
        lines += [row(name, "before", before["figures"][name]), row("", "after", one)]
    page.write_text("\n".join(lines) + "\n\n" + words)
    kept.write_text(json.dumps(after, indent=1) + "\n")
    print(f"{page.relative_to(ROOT)}: read the part below \"What changed\" again, it was written for the figures before")


if __name__ == "__main__":
    main()
