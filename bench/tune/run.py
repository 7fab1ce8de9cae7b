"""Our tuner against Optuna on the surfaces that it was made on (the laboratory is lab.py): bench/reports/tune.md, tune.json, tune.svg.

Usage: run.py [--build DIR] [--quick] [--instances N] [--seeds S] [--reuse-optuna FILE]
  --build DIR          holds lockstep, surface_worker and tune_lab (default build/bench: `make bench-tune-known`)
  --quick              three minutes: 3 instances of each kind, fewer variants; writes no report, checks no target
  --instances N        counted instances of each kind (default 15)
  --seeds S            studies of each instance, ours and Optuna's alike (default 1)
  --reuse-optuna FILE  take Optuna's studies from an earlier tune.json (for work on ours; the report says so)

Needs Python with optuna, scipy and torch (`make bench-tune-known` makes .cache/venv-bench). Exits 1 when a target is missed.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
import measure  # noqa: E402
import our_study  # noqa: E402
import tune_report  # noqa: E402

COUNTS = (30, 45, 60)
PROCESSES = 2
# sampler/offered/told, explained in optuna_study.py. TPE ranks pruned trials and violated constraints last, so they
# give the same studies as zero does.
VARIANTS = [
    "random/plain/zero", "random/joint/zero",
    "tpe/plain/zero", "tpe/plain/failed", "tpe/joint/zero", "tpe/joint/failed", "tpe/reject/zero", "tpe/reject/failed",
    "mtpe/plain/zero", "mtpe/plain/failed", "mtpe/joint/zero", "mtpe/joint/failed", "mtpe/reject/zero",
    "mtpe/reject/failed",
    "gp/reject/zero", "gp/reject/failed", "gp/reject/worst", "gp/reject/constraint",
]
QUICK_VARIANTS = ["random/joint/zero", "tpe/reject/zero", "mtpe/reject/zero", "gp/reject/constraint"]


def surface_facts(program, wanted):
    lines = measure.run([str(program), "--facts", str(wanted)], timeout=600).splitlines()
    return [json.loads(line) for line in lines]


def describe(program, fact):
    return measure.last_json(measure.run([str(program), "--kind", fact["kind"], "--instance", str(fact["instance"]),
                                          "--describe"], timeout=60))


def optuna_job(program, fact, description, variant, seed):
    import optuna_study
    result = optuna_study.run_study(program, description, variant, seed, max(COUNTS))
    regrets = [100 * (1 - truth / fact["best"]) for truth in result["truths"]]
    return {"variant": variant, "kind": fact["kind"], "instance": fact["instance"], "seed": seed,
            "regrets": [round(regret, 4) for regret in regrets],
            "failed": {str(count): sum(result["failures"][:count]) / count for count in COUNTS},
            "milliseconds_per_trial": 1e3 * result["seconds"] / max(COUNTS)}


def our_job(build, fact, seed, trials):
    result = our_study.run_study(build / "lockstep", build / "surface_worker", fact["kind"], fact["instance"], seed,
                                 trials)
    answered = result["truth"] is not None
    return {"kind": fact["kind"], "instance": fact["instance"], "seed": seed, "trials": trials, "answered": answered,
            "regret": 100 * (1 - result["truth"] / fact["best"]) if answered else 100.0,
            "failed": result["failed"] / result["trials"], "made": result["trials"],
            "milliseconds_per_trial": 1e3 * result["wall_seconds"] / trials,
            "cpu_milliseconds_per_trial": 1e3 * result["cpu_seconds"] / trials,
            "bias_percent": 100 * (result["estimate"] / result["truth"] - 1) if answered else None}


def in_pool(name, jobs):
    """Results of (function, arguments...) in a pool of processes, in order, with a line of progress."""
    start, results = time.monotonic(), [None] * len(jobs)
    with concurrent.futures.ProcessPoolExecutor(PROCESSES) as pool:
        futures = {pool.submit(*job): number for number, job in enumerate(jobs)}
        for done, future in enumerate(concurrent.futures.as_completed(futures), 1):
            results[futures[future]] = future.result()
            if done % max(1, len(jobs) // 20) == 0 or done == len(jobs):
                print(f"{name}: {done}/{len(jobs)}, {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
    return results


def run_optuna(build, counted, variants, seeds):
    worker = build / "surface_worker"
    descriptions = [describe(worker, fact) for fact in counted]
    jobs = [(optuna_job, worker, fact, description, variant, seed) for variant in variants
            for fact, description in zip(counted, descriptions) for seed in range(1, seeds + 1)]
    # The Gaussian process takes longest: first, so that no process is left alone with it at the end.
    jobs.sort(key=lambda job: not job[4].startswith("gp"))
    return in_pool("optuna", jobs)


def run_ours(build, counted, seeds):
    jobs = [(our_job, build, fact, seed, trials)
            for trials in COUNTS for fact in counted for seed in range(1, seeds + 1)]
    return in_pool("lockstep tune", jobs)


def run_with_prior(build, instances, seeds):
    """In one process: the command has no flag for the surfaces' own prior."""
    text = measure.run([str(build / "tune_lab"), "--prior", "--json", "--instances", str(instances), "--seeds",
                        str(seeds), "--threads", str(PROCESSES), "--trials", ",".join(map(str, COUNTS))], timeout=1800)
    return measure.last_json(text)["studies"]


def versions():
    import numpy
    import optuna
    import scipy
    import torch
    return {"python": sys.version.split()[0], "optuna": optuna.__version__, "numpy": numpy.__version__,
            "scipy": scipy.__version__, "torch": torch.__version__}


def arguments_of():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=measure.ROOT / "build" / "bench")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--instances", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--reuse-optuna", type=pathlib.Path)
    arguments = parser.parse_args()
    arguments.instances = arguments.instances or (3 if arguments.quick else 15)
    return arguments


def main():
    arguments = arguments_of()
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    start, machine = time.monotonic(), measure.machine()
    facts = surface_facts(arguments.build / "surface_worker", arguments.instances)
    counted = [fact for fact in facts if fact["counts"]]
    ours = run_ours(arguments.build, counted, arguments.seeds)
    prior = run_with_prior(arguments.build, arguments.instances, arguments.seeds)
    if arguments.reuse_optuna:
        optuna = json.loads(arguments.reuse_optuna.read_text())["optuna"]
    else:
        optuna = run_optuna(arguments.build, counted, QUICK_VARIANTS if arguments.quick else VARIANTS, arguments.seeds)
    document = {"schema": "lockstep.bench_tune/1", "machine": machine, "versions": versions(),
                "seconds": round(time.monotonic() - start), "optuna_reused": bool(arguments.reuse_optuna),
                "seeds": arguments.seeds, "surfaces": facts, "ours": ours, "ours_with_prior": prior, "optuna": optuna}
    missed = tune_report.write(document, COUNTS, None if arguments.quick else measure.REPORTS)
    return 1 if missed and not arguments.quick else 0


if __name__ == "__main__":
    sys.exit(main())
