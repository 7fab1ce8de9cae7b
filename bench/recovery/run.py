#!/usr/bin/env python3
"""Time from `kill -9` of a rank to the next optimizer step: Lockstep, torchrun's restarts and torchft, in one run.

The same byte-level GPT of 10.8 million parameters, batch and precision (fp32) on the same number of ranks over Gloo on this
machine. Kills hit a random rank other than 0 at a random moment, when the run is at full strength again. Lockstep runs with its
default recovery. torchrun restarts a script that saves a checkpoint every N steps, as shipped and with a fresh store per
restart (pytorch issue 135712). torchft has one replica group per rank, each under torchrun as in its examples, with its default
heartbeat timeout of 5 s and with 1 s.

A step counts when it was completed by the ranks as they are after the failure: a step that was under way at the kill and was
completed by the survivors does not. --stop and --hang stop (SIGSTOP) one rank or all ranks of Lockstep instead.

Needs a Python with torch and torchft (--python; --torchft-python where they are two): `make bench-recovery` makes one, by hand it is
`pip install numpy torch torchft==0.2.0`. /usr/share/common-licenses is the text.

Writes bench/reports/recovery.md, .json and .svg. This driver uses the standard library only.
"""
import argparse
import collections
import json
import os
import pathlib
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time

import picture
import stacks
from stacks import measure


def wait_until(condition, seconds):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    return None


def reporting_ranks(stack, args):
    return args.ranks if stack.every_rank_reports else 1


def at_full_strength(stack, args, after, generation):
    """The moment since `after` when every rank had completed a step of a generation above `generation`; None: not yet."""
    first, pids = {}, stack.pids()
    for step in stack.steps():
        if step.time > after and step.generation > generation and step.pid == pids.get(step.rank):
            first.setdefault(step.rank, step.time)
    return max(first.values()) if len(first) == reporting_ranks(stack, args) else None


def is_settled(stack, args, begin):
    """Every rank has made three steps since `begin` in the same, newest generation."""
    steps = [step for step in stack.steps() if step.time > begin]
    newest = max((step.generation for step in steps), default=0)
    counts = collections.Counter(step.rank for step in steps if step.generation == newest)
    return len(counts) == reporting_ranks(stack, args) and min(counts.values()) >= 3


def settle(stack, args, rng):
    """Waits until the run has made some steps; raises when it does not."""
    begin = time.time()
    wait_until(lambda: not stack.is_alive() or is_settled(stack, args, begin), args.give_up)
    if not stack.is_alive() or not is_settled(stack, args, begin):
        raise RuntimeError(f"{stack.name} makes no steps:\n" + "\n".join(line for _, line in stack.said[-30:]))
    time.sleep(rng.uniform(args.gap, 2 * args.gap))


def strike(stack, args, rng):
    """One fault and what came of it."""
    settle(stack, args, rng)
    victims = list(range(args.ranks)) if args.fault == "hang" else [rng.randrange(1, args.ranks)]
    pids = stack.pids()
    before = [step for step in stack.steps() if step.rank == 0][-1]
    usual = step_seconds(stack)
    struck = time.time()
    for rank in victims:
        os.kill(pids[rank], signal.SIGKILL if args.fault == "kill" else signal.SIGSTOP)

    def first_after():
        return next((step for step in stack.steps() if step.rank == 0 and step.generation > before.generation), None)

    wait_until(lambda: first_after() or not stack.is_alive(), args.give_up)
    step = first_after()
    noticed = next((when for when, line in list(stack.said) if when >= struck and stack.detects.search(line)), None)
    result = {"victims": victims, "recovered": step is not None, "detected": noticed and noticed - struck,
              "step_seconds": usual}
    if step is None:
        return result
    done = max(one.step for one in stack.steps() if one.rank == 0 and one.generation == before.generation)
    result.update(seconds=step.time - struck, steps_again=max(0, done + 1 - step.step))
    full = wait_until(lambda: at_full_strength(stack, args, struck, before.generation), args.give_up)
    result["full_seconds"] = full and full - struck
    return result


def step_seconds(stack):
    """The median step of the newest generation."""
    steps = [step for step in stack.steps() if step.rank == 0]
    times = [step.time for step in steps if step.generation == steps[-1].generation]
    return statistics.median(b - a for a, b in zip(times, times[1:]))


def attack(make, args, folder, progress):
    """args.kills faults of one stack; a run that does not come back is followed by a new one."""
    rng = random.Random(args.seed)
    results, stack, runs = [], None, 0
    try:
        while len(results) < args.kills:
            if stack is None:
                runs += 1
                stack = make(args, folder / f"run-{runs}")
            results.append(strike(stack, args, rng))
            progress(results[-1])
            if not results[-1]["recovered"] or not results[-1].get("full_seconds"):
                stack.stop()
                stack = None
    finally:
        if stack:
            stack.stop()
    return {"kills": results, "runs": runs, "step_seconds": statistics.median(kill["step_seconds"] for kill in results)}


