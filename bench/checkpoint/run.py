#!/usr/bin/env python3
"""Saving a training state: stall and bandwidth of Lockstep's checkpoints, torch.distributed.checkpoint (sync and async_save)
and `dd conv=fdatasync`, interleaved in one run on the same disk.

Weights and both moments in fp32, cut over the ranks (ZeRO-3, FSDP). The stall is what a step loses; the bandwidth is all bytes
over the time from the call until they are durable, with no training meanwhile. Standard library only.
"""
import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import measure  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent


def run_dd(args, folder):
    target, bytes_ = folder / "dd", 12 * args.parameters
    begin = time.perf_counter()
    subprocess.run(["dd", "if=/dev/zero", f"of={target}", "bs=8M", f"count={bytes_ // (8 << 20)}", "conv=fdatasync"], check=True,
                   capture_output=True)
    seconds = time.perf_counter() - begin
    target.unlink()
    return {"bandwidth": bytes_ / seconds}


def run_pytorch(args, folder):
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(measure.free_port()), "GLOO_SOCKET_IFNAME": "lo",
                   "WORLD_SIZE": str(args.ranks), "OMP_NUM_THREADS": "1"}
    command = [args.python, str(HERE / "pytorch_dcp.py"), "--parameters", str(args.parameters), "--folder", str(folder / "dcp"),
               "--saves", str(args.saves)]
    ranks = [subprocess.Popen(command, env={**environment, "RANK": str(rank)}, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE) for rank in range(args.ranks)]
    try:
        results = [rank.communicate(timeout=args.timeout) for rank in ranks]
    finally:
        for rank in ranks:
            if rank.poll() is None:
                rank.kill()
    if any(rank.returncode != 0 for rank in ranks):
        raise RuntimeError("pytorch_dcp.py failed:\n" + "\n".join(err[-2000:] for _, err in results))
    said = measure.last_json(results[0][0])
    shutil.rmtree(folder / "dcp", ignore_errors=True)
    return {"torch": said["torch"], "bytes": said["bytes"], "stall": said["stall"][1:] or said["stall"],
            "bandwidth": said["bytes"] / min(said["sync"]), "sync_seconds": said["sync"], "async_seconds": said["async"]}


def job_text(args, folder):
    hidden = 768
    layers = max(1, round(args.parameters / (12 * hidden * hidden)))
    return json.dumps({
        "model": {"arch": "gpt", "layers": layers, "hidden": hidden, "heads": 12, "vocab": 256, "max_sequence": 16},
        "cluster": f"1x{args.ranks}xcpu", "layout": {"shard": args.ranks, "zero": 3}, "threads_per_rank": 1,
        "data": {"kind": "text", "path": "/usr/share/common-licenses", "tokenizer": "bytes"},
        "batch": {"micro": 1, "sequence_length": 16}, "optimizer": {"kind": "adamw", "learning_rate": 1e-4},
        "communication": {"backend": "gloo"}, "evaluation": {"batches": 1}, "steps": 3 * args.saves,
        "checkpoint": {"directory": str(folder / "checkpoints"), "every_steps": 3, "keep": 1}})


def run_lockstep(args, folder, binary):
    home = {"LOCKSTEP_HOME": str(folder / "home")}
    job = folder / "job.yaml"
    job.write_text(job_text(args, folder))
    run = measure.last_json(measure.run([binary, "train", str(job), "--json"], args.timeout, home))["run"]
    events = json.loads(measure.run([binary, "report", run, "--json"], 60, home))["events"]
    saves = [event["data"] for event in events if event["kind"] == "checkpoint"]
    info = json.loads(measure.run([binary, "checkpoint", "inspect", str(folder / "checkpoints"), "--json"], 60, home))
    for name in ("checkpoints", "home"):
        shutil.rmtree(folder / name, ignore_errors=True)
    # The last save is waited for, with nothing beside it: its time is from the call until it is durable and published.
    return {"bytes": info["bytes"], "stall": [save["stall_seconds"] for save in saves[1:]],
            "first_stall": saves[0]["stall_seconds"], "bandwidth": info["bytes"] / saves[-1]["seconds"],
            "save_seconds": [save["seconds"] for save in saves]}


def table(args, machine, results):
    dd = measure.summary([run["bandwidth"] for run in results["dd"]])["median"]
    theirs = results["torch.distributed.checkpoint"]
    their_stall = measure.summary([stall for run in theirs for stall in run["stall"]])["median"]
    their_rate = measure.summary([run["bandwidth"] for run in theirs])["median"]
    lines = [f"# Checkpoints: {args.parameters / 1e6:.0f}M parameters on {args.ranks} ranks", "",
             f"{machine['cores']} x {machine['cpu']}, {machine['memory_gib']} GiB, {machine['date']}, commit {machine['commit']}.",
             f"Weights and two moments in fp32 ({theirs[0]['bytes'] / 2**20:.0f} MiB), ZeRO-3; torch {theirs[0]['torch']}, Gloo;",
             f"{args.repetitions} interleaved repetitions of {args.saves} saves; load before: {machine['load_before']:.2f}.", "",
             "| | stall (median) | low - high | against async_save | bandwidth (median) | against DCP | against dd |",
             "|---|---|---|---|---|---|---|",
             f"| dd conv=fdatasync | | | | {dd / 1e9:.2f} GB/s | | 1.00 |"]
    for name, runs in results.items():
        if name == "dd":
            continue
        stall = measure.summary([value for run in runs for value in run["stall"]])
        rate = measure.summary([run["bandwidth"] for run in runs])["median"]
        lines.append(f"| {name} | {stall['median'] * 1e3:.0f} ms | {stall['low'] * 1e3:.0f} - {stall['high'] * 1e3:.0f} ms "
                     f"| {stall['median'] / their_stall:.2f} | {rate / 1e9:.2f} GB/s | {rate / their_rate:.2f} | {rate / dd:.2f} |")
    lines += ["", "The stall of torch.distributed.checkpoint is that of `async_save`, its bandwidth that of the fastest synchronous `save`.",
              "The first save of a run, which allocates, is left out of both stalls.", ""]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="a Python that has torch")
    parser.add_argument("--lockstep", default=str(measure.ROOT / "build/release/lockstep"))
    parser.add_argument("--also", type=measure.named_binary, action="append", default=[], metavar="NAME=BINARY",
                        help="another build of lockstep, measured in the same run; repeatable")
    parser.add_argument("--parameters", type=int, default=100_000_000)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--saves", type=int, default=4)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--folder", type=pathlib.Path, help="where to write (default: a temporary folder)")
    parser.add_argument("--timeout", type=float, default=1200)
    args = parser.parse_args()
    machine = measure.machine()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="lockstep-bench-", dir=args.folder))
    contenders = {"dd": lambda: run_dd(args, folder), "torch.distributed.checkpoint": lambda: run_pytorch(args, folder)}
    for name, binary in [("Lockstep", args.lockstep), *((f"Lockstep ({name})", binary) for name, binary in args.also)]:
        contenders[name] = lambda binary=binary: run_lockstep(args, folder, binary)
    results = {name: [] for name in contenders}
    try:
        for repetition in range(args.repetitions):
            for name, run in contenders.items():
                results[name].append(run())
                print(f"{repetition + 1}/{args.repetitions}  {name}: {results[name][-1]}", file=sys.stderr)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    options = {key: str(value) if isinstance(value, pathlib.Path) else value for key, value in vars(args).items()}
    measure.keep("checkpoint", {"machine": machine, "options": options, "runs": results}, table(args, machine, results))


if __name__ == "__main__":
    main()
