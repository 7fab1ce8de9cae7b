"""Random faults on real runs: seeded schedules, and what must hold after each of them."""
import collections
import hashlib
import os
import pathlib
import random
import re
import shutil
import struct
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "end_to_end"))
from harness import *  # noqa: E402

RANKS = 4
GPT = {"arch": "gpt", "layers": 2, "hidden": 32, "heads": 4, "vocab": 256, "max_sequence": 32}
EXPERTS = {"arch": "moe", "layers": 2, "hidden": 32, "heads": 4, "kv_heads": 2, "ffn_hidden": 48, "vocab": 256,
           "max_sequence": 32, "experts": 4, "experts_per_token": 2}
LAYOUTS = {
    "dp": {"model": GPT, "layout": {"dp": 4}},
    "zero3": {"model": GPT, "layout": {"shard": 4, "zero": 3}},
    "tp-pp": {"model": GPT, "layout": {"tp": 2, "pp": 2, "schedule": "1f1b"}},
    "cp": {"model": GPT, "layout": {"cp": 2, "dp": 2}},
    "ep": {"model": EXPERTS, "layout": {"dp": 4, "ep": 2}},
}
BACKENDS = ["gloo", "tcp"]  # what they compute is the same, bit for bit
TIMEOUT_SECONDS = 6  # of an operation: what a rank that hangs costs


def _ending(kind):
    return lambda rng, rank, step: [f"{kind} rank={rank} step={step}"]


def _inside(kind, place, most):
    return lambda rng, rank, step: [f"{kind} rank={rank} step={step} in={place} at={rng.randint(1, most)}"]


def _during(place):
    """The fault of another rank begins the recovery in which this one is lost too."""
    def make(rng, rank, step):
        other = rng.choice([one for one in range(RANKS) if one != rank])
        return [f"kill rank={other} step={step}", f"kill rank={rank} in={place}"]
    return make


def _two_at_once(rng, rank, step):
    other = rng.choice([one for one in range(RANKS) if one != rank])
    return [f"kill rank={rank},{other} step={step}"]


# name: (how often, what it writes). Those that wait for a timeout of the agent are rare.
FAULTS = {
    "kill": (4, _ending("kill")),
    "kill of rank 0": (3, lambda rng, rank, step: [f"kill rank=0 step={step}"]),
    "kill of two ranks": (3, _two_at_once),
    "exit": (3, _ending("exit")),
    "abort": (2, _ending("abort")),
    "segfault": (2, _ending("segfault")),
    "kill in a collective": (5, _inside("kill", "collective", 3)),
    "kill in a save": (4, _inside("kill", "save", 12)),
    "kill while joining": (3, _during("join")),
    "kill while recovering": (4, _during("recovery")),
    "kill of a standby": (2, lambda rng, rank, step: [f"kill standby step={step}"]),
    "stop": (3, lambda rng, rank, step: [f"stop rank={rank} step={step} for={rng.choice(['0.3s', '1s', '2s'])}"]),
    "slow": (2, lambda rng, rank, step: [f"slow rank={rank} step={step} x{rng.randint(2, 5)} for=1s"]),
    "sever": (3, _ending("sever")),
    "full disk": (2, lambda rng, rank, step: [f"full-disk rank={rank} step={step}"]),
    "slow disk": (2, lambda rng, rank, step: [f"slow-disk rank={rank} step={step} for=1s"]),
    # Not the only one: a run without memory and without a sound checkpoint ends, as it should.
    "corrupt checkpoint": (2, lambda rng, rank, step: [f"corrupt checkpoint step={max(step, 20)}"]),
    "short hang": (2, lambda rng, rank, step: [f"hang rank={rank} step={step} for=1s"]),
    "hang": (1, _ending("hang")),
    "freeze": (1, _ending("freeze")),
}


def schedule(rng, faults, steps, kinds=None):
    """Events for one run: about `faults` of them, spread over the steps."""
    names = kinds or list(FAULTS)
    weights = [FAULTS[name][0] for name in names]
    events = []
    while len(events) < faults:
        name = rng.choices(names, weights)[0]
        events += FAULTS[name][1](rng, rng.randrange(RANKS), rng.randint(2, steps - 2))
    return events


def kind_of(text):
    """What an event is counted as."""
    words = text.split()
    place = re.search(r"in=(\w+)", text)
    return " ".join([words[0]] + (["standby"] if "standby" in words else []) + ([f"in {place.group(1)}"] if place else []))


def tensors_of(file):
    """{name: digest} of the model's and the optimizer's; what belongs to a process alone is left out."""
    data = file.read_bytes()
    begin = 8 + struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:begin])
    return {f"{file.name}:{name}": hashlib.sha256(data[slice(*(begin + at for at in facts["data_offsets"]))]).hexdigest()
            for name, facts in header.items() if name != "__metadata__" and not name.startswith("rank:")}


def weights_of(folder):
    """The name of the newest checkpoint in `folder`, and its tensors."""
    newest = max(path for path in pathlib.Path(folder).glob("step-*") if path.is_dir())
    return newest.name, {name: digest for file in sorted(newest.glob("*.safetensors"))
                         for name, digest in tensors_of(file).items()}


