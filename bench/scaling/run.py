#!/usr/bin/env python3
"""Scaling of the CIFAR CNN over CPU ranks: fixed batch per rank (weak) and fixed global batch (strong).

Uses the user's CIFAR-10 files in data/cifar10, or whatever lies there in the same binary format (make data-cifar-like).
"""
import argparse
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import measure  # noqa: E402


def run_job(args, ranks, micro):
    command = [args.lockstep, "train", args.job, "--json", "--no-record", f"cluster=1x{ranks}xcpu", f"layout.dp={ranks}",
               f"batch.micro={micro}", f"steps={args.steps}", f"threads_per_rank={args.threads}", "checkpoint.every=0s",
               "evaluation.batches=1"]
    if args.data:
        command.append(f"data.path={pathlib.Path(args.data).resolve()}")
    return measure.last_json(measure.run(command, args.timeout))


def measure_mode(args, mode):
    rows = []
    for ranks in args.ranks:
        micro = args.micro if mode == "weak" else args.micro * max(args.ranks) // ranks
        runs = [run_job(args, ranks, micro) for _ in range(args.repetitions)]
        rate = measure.summary([run["samples_per_second"] for run in runs])
        rows.append({"ranks": ranks, "micro": micro, "global": micro * ranks, "samples_per_second": rate,
                     "peak_memory_bytes": max(run["peak_memory_bytes"] for run in runs), "final_loss": runs[-1]["final_loss"]})
        print(f"{mode}: {ranks} ranks x {micro}: {rate['median']:.1f} samples/s", file=sys.stderr)
    base = rows[0]["samples_per_second"]["median"] / rows[0]["ranks"]
    for row in rows:
        row["speedup"] = row["samples_per_second"]["median"] / rows[0]["samples_per_second"]["median"]
        row["efficiency"] = row["samples_per_second"]["median"] / row["ranks"] / base
    return rows


def section(title, rows):
    lines = [f"## {title}", "", "| ranks | batch per rank | global batch | samples/s | low - high | speed-up | efficiency | peak RSS per rank |",
             "|---|---|---|---|---|---|---|---|"]
    for row in rows:
        rate = row["samples_per_second"]
        lines.append(f"| {row['ranks']} | {row['micro']} | {row['global']} | {rate['median']:.1f} | {rate['low']:.1f} - {rate['high']:.1f} "
                     f"| {row['speedup']:.2f} | {100 * row['efficiency']:.0f}% | {row['peak_memory_bytes'] / 2**20:.0f} MiB |")
    return lines + [""]


def remark(args, cores):
    needed = max(args.ranks) * args.threads
    if needed <= cores:
        return "Every rank has its own core."
    fair = cores // args.threads
    return (f"The machine has {cores} cores: beyond {fair} ranks of {args.threads} thread{'s' if args.threads > 1 else ''} the ranks share them, so "
            f"the best that {max(args.ranks)} ranks can reach is {100 * fair / max(args.ranks):.0f}% efficiency; what is missing below that is "
            "communication, memory bandwidth and the scheduler.")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lockstep", default=str(measure.ROOT / "build/release/lockstep"))
    parser.add_argument("--job", default=str(measure.ROOT / "specs/jobs/cifar-cnn.yaml"))
    parser.add_argument("--data", default="", help="folder with CIFAR-10 binary files, instead of the job's")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--micro", type=int, default=16, help="samples per rank of the weak table, and of the strong one at most ranks")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--timeout", type=float, default=900)
    args = parser.parse_args()
    machine = measure.machine()
    weak, strong = measure_mode(args, "weak"), measure_mode(args, "strong")
    lines = ["# Scaling of the CIFAR CNN over CPU ranks (Gloo, fp32)", "",
             f"{machine['cores']} x {machine['cpu']}, {machine['memory_gib']} GiB, {machine['date']}, commit {machine['commit']}; "
             f"{args.threads} thread per rank, {args.steps} steps, {args.repetitions} repetitions.", "", remark(args, machine["cores"]), ""]
    lines += section("Fixed batch per rank", weak) + section("Fixed global batch", strong)
    measure.keep("scaling_cifar_cnn", {"machine": machine, "options": vars(args), "weak": weak, "strong": strong}, "\n".join(lines))


if __name__ == "__main__":
    main()
