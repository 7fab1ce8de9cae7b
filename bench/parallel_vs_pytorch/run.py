#!/usr/bin/env python3
"""Tokens/s of a 30M-parameter byte GPT over Gloo: Lockstep's ZeRO-3 against FSDP2, its tensor parallelism against DTensor's.

The same model, batch, optimizer and one thread per rank, each rank on a core of its own, interleaved so that a machine that slows
down slows all of them. Standard library only; PyTorch runs in processes of the given Python.
"""
import argparse
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import measure  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
JOB = measure.ROOT / "specs" / "jobs" / "gpt-10m.yaml"
SHAPE = {"layers": 9, "hidden": 512, "heads": 8}
PAIRS = {"ZeRO-3": ("FSDP2", ["--kind", "fsdp2"], ["layout.shard=2", "layout.zero=3"]),
         "ZeRO-3, weights kept": ("FSDP2, reshard_after_forward=False", ["--kind", "fsdp2", "--reshard", "0"],
                                  ["layout.shard=2", "layout.zero=3", "communication.reshard_after_forward=false"]),
         "tensor parallel": ("DTensor", ["--kind", "dtensor"], ["layout.tp=2"])}


def run_pytorch(args, extra):
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(measure.free_port()), "GLOO_SOCKET_IFNAME": "lo",
                   "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    command = [args.python, str(HERE / "pytorch_parallel.py"), "--steps", str(args.steps), "--micro", str(args.micro), *extra]
    ranks = [subprocess.Popen(command, env={**environment, "RANK": str(rank)}, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE) for rank in range(2)]
    try:
        results = [rank.communicate(timeout=args.timeout) for rank in ranks]
    finally:
        for rank in ranks:
            if rank.poll() is None:
                rank.kill()
    if any(rank.returncode != 0 for rank in ranks):
        raise RuntimeError("pytorch_parallel.py failed:\n" + "\n".join(err[-2000:] for _, err in results))
    return measure.last_json(results[0][0])


def run_lockstep(args, binary, layout):
    shape = [f"model.{key}={value}" for key, value in SHAPE.items()]
    command = [binary, "train", str(JOB), "--json", "--no-record", f"steps={args.steps}", f"batch.micro={args.micro}",
               "cluster=1x2xcpu", "threads_per_rank=1", "optimizer.clip_norm=0", "checkpoint.every=0s", *shape, *layout]
    return measure.last_json(measure.run(command, args.timeout))


def table(args, machine, results):
    lines = ["# ZeRO-3 and tensor parallel: Lockstep and PyTorch, 2 ranks x 1 thread", "",
             f"{machine['cores']} x {machine['cpu']}, {machine['memory_gib']} GiB, {machine['date']}, commit {machine['commit']}.",
             f"Byte-level GPT, 9 layers x 512, 8 heads (28.6 million parameters), sequence 256, micro-batch {args.micro}, fp32, AdamW;",
             f"{args.steps} steps, {args.repetitions} interleaved repetitions; torch {results['ZeRO-3']['PyTorch'][0]['torch']} on both sides;",
             f"load before: {machine['load_before']:.2f}.", "",
             "| | tokens/s (median) | low - high | against PyTorch | peak RSS per rank | final loss |", "|---|---|---|---|---|---|"]
    for name, (peer, _, _) in PAIRS.items():
        base = measure.summary([run["tokens_per_second"] for run in results[name]["PyTorch"]])["median"]
        for side, runs in results[name].items():
            label = f"PyTorch {peer}" if side == "PyTorch" else side.replace("Lockstep", f"Lockstep {name}", 1)
            rate = measure.summary([run["tokens_per_second"] for run in runs])
            memory = max(run["peak_memory_bytes"] for run in runs) / 2**20
            lines.append(f"| {label} | {rate['median']:.0f} | {rate['low']:.0f} - {rate['high']:.0f} "
                         f"| {rate['median'] / base:.2f} x | {memory:.0f} MiB | {runs[-1]['final_loss']:.4f} |")
    lines += ["", "DTensor keeps the small embedding and head (256 bytes) whole on both ranks; Lockstep splits them.",
              "Initial weights and the order of samples differ, so losses are alike, not equal.", ""]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="a Python that has torch")
    parser.add_argument("--lockstep", default=str(measure.ROOT / "build/pypi/lockstep"))
    parser.add_argument("--also", type=measure.named_binary, action="append", default=[], metavar="NAME=BINARY",
                        help="another build of lockstep, measured in the same run; repeatable")
    parser.add_argument("--micro", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--timeout", type=float, default=600)
    args = parser.parse_args()
    machine = measure.machine()
    binaries = {"Lockstep": args.lockstep, **{f"Lockstep ({name})": binary for name, binary in args.also}}
    results = {name: {side: [] for side in ("PyTorch", *binaries)} for name in PAIRS}
    for repetition in range(args.repetitions):
        for name, (peer, extra, layout) in PAIRS.items():
            results[name]["PyTorch"].append(run_pytorch(args, extra))
            for side, binary in binaries.items():
                results[name][side].append(run_lockstep(args, binary, layout))
            rates = ", ".join(f"{side} {runs[-1]['tokens_per_second']:.0f}" for side, runs in results[name].items())
            print(f"{repetition + 1}/{args.repetitions}  {name} against {peer}: {rates} tokens/s", file=sys.stderr)
    measure.keep("parallel_vs_pytorch", {"machine": machine, "options": vars(args), "runs": results}, table(args, machine, results))
    # A benchmark also checks its result: runs that do not learn alike do not measure the same work.
    for name, sides in results.items():
        losses = [runs[-1]["final_loss"] for runs in sides.values()]
        if max(losses) > 1.15 * min(losses):
            sys.exit(f"{name}: losses differ too much to compare speeds: {losses}")


if __name__ == "__main__":
    main()
