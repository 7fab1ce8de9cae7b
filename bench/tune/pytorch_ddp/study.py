"""A real study: train.py on this machine, by `lockstep tune` and by Optuna's Gaussian process, with the same number of
trials; then the two winners against each other on fresh launches. bench/reports/tune_pytorch_ddp.md and .json.

Usage: study.py [--lockstep BINARY] [--trials 45] [--pairs 10] [--steps 16] [--seed 1] [--seconds 40] [--name NAME]

The two studies run at the same time, one trial of each in turn, so that a machine that is busy for a while is so for
both: the worker that lockstep asks measures its setting and then lets Optuna have a trial. The pairs of launches at the
end alternate, too, and who goes first changes. What counts is their ratio. Exits 1 when our winner is slower beyond
doubt (95% interval of the ratio below 1).

  study.py --worker FOLDER     what lockstep starts; not for people
"""
import argparse
import json
import math
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent))
import measure  # noqa: E402

# space.yaml as Optuna's parameters: numbers by their position, as a Gaussian process wants them.
LEVELS = {"ranks": [1, 2, 4], "micro_batch": [1, 2, 4, 8, 16], "bucket_cap_mb": [0.25, 1, 4, 25, 100],
          "num_workers": [0, 1, 2], "prefetch_factor": [2, 4, 8], "bucket_view": [0, 1], "fused_adam": [0, 1],
          "OMP_NUM_THREADS": [1, 2, 4]}
DEFAULT = {"ranks": 2, "micro_batch": 2, "bucket_cap_mb": 25, "num_workers": 0, "prefetch_factor": 2, "bucket_view": 0,
           "fused_adam": 0, "OMP_NUM_THREADS": 1}
MOST_SEQUENCES = 16
WARM_UP = 3  # steps of a launch that do not count in a pair


def launch(config, options):
    """Tokens per second of every step of one fresh start; [] when it failed or was too slow to say anything."""
    command = [sys.executable, str(HERE / "train.py"), "--steps", str(options["steps"])]
    for name, value in config.items():
        if name not in ("OMP_NUM_THREADS", "prefetch_factor"):
            command += ["--" + name.replace("_", "-"), str(value)]
    if config.get("num_workers", 0) > 0:
        command += ["--prefetch-factor", str(config["prefetch_factor"])]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                               start_new_session=True,
                               env={**os.environ, "OMP_NUM_THREADS": str(config["OMP_NUM_THREADS"])})
    try:
        text, _ = process.communicate(timeout=options["seconds"])
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        text, _ = process.communicate()
    return [float(value) for value in re.findall(r"tokens_per_second: ([0-9.]+)", text)]


def figure(samples):
    """One number for a launch: the mean speed after warm-up; None: nothing was measured."""
    rest = samples[WARM_UP:] if len(samples) > 2 * WARM_UP else samples
    return statistics.fmean(rest) if rest else None


class OptunaStudy:
    def __init__(self, seed):
        import optuna
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        sampler = optuna.samplers.GPSampler(seed=seed)
        self.study = optuna.create_study(direction="maximize", sampler=sampler)
        self.study.enqueue_trial({name: levels.index(DEFAULT[name]) for name, levels in LEVELS.items()})
        self.rows = []

    def worst(self):
        values = [row["value"] for row in self.rows if row["value"]]
        return min(values) if values else 0.0

    def one_trial(self, options):
        """A setting that breaks the rule is told as the worst so far, without being launched or counted."""
        while True:
            trial = self.study.ask()
            config = {name: levels[trial.suggest_int(name, 0, len(levels) - 1)] for name, levels in LEVELS.items()}
            if config["ranks"] * config["micro_batch"] <= MOST_SEQUENCES:
                break
            self.study.tell(trial, self.worst())
        start = time.monotonic()
        value = figure(launch(config, options))
        self.study.tell(trial, value if value else self.worst())
        self.rows.append({"config": config, "value": value, "seconds": time.monotonic() - start})


def worker(folder):
    options = json.loads((folder / "options.json").read_text())
    import torch
    torch.set_num_threads(1)
    other = OptunaStudy(options["seed"])
    for line in sys.stdin:
        request = json.loads(line)
        start = time.monotonic()
        samples = launch(request["config"], options)
        seconds = time.monotonic() - start
        other.one_trial(options)
        (folder / "optuna.json").write_text(json.dumps(other.rows))
        answer = {"samples": samples, "seconds": seconds} if samples else {"failed": "timeout", "seconds": seconds}
        print(json.dumps(answer), flush=True)


def our_study(arguments, folder):
    command = [str(arguments.lockstep), "tune", "--space", str(HERE / "space.yaml"), "--worker",
               f"{sys.executable} {HERE / 'study.py'} --worker {folder}", "--trials", str(arguments.trials), "--seed",
               str(arguments.seed), "--trial-seconds", str(4 * arguments.seconds), "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True,
                          env={**os.environ, "LOCKSTEP_HOME": str(folder / "store")})
    if done.returncode != 0:
        raise SystemExit(f"lockstep tune: exit {done.returncode}")
    return measure.last_json(done.stdout)


