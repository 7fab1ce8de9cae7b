"""Loads the study that optuna_storage_test.cpp exported and checks every part of it. Usage: load_in_optuna.py DB NAME"""

import datetime
import sys

import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState

optuna.logging.set_verbosity(optuna.logging.ERROR)
storage, name = f"sqlite:///{sys.argv[1]}", sys.argv[2]
study = optuna.load_study(study_name=name, storage=storage)

assert study.direction == optuna.study.StudyDirection.MAXIMIZE
states = [trial.state for trial in study.trials]
assert states == [TrialState.COMPLETE] * 2 + [TrialState.FAIL] + [TrialState.COMPLETE] * 2 + [
    TrialState.PRUNED, TrialState.COMPLETE], states
assert study.trials[5].intermediate_values == {0: 101 * 0.99, 1: 101 * 1.01}
assert [trial.number for trial in study.trials] == list(range(7))
assert study.best_value == 150.0 and study.best_trial.number == 4
assert study.best_params == {
    "algo": "Tree", "pinned": True, "micro": 4, "workers": 2, "bucket": 16, "prefetch": 1, "dropout": 0.1,
}, study.best_params
assert "prefetch" not in study.trials[3].params and study.trials[3].params["workers"] == 0
assert study.trials[2].value is None
assert study.trials[2].user_attrs["outcome"] == "oom"
assert "out of memory" in study.trials[2].user_attrs["message"]
assert study.trials[6].user_attrs["purpose"] == "set_back" and study.trials[6].user_attrs["set_back"] == "algo"
assert study.trials[0].distributions == {
    "algo": CategoricalDistribution(["Ring", "Tree"]),
    "pinned": CategoricalDistribution([True, False]),
    "micro": CategoricalDistribution([1, 2, 4, 8]),
    "workers": IntDistribution(0, 8),
    "bucket": IntDistribution(1, 256, log=True),
    "prefetch": IntDistribution(1, 8),
    "dropout": FloatDistribution(0.0, 0.5),
}, study.trials[0].distributions
assert study.trials[0].intermediate_values == {0: 99.0, 1: 101.0}
start = datetime.datetime.fromtimestamp(1_800_000_000.25)
assert study.trials[0].datetime_start == start, study.trials[0].datetime_start
assert study.trials[0].duration == datetime.timedelta(seconds=12.5)
assert study.user_attrs["lockstep:unit"] == "samples/s"
assert study.user_attrs["lockstep:conclusion"] == {"best": {"estimate": 150}}
assert study.user_attrs["lockstep:versions"]["nccl"] == "2.30.7"

# It is a storage like any other: a search goes on in it.
study.sampler = optuna.samplers.TPESampler(seed=1, n_startup_trials=2)
def objective(trial):
    trial.suggest_categorical("algo", ["Ring", "Tree"])
    return float(trial.suggest_int("bucket", 1, 256, log=True))
study.optimize(objective, n_trials=2)
assert len(optuna.load_study(study_name=name, storage=storage).trials) == 9
print(f"Optuna {optuna.__version__} loaded {name}")
