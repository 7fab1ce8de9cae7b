#!/usr/bin/env python3
"""Saving a training state: stall and bandwidth of Lockstep's checkpoints, torch.distributed.checkpoint (sync and async_save)
and `dd conv=fdatasync`, interleaved in one run on the same disk.

Weights and both moments in fp32, cut over the ranks (ZeRO-3, FSDP). The stall is what a step loses, of every save but the first of a
process. The bandwidth is all bytes over the time from the call until they are durable, with no training meanwhile: of the last save of
each process on both sides, so that the earlier ones have warmed it up. Medians, lowest and highest are over all repetitions, whose
order is turned round every time; dirty pages are written out in between. Standard library only.
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
DCP, OURS = "torch.distributed.checkpoint", "Lockstep"


def run_dd(args, folder):
    target, block = folder / "dd", 8 << 20
    count = 12 * args.parameters // block
    begin = time.perf_counter()
    subprocess.run(["dd", "if=/dev/zero", f"of={target}", f"bs={block}", f"count={count}", "conv=fdatasync"], check=True,
                   capture_output=True)
    seconds = time.perf_counter() - begin
    target.unlink()
    return {"bytes": count * block, "bandwidth": count * block / seconds}


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
    return {"torch": said["torch"], "bytes": said["bytes"], "stall": said["stall"][1:], "first_stall": said["stall"][0],
            "bandwidth": said["bytes"] / said["sync"][-1], "sync_seconds": said["sync"], "async_seconds": said["async"]}


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


# (what, its limit, whether more is better)
TARGETS = {"stall against async_save": (0.4, False), "stall, s": (0.12, False), "bandwidth against DCP": (1.5, True),
           "bandwidth against dd": (0.9, True)}


def verdicts(figures):
    lines = ["| Lockstep | measured | target | |", "|---|---|---|---|"]
    for name, (limit, more) in TARGETS.items():
        met = figures[name] >= limit if more else figures[name] <= limit
        lines.append(f"| {name} | {figures[name]:.2f} | {'at least' if more else 'at most'} {limit} | {'met' if met else 'missed'} |")
    return lines


def table(args, machine, results):
    rates = {name: measure.summary([run["bandwidth"] for run in runs]) for name, runs in results.items()}
    stalls = {name: measure.summary([stall for run in runs for stall in run["stall"]]) for name, runs in results.items() if name != "dd"}
    dd, dcp = rates["dd"]["median"], rates[DCP]["median"]
    lines = [f"# Checkpoints: {args.parameters / 1e6:.0f}M parameters on {args.ranks} ranks", "",
             f"{machine['cores']} x {machine['cpu']}, {machine['memory_gib']} GiB, {machine['date']}, commit {machine['commit']}.",
             f"Weights and two moments in fp32, ZeRO-3; torch {results[DCP][0]['torch']}, Gloo;",
             f"{args.repetitions} interleaved repetitions of {args.saves} saves; load before: {machine['load_before']:.2f}.", "",
             "| | size | stall: median | low - high | against async_save | bandwidth: median | low - high | against DCP | against dd |",
             "|---|---|---|---|---|---|---|---|---|"]
    for name, runs in results.items():
        rate, stall = rates[name], stalls.get(name)
        lost = "| | | " if stall is None else (f"| {stall['median'] * 1e3:.0f} ms | {stall['low'] * 1e3:.0f} - {stall['high'] * 1e3:.0f} ms "
                                               f"| {stall['median'] / stalls[DCP]['median']:.2f} ")
        lines.append(f"| {name} | {runs[0]['bytes'] / 2**20:.0f} MiB {lost}| {rate['median'] / 1e9:.2f} GB/s "
                     f"| {rate['low'] / 1e9:.2f} - {rate['high'] / 1e9:.2f} | {rate['median'] / dcp:.2f} | {rate['median'] / dd:.2f} |")
    lines += ["", *verdicts({"stall against async_save": stalls[OURS]["median"] / stalls[DCP]["median"],
                             "stall, s": stalls[OURS]["median"], "bandwidth against DCP": rates[OURS]["median"] / dcp,
                             "bandwidth against dd": rates[OURS]["median"] / dd})]
    lines += ["", "The stall of torch.distributed.checkpoint is that of `async_save`, its bandwidth that of the synchronous `save`.",
              "Stalls are of every save but the first of a process, which allocates; bandwidths of the last save of each process, with no",
              "training meanwhile.", ""]
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
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--folder", type=pathlib.Path, help="where to write (default: a temporary folder)")
    parser.add_argument("--timeout", type=float, default=1200)
    parser.add_argument("--no-report", action="store_true", help="print, but leave bench/reports as it is")
    args = parser.parse_args()
    if args.saves < 2:
        parser.error("--saves: at least 2, the first one warms up")
    machine = measure.machine()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="lockstep-bench-", dir=args.folder))
    contenders = {"dd": lambda: run_dd(args, folder), DCP: lambda: run_pytorch(args, folder)}
    for name, binary in [(OURS, args.lockstep), *((f"{OURS} ({name})", binary) for name, binary in args.also)]:
        contenders[name] = lambda binary=binary: run_lockstep(args, folder, binary)
    results = {name: [] for name in contenders}
    try:
        for repetition in range(args.repetitions):
            for name, run in list(contenders.items())[:: -1 if repetition % 2 else 1]:
                os.sync()
                results[name].append(run())
                print(f"{repetition + 1}/{args.repetitions}  {name}: {results[name][-1]}", file=sys.stderr)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    options = {key: str(value) if isinstance(value, pathlib.Path) else value for key, value in vars(args).items()}
    if args.no_report:
        print(table(args, machine, results))
    else:
        measure.keep("checkpoint", {"machine": machine, "options": options, "runs": results}, table(args, machine, results))


if __name__ == "__main__":
    main()
