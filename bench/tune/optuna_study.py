"""One study by Optuna on one surface, through the same worker that `lockstep tune` talks to.

A variant is "sampler/offered/told":
  sampler  random, tpe (each knob by itself), mtpe (multivariate, grouped by activity), gp, cmaes (with margin; all
           knobs as whole numbers, since it leaves categoricals to chance)
  offered  plain   every knob by itself, rules unknown: what breaks one is launched and fails
           joint   knobs tied by a rule are one categorical of the combinations that exist; numbers are ordinal
           reject  a knob that a rule determines is derived, numbers are ordinal, and what still breaks a rule is told
                   as a failure without being launched or counted as a trial
  told     zero (a failure has throughput 0), worst (that of the slowest so far), pruned, failed (raised), constraint
           (slowest so far, and a violated constraint)
The first trial is the default configuration where the space tells it, as it is ours. The answer is the best observed.
"""
import json
import subprocess
import time
import warnings

import optuna
from optuna.trial import TrialState

optuna.logging.set_verbosity(optuna.logging.ERROR)
warnings.filterwarnings("ignore")

PROTOCOL = 1  # of a study: kept ones of another number are run again
MOST_REJECTIONS = 200  # in a row; then the combination is launched and fails


class Worker:
    """The evaluator process: one JSON line in, one out."""

    def __init__(self, program, kind, instance, noise_seed, hide_names=False):
        self.process = subprocess.Popen(
            [str(program), "--kind", kind, "--instance", str(instance), "--noise-seed", str(noise_seed), "--truth-of",
             *(["--hide-names"] if hide_names else [])],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def evaluate(self, trial, config):
        self.process.stdin.write(json.dumps({"trial": trial, "config": config, "budget_seconds": 60}) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait(timeout=10)


class Encoding:
    """A surface's knobs as Optuna's parameters. Configurations are dictionaries of knob to level."""

    def __init__(self, description, offered, flat, numbers=False):
        self.knobs = {knob["name"]: knob for knob in description["knobs"]}
        self.rules = description["rules"] if offered != "plain" else []
        self.ordinal = offered != "plain"
        self.flat = flat   # inactive knobs are parameters too, without effect
        self.numbers = numbers  # words are whole numbers as well
        self.joint = {}    # first knob of a component: (knobs, combinations)
        self.derived = {}  # knob: (others, {levels of others: level})
        if offered == "joint":
            self._tie()
        elif offered == "reject":
            self._derive()

    def _tie(self):
        components = []
        for rule in self.rules:
            tied = set(rule["knobs"])
            for other in [c for c in components if c & tied]:
                components.remove(other)
                tied |= other
            components.append(tied)
        for component in components:
            names = [name for name in self.knobs if name in component]
            self.joint[names[0]] = (names, self._combinations(names))

    def _combinations(self, names):
        combinations = [{}]
        for name in names:
            levels = range(len(self.knobs[name]["levels"]))
            combinations = [{**c, name: level} for c in combinations for level in levels]
            combinations = [c for c in combinations if self.obeys(c)]
        return combinations

    def _derive(self):
        for rule in self.rules:
            table = {}
            for allowed in rule["allowed"]:
                table.setdefault(tuple(allowed[:-1]), []).append(allowed[-1])
            if all(len(levels) == 1 for levels in table.values()):
                *others, last = rule["knobs"]
                self.derived[last] = (others, {key: levels[0] for key, levels in table.items()})

    def obeys(self, levels):
        """Does every rule hold whose knobs all have a level?"""
        for rule in self.rules:
            if all(name in levels for name in rule["knobs"]):
                if [levels[name] for name in rule["knobs"]] not in rule["allowed"]:
                    return False
        return True

    def active(self, name, levels):
        parent = self.knobs[name].get("parent")
        return parent is None or levels.get(parent) in self.knobs[name]["parent_levels"]

    def _suggest_one(self, trial, name):
        knob = self.knobs[name]
        if knob["written"] != "choices":
            low, high = knob["levels"][0], knob["levels"][-1]
            return trial.suggest_int(name, low, high, log=knob["written"] == "log_int") - low
        if self.numbers or (self.ordinal and knob["ordered"]):
            return trial.suggest_int(name, 0, len(knob["levels"]) - 1)
        return trial.suggest_categorical(name, list(range(len(knob["levels"]))))

    def suggest(self, trial):
        """Levels of the active knobs; None when a rule cannot be kept."""
        levels = {}
        for name in self.knobs:
            if name in levels:
                continue
            if not self.active(name, levels):
                if self.flat:
                    self._suggest_one(trial, name)
            elif name in self.joint:
                names, combinations = self.joint[name]
                levels.update(combinations[trial.suggest_categorical("+".join(names), list(range(len(combinations))))])
            elif name in self.derived:
                others, table = self.derived[name]
                levels[name] = table.get(tuple(levels[other] for other in others))
                if levels[name] is None:
                    return None
            else:
                levels[name] = self._suggest_one(trial, name)
        return levels if self.obeys(levels) else None

    def parameters_of_default(self):
        parameters, levels = {}, {}
        for name, knob in self.knobs.items():
            if self.active(name, levels):
                levels[name] = knob["default"]
        for name in self.knobs if self.flat else levels:
            if name in self.joint:
                names, combinations = self.joint[name]
                parameters["+".join(names)] = combinations.index({n: levels[n] for n in names})
            elif name in self.derived or any(name in names for names, _ in self.joint.values()):
                continue
            else:
                knob = self.knobs[name]
                first = knob["levels"][0] if knob["written"] != "choices" else 0
                parameters[name] = first + levels.get(name, knob["default"])
        return parameters

    def config(self, levels):
        return {name: self.knobs[name]["levels"][level] for name, level in levels.items()}


def make_sampler(name, seed, constrained):
    constraints = (lambda trial: trial.user_attrs["violation"]) if constrained else None
    if name == "random":
        return optuna.samplers.RandomSampler(seed=seed)
    if name == "gp":
        import torch
        torch.set_num_threads(1)
        return optuna.samplers.GPSampler(seed=seed, constraints_func=constraints)
    if name == "cmaes":
        return optuna.samplers.CmaEsSampler(seed=seed, with_margin=True, warn_independent_sampling=False)
    multivariate = name == "mtpe"
    return optuna.samplers.TPESampler(seed=seed, multivariate=multivariate, group=multivariate,
                                      constraints_func=constraints)


def tell(study, trial, told, value, slowest):
    """value None: it failed."""
    trial.set_user_attr("violation", (1.0,) if value is None else (-1.0,))
    if value is not None:
        study.tell(trial, value)
    elif told == "failed":
        study.tell(trial, state=TrialState.FAIL)
    elif told == "pruned":
        study.tell(trial, state=TrialState.PRUNED)
    else:
        study.tell(trial, 0.0 if told == "zero" else slowest)


def ask(study, encoding, told, slowest):
    for rejections in range(MOST_REJECTIONS):
        trial = study.ask()
        levels = encoding.suggest(trial)
        if levels is not None or rejections == MOST_REJECTIONS - 1:
            break
        tell(study, trial, told, None, slowest)
    return trial, levels


def run_study(program, description, variant, seed, trials):
    """The truth of the answer after each trial, whether the trial failed, and what Optuna took in all."""
    sampler, offered, told = variant.split("/")
    # A Gaussian process and CMA-ES would draw parameters that come and go at random.
    encoding = Encoding(description, offered, flat=sampler in ("gp", "cmaes"), numbers=sampler == "cmaes")
    study = optuna.create_study(direction="maximize", sampler=make_sampler(sampler, seed, told == "constraint"))
    if all("default" in knob for knob in description["knobs"]):
        study.enqueue_trial(encoding.parameters_of_default())
    worker = Worker(program, description["kind"], description["instance"], seed)
    truths, failures, seconds = [], [], 0.0
    best, truth, slowest = 0.0, 0.0, 0.0
    for number in range(trials):
        start = time.perf_counter()
        trial, levels = ask(study, encoding, told, slowest)
        seconds += time.perf_counter() - start
        reply = worker.evaluate(number, encoding.config(levels)) if levels is not None else {"failed": "invalid"}
        value = None if "failed" in reply else sum(reply["samples"]) / len(reply["samples"])
        if value is not None:
            slowest = min(slowest, value) if slowest else value
            if value > best:
                best, truth = value, reply["truth"]
        start = time.perf_counter()
        tell(study, trial, told, value, slowest)
        seconds += time.perf_counter() - start
        truths.append(truth)
        failures.append(value is None)
    worker.close()
    return {"truths": truths, "failures": failures, "seconds": seconds}