def quantile(values, share):
    """Nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1))]


def spread(values):
    if not values:
        return "| | | | "
    numbers = [quantile(values, 0.5) if len(values) % 2 else statistics.median(values), quantile(values, 0.9), quantile(values, 0.99),
               max(values)]
    return "| " + " | ".join(f"{number:.2f} s" for number in numbers) + " "


def row(name, result):
    kills = result["kills"]
    back = [kill for kill in kills if kill["recovered"]]
    noticed = [kill["detected"] for kill in kills if kill["detected"] is not None]
    full = [kill["full_seconds"] for kill in back if kill["full_seconds"]]
    again = [kill["steps_again"] for kill in back]
    return (f"| {name} | {len(back)} of {len(kills)} {spread([kill['seconds'] for kill in back])}"
            f"| {f'{statistics.median(noticed):.3f} s' if noticed else ''} "
            f"| {f'{statistics.median(again):g}, {max(again)}' if again else ''} "
            f"| {f'{statistics.median(full):.2f} s' if full else ''} | {result['step_seconds']:.2f} s |")


FAULTS = {"kill": "`kill -9` of a random rank other than 0", "stop": "SIGSTOP of a random rank other than 0",
          "hang": "SIGSTOP of all ranks"}


def table(args, machine, results, versions):
    lines = [f"# Recovery: {FAULTS[args.fault]}", "",
             f"{machine['cores']} x {machine['cpu']}, {machine['memory_gib']} GiB, {machine['date']}, commit {machine['commit']};",
             f"load before: {machine['load_before']:.2f}. {'; '.join(versions)}.",
             f"Byte-level GPT, 6 layers x 384 (10.8 million parameters), {args.ranks} ranks over Gloo, micro-batch {args.micro} x "
             f"{args.seq} tokens, fp32, AdamW.",
             f"{args.kills} faults per stack, {args.gap:g} to {2 * args.gap:g} s after it was at full strength, seed {args.seed}.", "",
             "| | recovered | fault to next step: median | p90 | p99 | max | noticed (median) | steps done again (median, max) "
             "| all ranks again (median) | a step |",
             "|---|---|---|---|---|---|---|---|---|---|"]
    lines += [row(stacks.STACKS[name].name, result) for name, result in results.items()]
    lines += ["", f"A run that made no step within {args.give_up:g} s of the fault counts as not recovered, and a new one is started.",
              "Quantiles are of the faults that were recovered from, by nearest rank."]
    if "torchrun" in results or "torchrun-fresh" in results:
        lines.append(f"torchrun restarts all ranks from a checkpoint that is saved every {args.checkpoint_steps} steps.")
    if "torchft" in results or "torchft-quick" in results:
        lines.append("torchft's survivors go on with fewer samples per step until the lost replica is back (`all ranks again`).")
    if args.fault == "kill":
        lines += ["", "![seconds to the next step](recovery.svg)"]
    return "\n".join([*lines, ""])


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lockstep", default=str(measure.ROOT / "build/release/lockstep"))
    parser.add_argument("--python", default=sys.executable, help="a Python that has torch")
    parser.add_argument("--torchft-python", help="a Python that has torch and torchft (default: that of --python)")
    parser.add_argument("--stacks", default=",".join(stacks.STACKS), help=f"of {', '.join(stacks.STACKS)}")
    fault = parser.add_mutually_exclusive_group()
    fault.add_argument("--stop", dest="fault", action="store_const", const="stop", help="SIGSTOP one rank (Lockstep alone)")
    fault.add_argument("--hang", dest="fault", action="store_const", const="hang", help="SIGSTOP all ranks (Lockstep alone)")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--micro", type=int, default=1)
    parser.add_argument("--seq", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--gap", type=float, default=5.0, help="seconds of training before a fault; up to twice that")
    parser.add_argument("--give-up", type=float, default=90.0, help="seconds without a step: not recovered")
    parser.add_argument("--checkpoint-steps", type=int, default=20, help="of the script under torchrun")
    parser.add_argument("--override", action="append", default=[], metavar="KEY=VALUE", help="for Lockstep's job")
    parser.add_argument("--folder", type=pathlib.Path, help="where to work; kept, with the logs (default: a temporary folder)")
    parser.add_argument("--no-report", action="store_true", help="print, but leave bench/reports as it is")
    args = parser.parse_args()
    args.fault = args.fault or "kill"
    args.torchft_python = args.torchft_python or args.python
    chosen = ["lockstep"] if args.fault != "kill" else args.stacks.split(",")
    for name in chosen:
        if name not in stacks.STACKS:
            parser.error(f"--stacks: '{name}' is not one of {', '.join(stacks.STACKS)}")
    return args, chosen


def main():
    args, chosen = parse()
    machine = measure.machine()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="lockstep-recovery-", dir=args.folder))
    results, versions = {}, {}
    try:
        for name in chosen:
            make = stacks.STACKS[name]
            result = attack(make, args, folder / name,
                            lambda kill, name=name: print(f"{name}: {json.dumps(kill)}", file=sys.stderr))
            results[name] = result
            probe = make.__new__(make)
            probe.args = args
            versions[name] = probe.version()
    finally:
        if not args.folder:
            shutil.rmtree(folder, ignore_errors=True)
    options = {key: str(value) if isinstance(value, pathlib.Path) else value for key, value in vars(args).items()}
    text = table(args, machine, results, dict.fromkeys(versions.values()))
    data = {"machine": machine, "options": options, "versions": versions, "stacks": results}
    if args.no_report:
        print(text)
        return
    report = "recovery" if args.fault == "kill" else f"recovery-{args.fault}"
    measure.keep(report, data, text)
    if args.fault == "kill":
        rows = [(stacks.STACKS[name].name, [kill["seconds"] for kill in result["kills"] if kill["recovered"]], len(result["kills"]))
                for name, result in results.items()]
        (measure.REPORTS / "recovery.svg").write_text(picture.plot(rows))


if __name__ == "__main__":
    main()