class Outcome:
    """What became of one run."""

    def __init__(self, layout, events, backend=""):
        self.layout, self.events, self.backend = layout, events, backend
        self.problems, self.fired, self.left, self.recovery_seconds = [], [], [], []
        self.restarts = self.lost_steps = 0
        self.seconds = 0.0

    def __str__(self):
        return f"{self.layout} over {self.backend} --chaos \"{'; '.join(self.events)}\": {'; '.join(self.problems) or 'as it should be'}"


class Arena(EndToEnd):
    """Runs schedules; undisturbed runs of the same layout are made once."""
    LIMIT_SECONDS = 600

    def setUp(self):
        super().setUp()
        self.references = {}

    def job(self, layout, steps, name, backend=BACKENDS[0]):
        text = self.text_job(ranks=RANKS)  # writes the data
        job = json.loads(text.read_text())
        job.update(LAYOUTS[layout], steps=steps, communication={"backend": backend, "timeout": f"{TIMEOUT_SECONDS}s"},
                   checkpoint={"every_steps": 5, "keep": 3, "directory": str(self.folder / name)})
        if "dp" not in LAYOUTS[layout]["layout"] and layout != "zero3":
            job["batch"] = {"micro": 8, "accumulation": 2, "sequence_length": 32}
        return self.write_job(f"{name}.yaml", job), self.folder / name

    def reference(self, layout, steps):
        if (layout, steps) not in self.references:
            job, kept = self.job(layout, steps, f"undisturbed-{layout}-{steps}")
            self.train(job, timeout=self.LIMIT_SECONDS)
            self.references[layout, steps] = weights_of(kept)
            shutil.rmtree(kept)
        return self.references[layout, steps]

    def disturbed(self, layout, steps, events, backend=BACKENDS[0]):
        """The Outcome of a run with these faults; its problems are what must not be."""
        expected = self.reference(layout, steps)
        outcome = Outcome(layout, events, backend)
        name = f"disturbed-{random.randrange(10**9)}"
        job, kept = self.job(layout, steps, name, backend)
        begin = time.monotonic()
        process = self.start("train", job, "--json", "--chaos", "; ".join(events), start_new_session=True)
        try:
            out, err = process.communicate(timeout=self.LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGTERM)
            out, err = process.communicate()
            outcome.problems.append(f"no end after {self.LIMIT_SECONDS} s\n{err[-3000:]}")
            return outcome
        outcome.seconds = time.monotonic() - begin
        if process.returncode != 0:
            outcome.problems.append(f"exit {process.returncode}\n{err[-4000:]}")
        else:
            self.judge(outcome, json.loads(out.strip().splitlines()[-1]), job, kept, expected)
        self.look_for_orphans(outcome)
        shutil.rmtree(kept, ignore_errors=True)
        return outcome

    def mend_last_checkpoint(self, outcome, job, kept):
        """A fault may have damaged the very last one: that must be found, and the run go on from the one before."""
        if not any(text.startswith("corrupt") for text in outcome.fired):
            return
        newest = max(path for path in kept.glob("step-*") if path.is_dir())
        if self.run_lockstep("checkpoint", "verify", newest).returncode != 0:
            self.train(job, "--resume", "auto", timeout=self.LIMIT_SECONDS)

    def judge(self, outcome, result, job, kept, expected):
        outcome.restarts, outcome.lost_steps = result["restarts"], result["lost_steps"]
        outcome.recovery_seconds, outcome.left = result["recovery_seconds"], result["chaos"]["left"]
        told = json.loads(self.run_lockstep("report", result["run"], "--json").stdout)
        outcome.fired = [event["message"] for event in told["events"] if event["kind"] == "chaos"]
        if len(outcome.fired) + len(outcome.left) != result["chaos"]["asked"]:
            outcome.problems.append(f"{result['chaos']['asked']} faults were asked for, {len(outcome.fired)} recorded")
        self.mend_last_checkpoint(outcome, job, kept)
        found = weights_of(kept)
        if found != expected:
            outcome.problems.append(f"the weights differ: {self.differing(found, expected)}")
        ledger = self.run_lockstep("report", result["run"], "--ledger")
        if ledger.returncode != 0:
            outcome.problems.append("ledger: " + ledger.stdout + ledger.stderr)

    @staticmethod
    def differing(found, expected):
        if found[0] != expected[0]:
            return f"{found[0]} instead of {expected[0]}"
        different = sorted(name for name in {*found[1], *expected[1]} if found[1].get(name) != expected[1].get(name))
        return f"{len(different)} of {len(expected[1])} tensors, {different[0]} first"

    def look_for_orphans(self, outcome):
        home = f"LOCKSTEP_HOME={self.environment['LOCKSTEP_HOME']}".encode()
        for entry in pathlib.Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and home in (entry / "environ").read_bytes().split(b"\0"):
                    outcome.problems.append(f"process {entry.name} was left behind")
            except OSError:
                continue


__all__ = ["Arena", "Outcome", "LAYOUTS", "BACKENDS", "FAULTS", "RANKS", "schedule", "kind_of", "weights_of", "collections", "random", "unittest",
           "os", "pathlib", "json", "time"]
