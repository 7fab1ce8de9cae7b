"""Our tuner against Optuna and chance on the laboratory's surfaces: bench/reports/tune_lab_HALF.md and .json.

Usage: lab.py [--half dev|final] [--families A,B] [--instances N] [--seeds S] [--budgets 30,45,60] [--build DIR]
              [--processes P] [--kept-optuna] [--in-process] [--no-hidden] [--quick] [--report DIR]
  --half H         dev (default): families to work on the tuner with; final: those that are opened once, for the report
  --families A,B   only these (no report is written unless --report)
  --instances N    of each family, from 0 (default 4); none is selected
  --seeds S        studies of each instance (default 3)
  --budgets B      trials; each is a study of its own (default 30,45,60)
  --kept-optuna    do not run Optuna: use what bench/tune/optuna_HALF.jsonl has
  --in-process     ours in one process (tune_lab), without the command: fast, for development
  --optima FILE    with --in-process: keep the optima there, so that they are searched for once
  --no-hidden      without the studies whose names are hidden
  --quick          two instances, one seed, --kept-optuna, no report
  --report DIR     write tune_lab_HALF.md and .json there

A study of ours is the whole command, `lockstep tune --worker ... --trials N --json`: start, run store, importance. Exits 1
when a target is missed (not with --quick).
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
import lab_optuna  # noqa: E402
import lab_report  # noqa: E402
import lab_score  # noqa: E402
import measure  # noqa: E402
import our_study  # noqa: E402


def describe(program, fact, hidden):
    command = [str(program), "--kind", fact["kind"], "--instance", str(fact["instance"]), "--describe"]
    text = measure.run(command + (["--hide-names"] if hidden else []), timeout=60)
    return {**measure.last_json(text), "hidden": hidden}


def one_study(build, fact, seed, trials, hidden):
    program = build / "surface_worker"
    result = our_study.run_study(build / "lockstep", program, fact["kind"], fact["instance"], seed, trials,
                                 hide_names=hidden, importance=True)
    statements = lab_score.score(program, fact, describe(program, fact, hidden), result["study"])
    return {"kind": fact["kind"], "instance": fact["instance"], "seed": seed, "trials": trials, "hidden": hidden,
            "made": result["trials"], "regret": 100 * (1 - (result["truth"] or 0) / fact["best"]),
            "answered": result["truth"] is not None, "failed": result["failed"] / result["trials"],
            "milliseconds_per_trial": 1e3 * result["wall_seconds"] / trials,
            "cpu_milliseconds_per_trial": 1e3 * result["cpu_seconds"] / trials, "statements": statements}


def by_command(build, facts, arguments):
    jobs = [(build, fact, seed, trials, hidden)
            for hidden in ((False,) if arguments.no_hidden else (False, True)) for trials in arguments.budgets
            for fact in facts for seed in range(1, arguments.seeds + 1)]
    start, rows = time.monotonic(), []
    with concurrent.futures.ProcessPoolExecutor(arguments.processes) as pool:
        futures = [pool.submit(one_study, *job) for job in jobs]
        for done, future in enumerate(concurrent.futures.as_completed(futures), 1):
            rows.append(future.result())
            if done % max(1, len(jobs) // 20) == 0:
                print(f"lockstep tune: {done}/{len(jobs)} studies, {time.monotonic() - start:.0f} s", file=sys.stderr,
                      flush=True)
    return rows


def in_process(build, facts, arguments):
    kinds = ",".join(dict.fromkeys(fact["kind"] for fact in facts))
    rows = []
    for hidden in (False,) if arguments.no_hidden else (False, True):
        text = measure.run([str(build / "tune_lab"), "--kind", kinds, "--json", "--statements", "--instances",
                            str(arguments.instances), "--seeds", str(arguments.seeds), "--threads",
                            str(arguments.processes), "--trials", ",".join(map(str, arguments.budgets)),
                            *(["--hide-names"] if hidden else []),
                            *(["--optima", str(arguments.optima)] if arguments.optima else [])], timeout=7200)
        rows += [{**row, "hidden": hidden, "cpu_milliseconds_per_trial": row["milliseconds_per_trial"]}
                 for row in measure.last_json(text)["studies"]]
    return rows


def versions():
    import cmaes
    import numpy
    import optuna
    import scipy
    import torch
    return {"python": sys.version.split()[0], "optuna": optuna.__version__, "cmaes": cmaes.__version__,
            "numpy": numpy.__version__, "scipy": scipy.__version__, "torch": torch.__version__}


def arguments_of():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--half", choices=("dev", "final"), default="dev")
    parser.add_argument("--families", type=lambda text: text.split(","), default=[])
    parser.add_argument("--instances", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--budgets", type=lambda text: [int(word) for word in text.split(",")],
                        default=list(lab_optuna.COUNTS))
    parser.add_argument("--build", type=pathlib.Path, default=measure.ROOT / "build" / "bench")
    parser.add_argument("--processes", type=int, default=2)
    for name in ("--kept-optuna", "--in-process", "--no-hidden", "--quick"):
        parser.add_argument(name, action="store_true")
    parser.add_argument("--optima", type=pathlib.Path)
    parser.add_argument("--report", type=pathlib.Path)
    arguments = parser.parse_args()
    if not set(arguments.budgets) <= set(lab_optuna.COUNTS):
        parser.error(f"--budgets: Optuna's studies are kept at {lab_optuna.COUNTS} trials; use some of these")
    arguments.build = arguments.build.resolve()
    if arguments.quick:
        arguments.instances, arguments.seeds, arguments.kept_optuna = 2, 1, True
    elif not arguments.report and not arguments.families and not arguments.in_process:
        arguments.report = measure.REPORTS
    return arguments


def main():
    arguments = arguments_of()
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    start, machine = time.monotonic(), measure.machine()
    program = arguments.build / "surface_worker"
    facts = lab_optuna.facts_of(program, arguments.half, arguments.instances, arguments.families)
    if not facts:
        sys.exit(f"lab.py: no family of {arguments.families} in the half '{arguments.half}'")
    optuna, ran = lab_optuna.complete(program, arguments.half, facts, lab_optuna.VARIANTS, arguments.seeds,
                                      arguments.processes, 0 if arguments.kept_optuna else float("inf"))
    optuna_seconds = time.monotonic() - start
    ours = (in_process if arguments.in_process else by_command)(arguments.build, facts, arguments)
    document = {"schema": "lockstep.bench_tune_lab/1", "half": arguments.half, "machine": machine,
                "versions": versions(), "instances": arguments.instances, "seeds": arguments.seeds,
                "budgets": arguments.budgets, "seconds": round(time.monotonic() - start),
                "optuna_seconds": round(optuna_seconds), "optuna_run_now": ran, "in_process": arguments.in_process,
                "surfaces": facts, "ours": ours, "optuna": optuna}
    missed = lab_report.write(document, arguments.report)
    return 1 if missed and not arguments.quick else 0


if __name__ == "__main__":
    sys.exit(main())
