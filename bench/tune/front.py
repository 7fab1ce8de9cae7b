"""Fronts of throughput and memory: ours against Optuna's NSGA-II, TPE and chance, on dev families of the laboratory.

Usage: front.py [--build DIR] [--families dev_ddp,dev_zero] [--instances N] [--seeds S] [--trials 45] [--name NAME]

A study of ours is the whole command with `--objective tokens_per_second,memory`. Every tool measures through the same
worker, with the same noise at the same trial number, and starts from the default where the surface tells it. What counts
is the truth of the settings that each tool offers as its front: the hypervolume (in logarithms, from a tenth of the
highest throughput and all of the device's memory), as a share of that of everything that any tool found and of 4000
random settings.
"""
import argparse
import json
import math
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
import lab_optuna  # noqa: E402
import measure  # noqa: E402
import optuna_study  # noqa: E402

OTHERS = ("nsga2", "tpe", "random")


class Worker(optuna_study.Worker):
    def __init__(self, program, kind, instance, noise_seed):
        self.process = subprocess.Popen([str(program), "--kind", kind, "--instance", str(instance), "--noise-seed",
                                         str(noise_seed), "--truth-of", "--memory"],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def truth_of(reply):
    return None if "failed" in reply else (reply["truth"], reply["values"]["memory_bytes"])


def volume(points, best):
    """Of (throughput, memory), in logarithms."""
    scores = sorted({(math.log(speed / (0.1 * best)), math.log(80e9 / memory)) for speed, memory in points
                     if speed > 0.1 * best}, reverse=True)
    total, reached = 0.0, 0.0
    for speed, memory in scores:
        if memory > reached:
            total += speed * (memory - reached)
            reached = memory
    return total


def ours(build, kind, instance, seed, trials):
    program = build / "surface_worker"
    surface = ["--kind", kind, "--instance", str(instance)]
    with tempfile.TemporaryDirectory(prefix="lockstep-front-") as name:
        space = pathlib.Path(name) / "space.yaml"
        space.write_text(measure.run([str(program), *surface, "--space"], timeout=60))
        worker = " ".join([str(program), *surface, "--noise-seed", str(seed), "--memory"])
        start = os.times()
        text = measure.run([str(build / "lockstep"), "tune", "--space", str(space), "--worker", worker, "--trials",
                            str(trials), "--seed", str(seed), "--objective", "tokens_per_second,memory", "--json"],
                           timeout=1200, environment={"LOCKSTEP_HOME": name + "/store"})
        end = os.times()
    points = measure.last_json(text)["front"]["points"]
    ask = Worker(program, kind, instance, seed)
    found = [truth_of(ask.evaluate(0, point["config"])) for point in points]
    ask.close()
    cpu = end.children_user + end.children_system - start.children_user - start.children_system
    return [point for point in found if point], 1e3 * cpu / trials


def optunas(build, kind, instance, seed, trials, name):
    import optuna
    program = build / "surface_worker"
    description = measure.last_json(measure.run([str(program), "--kind", kind, "--instance", str(instance),
                                                 "--describe"], timeout=60))
    encoding = optuna_study.Encoding(description, "reject", flat=False)
    samplers = {"nsga2": lambda: optuna.samplers.NSGAIISampler(seed=seed, population_size=12),
                "tpe": lambda: optuna.samplers.TPESampler(seed=seed),
                "random": lambda: optuna.samplers.RandomSampler(seed=seed)}
    study = optuna.create_study(directions=["maximize", "minimize"], sampler=samplers[name]())
    if all("default" in knob for knob in description["knobs"]):
        study.enqueue_trial(encoding.parameters_of_default())
    worker, truths, slowest = Worker(program, kind, instance, seed), {}, [1.0, 80e9]
    start = time.process_time()
    for number in range(trials):
        for _ in range(optuna_study.MOST_REJECTIONS):
            trial = study.ask()
            levels = encoding.suggest(trial)
            if levels is not None:
                break
            study.tell(trial, slowest)
        reply = worker.evaluate(number, encoding.config(levels)) if levels is not None else {"failed": "invalid"}
        if "failed" in reply:
            study.tell(trial, slowest)
            continue
        truths[trial.number] = truth_of(reply)
        study.tell(trial, [statistics.fmean(reply["samples"]), reply["values"]["memory_bytes"]])
    worker.close()
    cpu = time.process_time() - start
    return [truths[trial.number] for trial in study.best_trials if trial.number in truths], 1e3 * cpu / trials


def by_chance(program, kind, instance):
    """What 4000 random settings give, for the reference alone."""
    description = measure.last_json(measure.run([str(program), "--kind", kind, "--instance", str(instance),
                                                 "--describe"], timeout=60))
    encoding, generator = optuna_study.Encoding(description, "plain", flat=False), random.Random(1)
    encoding.rules = description["rules"]
    worker, points = Worker(program, kind, instance, 1), []
    for _ in range(4000):
        levels = {}
        for name, knob in encoding.knobs.items():
            if encoding.active(name, levels):
                levels[name] = generator.randrange(len(knob["levels"]))
        if encoding.obeys(levels):
            points.append(truth_of(worker.evaluate(0, encoding.config(levels))))
    worker.close()
    return [point for point in points if point]


def compare(arguments):
    import optuna
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    rows = []
    for fact in lab_optuna.facts_of(arguments.build / "surface_worker", "dev", arguments.instances,
                                    arguments.families):
        kind, instance = fact["kind"], fact["instance"]
        chance = by_chance(arguments.build / "surface_worker", kind, instance)
        for seed in range(1, arguments.seeds + 1):
            found = {"lockstep": ours(arguments.build, kind, instance, seed, arguments.trials)}
            for name in OTHERS:
                found[name] = optunas(arguments.build, kind, instance, seed, arguments.trials, name)
            whole = volume([point for points, _ in found.values() for point in points] + chance, fact["best"])
            for name, (points, cpu) in found.items():
                rows.append({"kind": kind, "instance": instance, "seed": seed, "tool": name, "members": len(points),
                             "volume": volume(points, fact["best"]) / whole, "cpu_milliseconds_per_trial": cpu})
            print(kind, instance, seed, {row["tool"]: round(row["volume"], 3) for row in rows[-len(found):]},
                  file=sys.stderr, flush=True)
    return rows


def report(rows, machine, arguments):
    import optuna
    lines = ["# Fronts of throughput and memory", "",
             f"`bench/tune/front.py`, {machine['date']}, commit {machine['commit']}, {machine['cores']} cores of "
             f"{machine['cpu']}, Optuna {optuna.__version__}. {arguments.trials} trials, {arguments.instances} instances "
             f"of each family (dev half: open to work on the tuner), {arguments.seeds} seeds. Share of the hypervolume "
             "that everything found together has, by the truth of the settings that each tool offers; higher is "
             "better.", "", "| family | lockstep | NSGA-II | TPE | random |", "|---|---|---|---|---|"]
    for kind in [*dict.fromkeys(row["kind"] for row in rows), "all"]:
        cells = []
        for tool in ("lockstep", *OTHERS):
            values = [row["volume"] for row in rows if row["tool"] == tool and kind in (row["kind"], "all")]
            half = 1.96 * statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else float("nan")
            cells.append(f"{100 * statistics.fmean(values):.1f}% ± {100 * half:.1f}")
        lines.append(f"| {kind} | " + " | ".join(cells) + " |")
    cpu = {tool: statistics.fmean(row["cpu_milliseconds_per_trial"] for row in rows if row["tool"] == tool)
           for tool in ("lockstep", *OTHERS)}
    lines += ["", "CPU per trial, of the tool alone: " + ", ".join(f"{tool} {ms:.0f} ms" for tool, ms in cpu.items()) +
              ". ± is half a 95% interval of the mean over studies.", ""]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=measure.ROOT / "build" / "bench")
    parser.add_argument("--families", type=lambda text: text.split(","), default=["dev_ddp", "dev_zero"])
    parser.add_argument("--instances", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--trials", type=int, default=45)
    parser.add_argument("--name", default="", help="of the report in bench/reports; none: print it")
    arguments = parser.parse_args()
    arguments.build = arguments.build.resolve()
    machine = measure.machine()
    rows = compare(arguments)
    text = report(rows, machine, arguments)
    if arguments.name:
        measure.keep(arguments.name, {"machine": machine, "studies": rows}, text)
    else:
        print(text)


if __name__ == "__main__":
    main()
