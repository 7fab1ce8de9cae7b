"""Optuna's studies on the laboratory's surfaces, kept: they do not depend on our tuner.

Usage: lab_optuna.py --half dev|final [--build DIR] [--instances N] [--seeds S] [--variants A,B] [--processes P]
                     [--seconds N]

Runs what is missing in bench/tune/optuna_HALF.jsonl and appends it there, one line a study. A line counts as long as the
surface does the same (its fingerprint), Optuna has the same version and optuna_study.py the same PROTOCOL. lab.py calls
this too. `sampler/offered/told` is explained in optuna_study.py.
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

COUNTS = (30, 45, 60)
# What raises an exception ("failed") makes every sampler try the same failures again, and rules that are kept by asking
# anew take minutes then: those were tried on dev_ddp and dev_words and left out. A Gaussian process takes a hundred times
# as long as the others.
CHEAP = ["random/reject/zero", "tpe/reject/zero", "mtpe/reject/zero", "cmaes/reject/worst"]
DEAR = ["gp/reject/worst", "gp/reject/constraint"]
VARIANTS = CHEAP + DEAR


def facts_of(program, half, instances, kinds=()):
    """What is known of each surface: its best, its fingerprint. `kinds`: of these families only."""
    lines = measure.run([str(program), "--facts", str(instances), "--kinds", half], timeout=1200).splitlines()
    facts = [json.loads(line) for line in lines]
    return [fact for fact in facts if not kinds or fact["kind"] in kinds]


def cache_file(half):
    return HERE / f"optuna_{half}.jsonl"


def key_of(row):
    return (row["kind"], row["instance"], row["fingerprint"], row["variant"], row["seed"], row["optuna"], row["protocol"])


def read_cache(half):
    path = cache_file(half)
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return {key_of(row): row for row in rows}


def one_study(program, fact, variant, seed):
    import optuna
    import optuna_study
    description = measure.last_json(measure.run([str(program), "--kind", fact["kind"], "--instance",
                                                 str(fact["instance"]), "--describe"], timeout=60))
    result = optuna_study.run_study(program, description, variant, seed, max(COUNTS))
    return {"kind": fact["kind"], "instance": fact["instance"], "fingerprint": fact["fingerprint"], "variant": variant,
            "seed": seed, "optuna": optuna.__version__, "protocol": optuna_study.PROTOCOL,
            "truth": {str(count): round(result["truths"][count - 1], 2) for count in COUNTS},
            "failed": {str(count): round(sum(result["failures"][:count]) / count, 4) for count in COUNTS},
            "milliseconds_per_trial": round(1e3 * result["seconds"] / max(COUNTS), 2)}


def wanted_keys(facts, variants, seeds):
    import optuna
    import optuna_study
    return [((fact["kind"], fact["instance"], fact["fingerprint"], variant, seed, optuna.__version__,
              optuna_study.PROTOCOL), fact) for variant in variants for seed in range(1, seeds + 1) for fact in facts]


def complete(program, half, facts, variants, seeds, processes, seconds=float("inf")):
    """Runs what is missing; all rows that were wanted, and how many of them were run now. After `seconds` nothing more
    is started, and rows are left out; with 0 nothing is."""
    cache = read_cache(half)
    wanted = wanted_keys(facts, variants, seeds)
    missing = [(key, fact) for key, fact in wanted if key not in cache] if seconds > 0 else []
    start = time.monotonic()
    with concurrent.futures.ProcessPoolExecutor(processes) as pool:
        futures = {pool.submit(one_study, program, fact, key[3], key[4]): key for key, fact in missing}
        for done, future in enumerate(concurrent.futures.as_completed(futures), 1):
            row = cache[futures[future]] = future.result()
            with cache_file(half).open("a") as file:
                file.write(json.dumps(row, separators=(",", ":")) + "\n")
            if done % max(1, len(missing) // 40) == 0 or done == len(missing):
                print(f"optuna: {done}/{len(missing)} missing studies, {time.monotonic() - start:.0f} s",
                      file=sys.stderr, flush=True)
            if time.monotonic() - start > seconds:
                pool.shutdown(cancel_futures=True)
                break
    return [cache[key] for key, _ in wanted if key in cache], len(missing)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--half", choices=("dev", "final"), required=True)
    parser.add_argument("--build", type=pathlib.Path, default=measure.ROOT / "build" / "bench")
    parser.add_argument("--instances", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--variants", type=lambda text: text.split(","), default=VARIANTS)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start nothing more after this long")
    arguments = parser.parse_args()
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    program = arguments.build / "surface_worker"
    facts = facts_of(program, arguments.half, arguments.instances)
    complete(program, arguments.half, facts, arguments.variants, arguments.seeds, arguments.processes,
             arguments.seconds)


if __name__ == "__main__":
    main()