def pairs(ours, theirs, options, count):
    rows = []
    while len(rows) < count:
        order = [("ours", ours), ("theirs", theirs)]
        if len(rows) % 2 == 1:
            order.reverse()
        row = {name: figure(launch(config, options)) for name, config in order}
        if not all(row.values()):
            raise SystemExit("a winner did not run on a fresh start")
        rows.append(row)
        print(f"pair {len(rows)} of {count}: {row['ours']:.0f} and {row['theirs']:.0f} tokens/s", file=sys.stderr)
    return rows


def ratio_of(rows):
    """Geometric mean of ours over theirs, with its 95% interval (Student's t over the pairs)."""
    logs = [math.log(row["ours"] / row["theirs"]) for row in rows]
    mean = statistics.fmean(logs)
    quantile = {1: 12.7, 2: 4.3, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.262, 10: 2.23}
    half = quantile.get(len(logs) - 1, 2.1) * statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else 9.0
    return {"ratio": math.exp(mean), "low": math.exp(mean - half), "high": math.exp(mean + half)}


def differs(config):
    changed = {name: value for name, value in config.items() if value != DEFAULT[name]}
    if config.get("num_workers", 0) == 0:
        changed.pop("prefetch_factor", None)
    return ", ".join(f"{name} = {value}" for name, value in changed.items()) or "nothing"


def report(data):
    ratio, machine = data["ratio"], data["machine"]
    best = data["ours"]["best"]
    observed = max(row["value"] for row in data["optuna"] if row["value"])
    gain = (data["ours"].get("gain_percent") or {})
    return f"""# A PyTorch DDP script, tuned twice

`bench/tune/pytorch_ddp/study.py`: train.py (GPT of 1.9 M parameters, Gloo) on {machine['cores']} cores of {machine['cpu']},
{machine['date']}, commit {machine['commit']}, PyTorch {data['versions']['torch']}, Optuna {data['versions']['optuna']}, load before
{machine['load_before']:.1f}. {data['trials']} trials each, one in turn; {data['options']['steps']} steps a launch, {data['minutes']:.0f} minutes in all.

| | lockstep tune | Optuna, Gaussian process |
|---|---|---|
| winner differs from the default in | {differs(data['winner'])} | {differs(data['rival'])} |
| what it said | {best['estimate']:.0f} tokens/s ({best['low']:.0f} to {best['high']:.0f}), from {best['launches']} fresh launches | {observed:.0f} tokens/s, best observed |
| failed trials | {data['ours']['failed']} | {sum(row['value'] is None for row in data['optuna'])} |
| on fresh launches, median of {len(data['pairs'])} | {statistics.median(row['ours'] for row in data['pairs']):.0f} tokens/s | {statistics.median(row['theirs'] for row in data['pairs']):.0f} tokens/s |

Ours over theirs, {len(data['pairs'])} interleaved pairs of fresh launches: **{ratio['ratio']:.3f}** (95%: {ratio['low']:.3f} to {ratio['high']:.3f}).
{'The two winners are the same setting: the ratio shows the noise.' if data['same'] else ''}
Gain over the default as `lockstep tune` says it: {gain.get('value', float('nan')):+.1f}% ({gain.get('low', float('nan')):+.1f} to {gain.get('high', float('nan')):+.1f}).
"""


def study(arguments):
    import optuna
    import torch
    machine, start = measure.machine(), time.monotonic()
    options = {"steps": arguments.steps, "seconds": arguments.seconds, "seed": arguments.seed}
    with tempfile.TemporaryDirectory(prefix="lockstep-ddp-") as name:
        folder = pathlib.Path(name)
        (folder / "options.json").write_text(json.dumps(options))
        ours = our_study(arguments, folder)
        theirs = json.loads((folder / "optuna.json").read_text())[:arguments.trials]
    winner = {**{"prefetch_factor": 2}, **ours["best"]["config"]}
    rival = max((row for row in theirs if row["value"]), key=lambda row: row["value"])["config"]
    rows = pairs(winner, rival, options, arguments.pairs)
    data = {"machine": machine, "versions": {"torch": torch.__version__, "optuna": optuna.__version__},
            "options": options, "trials": arguments.trials, "ours": ours, "optuna": theirs, "winner": winner,
            "rival": rival, "same": differs(winner) == differs(rival), "pairs": rows, "ratio": ratio_of(rows),
            "minutes": (time.monotonic() - start) / 60}
    if arguments.name:
        measure.keep(arguments.name, data, report(data))
    else:
        print(report(data))
    return 1 if data["ratio"]["high"] < 1 else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lockstep", type=pathlib.Path, default=measure.ROOT / "build" / "release" / "lockstep")
    parser.add_argument("--trials", type=int, default=45)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=40, help="that one launch may take")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--name", default="", help="of the report in bench/reports; none: print it")
    parser.add_argument("--worker", type=pathlib.Path)
    arguments = parser.parse_args()
    if arguments.worker:
        worker(arguments.worker)
        return 0
    return study(arguments)


if __name__ == "__main__":
    sys.exit(main())
