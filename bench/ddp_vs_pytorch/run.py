#!/usr/bin/env python3
"""Data-parallel tokens/s of a 10M-parameter byte GPT: Lockstep against PyTorch's DistributedDataParallel over Gloo.

The same model, batch, optimizer and number of threads per rank, interleaved A B C A B C so that a machine that slows down
slows all of them. Standard library only; PyTorch runs in processes of the given Python.
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


def run_pytorch(args):
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(measure.free_port()), "GLOO_SOCKET_IFNAME": "lo",
                   "WORLD_SIZE": str(args.ranks), "OMP_NUM_THREADS": str(args.threads)}
    command = [args.python, str(HERE / "pytorch_ddp.py"), "--steps", str(args.steps), "--micro", str(args.micro),
               "--threads", str(args.threads), "--fused", str(args.fused), "--compile", str(args.compile)]
    ranks = [subprocess.Popen(command, env={**environment, "RANK": str(rank)}, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE) for rank in range(args.ranks)]
    try:
        results = [rank.communicate(timeout=args.timeout) for rank in ranks]
    finally:
        for rank in ranks:
            if rank.poll() is None:
                rank.kill()
    if any(rank.returncode != 0 for rank in ranks):
        raise RuntimeError("pytorch_ddp.py failed:\n" + "\n".join(err[-2000:] for _, err in results))
    return measure.last_json(results[0][0])


def run_lockstep(args, binary):
    command = [binary, "train", str(JOB), "--json", "--no-record", f"steps={args.steps}", f"batch.micro={args.micro}",
               f"cluster=1x{args.ranks}xcpu", f"layout.dp={args.ranks}", f"threads_per_rank={args.threads}",
               "checkpoint.every=0s"]
    return measure.last_json(measure.run(command, args.timeout))


def torch_of(binary):
    """Version of libtorch that the engine beside `binary` was built with."""
    try:
        checks = measure.last_json(subprocess.run([binary, "doctor", "--json"], capture_output=True, text=True, timeout=60).stdout)
        return next((check["detail"] for check in checks["checks"] if check["name"] == "libtorch"), "unknown")
    except (OSError, RuntimeError, subprocess.TimeoutExpired):
        return "unknown"


def contenders(args):
    found = {"PyTorch DDP": lambda: run_pytorch(args)}
    for name, binary in {"Lockstep (PyPI torch)": args.pypi, "Lockstep (Debian libtorch)": args.debian}.items():
        if pathlib.Path(binary).exists():
            found[name] = lambda binary=binary: run_lockstep(args, binary)
        else:
            print(f"{name}: {binary} is not built, left out", file=sys.stderr)
    for name, binary in args.also:
        found[f"Lockstep ({name})"] = lambda binary=binary: run_lockstep(args, binary)
    return found


def table(args, machine, results):
    base = measure.summary([run["tokens_per_second"] for run in results["PyTorch DDP"]])["median"]
    lines = [f"# Data parallel: Lockstep and PyTorch DDP, {args.ranks} ranks x {args.threads} thread", "",
             f"{machine['cores']} x {machine['cpu']}, {machine['memory_gib']} GiB, {machine['date']}, commit {machine['commit']}.",
             f"Byte-level GPT, 6 layers x 384, 6 heads, sequence 256, micro-batch {args.micro}, fp32, AdamW, clipping; {args.steps} steps,",
             f"the first {min(10, args.steps // 10)} not timed; {args.repetitions} interleaved repetitions; load before: {machine['load_before']:.2f}.", "",
             "| | tokens/s (median) | low - high | against PyTorch | peak RSS per rank | final loss |", "|---|---|---|---|---|---|"]
    for name, runs in results.items():
        rate = measure.summary([run["tokens_per_second"] for run in runs])
        memory = max(run["peak_memory_bytes"] for run in runs) / 2**20
        lines.append(f"| {name} | {rate['median']:.0f} | {rate['low']:.0f} - {rate['high']:.0f} | {rate['median'] / base:.2f} x "
                     f"| {memory:.0f} MiB | {runs[-1]['final_loss']:.4f} |")
    lines += ["", "Initial weights and the order of samples differ between the two, so losses are alike, not equal.",
              "The same binary against PyTorch on identical weights and batches is tests/interop.", ""]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="a Python that has torch")
    parser.add_argument("--pypi", default=str(measure.ROOT / "build/pypi/lockstep"))
    parser.add_argument("--debian", default=str(measure.ROOT / "build/release/lockstep"))
    parser.add_argument("--also", type=measure.named_binary, action="append", default=[], metavar="NAME=BINARY",
                        help="another build of lockstep, measured in the same run; repeatable")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--micro", type=int, default=4)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--fused", type=int, default=1, help="PyTorch: AdamW(fused=True)")
    parser.add_argument("--compile", type=int, default=0, help="PyTorch: torch.compile around the model")
    parser.add_argument("--timeout", type=float, default=600)
    args = parser.parse_args()
    machine = measure.machine()
    candidates = contenders(args)
    results = {name: [] for name in candidates}
    for repetition in range(args.repetitions):
        for name, run in candidates.items():
            results[name].append(run())
            print(f"{repetition + 1}/{args.repetitions}  {name}: {results[name][-1]['tokens_per_second']:.0f} tokens/s", file=sys.stderr)
    losses = [runs[-1]["final_loss"] for runs in results.values()]
    versions = {"PyTorch DDP": results["PyTorch DDP"][0]["torch"], "pypi": torch_of(args.pypi), "debian": torch_of(args.debian),
                **{name: torch_of(binary) for name, binary in args.also}}
    measure.keep("ddp_vs_pytorch", {"machine": machine, "options": vars(args), "versions": versions, "runs": results},
                 table(args, machine, results))
    # A benchmark also checks its result: runs that do not learn alike do not measure the same work.
    if max(losses) > 1.15 * min(losses):
        sys.exit(f"losses differ too much to compare speeds: {losses}")


if __name__ == "__main__":
    main()
