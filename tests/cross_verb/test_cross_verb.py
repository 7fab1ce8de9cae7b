"""Verbs agree: hundreds of random jobs go through `plan`, `train --dry-run`, `tune --simulate` and the engine's start.

What one of them accepts all accept, what one refuses all refuse with one sentence and its fix; memory, step time and
dollars of one run are one number; no option is silently ignored. A failure names the verbs, the commands and the job.

    CROSS_VERB_JOBS=20 python3 test_cross_verb.py       fewer jobs
    CROSS_VERB_LIST=FILE                                the disagreements, grouped, as they are found
"""
import collections
import json
import os
import pathlib
import random
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import jobs  # noqa: E402
from profiles import make_profile  # noqa: E402
from verbs import Verbs, machine  # noqa: E402

SEED = 20
JOBS = int(os.environ.get("CROSS_VERB_JOBS", "220"))
LISTED = os.environ.get("CROSS_VERB_LIST")
LAYOUT_CHOICES = ("schedule", "recompute")  # beside `layout` in a plan, inside it in a job
DEFAULT_LAYOUT = {"pp": 1, "dp": 1, "shard": 1, "zero": 0, "cp": 1, "tp": 1, "ep": 1, "sequence_parallel": False,
                  "virtual_stages": 1, "stage_layers": [], "context_exchange": "ring", "offload": "none"}
SHOWN = 3  # examples of a kind of disagreement
UNTOLD = ("name", "data", "steps", "threads_per_rank", "checkpoint", "evaluation", "seed")  # the same in every job


class Disagreements:
    """Everything found, by kind, with the commands that show it."""

    def __init__(self):
        self.found = collections.defaultdict(list)

    def add(self, kind, text, job, *answers):
        told = {key: value for key, value in job.items() if key not in UNTOLD}
        told["cluster"] = job["cluster"]["name"]
        lines = [text] if text else []
        lines.append("job: " + json.dumps(told))
        lines += [f"{answer.command}\n      exit {answer.code} {answer.error or 'accepted'}" for answer in answers]
        self.found[kind].append("\n    ".join(lines))
        if LISTED:
            pathlib.Path(LISTED).write_text(self.text() + "\n")

    def text(self, shown=SHOWN):
        parts = []
        for kind, items in sorted(self.found.items(), key=lambda item: -len(item[1])):
            parts.append(f"{kind}: {len(items)}")
            parts += ["  - " + item for item in items[:shown]]
        return "\n".join(parts)


def is_same(first, second, relative=1e-9):
    if first is None or second is None:
        return first is second
    return abs(first - second) <= relative * max(abs(first), abs(second), 1e-30)


def job_of_candidate(job, candidate):
    """The job that trains exactly this plan, as a user would write it down."""
    layout = dict(candidate["layout"])
    if not layout.pop("stage_layers", None):
        layout.pop("stage_layers", None)
    else:
        layout["stage_layers"] = candidate["layout"]["stage_layers"]
    for key in LAYOUT_CHOICES:
        layout[key] = candidate[key]
    batch = {key: candidate["batch"][key] for key in ("micro", "accumulation")}
    if candidate["batch"].get("sequence_length"):
        batch["sequence_length"] = candidate["batch"]["sequence_length"]
    return {**job, "layout": layout, "batch": batch, "precision": candidate["precision"]}


def ranks_of(layout):
    ranks = 1
    for axis in ("pp", "dp", "shard", "cp", "tp"):
        ranks *= layout.get(axis, 1)
    return ranks


class CrossVerb(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.verbs = Verbs()
        cls.addClassCleanup(cls.verbs.close)
        jobs.write_data(cls.verbs.folder)
        for ranks in range(1, 9):
            cls.verbs.write(f"profile-{ranks}.json", make_profile(ranks))
        cls.found = Disagreements()
        cls.counts = collections.Counter()
        cls.jobs = [jobs.make_job(1000 * SEED + i, cls.verbs.folder) for i in range(JOBS)]

    @classmethod
    def tearDownClass(cls):
        print("\n" + ", ".join(f"{count} {what}" for what, count in sorted(cls.counts.items())))

    def setUp(self):
        self.before = {kind: len(items) for kind, items in self.found.found.items()}

    def assert_agreed(self):
        """Fails with what this test added to the list."""
        new = Disagreements()
        for kind, items in self.found.found.items():
            if len(items) > self.before.get(kind, 0):
                new.found[kind] = items[self.before.get(kind, 0):]
        total = sum(map(len, new.found.values()))
        self.assertEqual(total, 0, f"{total} disagreements\n{new.text()}")

    # --- refusals ----------------------------------------------------------------------------------------------------
    def check_sentence(self, verb, answer, job):
        """A refusal is one line, ends in a fix and has exit code 2 or 3; nothing else counts as one."""
        if answer.accepts:
            return
        if not answer.refuses:
            self.found.add(f"{verb} fails instead of refusing", "", job, answer)
        elif "\n" in answer.error.strip() or len(answer.error) < 15:
            self.found.add(f"{verb} refuses without one clear sentence", "", job, answer)
        elif not answer.error.rpartition("; ")[0]:
            self.found.add(f"{verb} refuses without a fix", "", job, answer)

    def check_verdicts(self, leg, job, answers):
        """All verbs of `answers` accept the job, or all refuse it."""
        for verb, answer in answers.items():
            self.check_sentence(verb, answer, job)
        accepting = [verb for verb, answer in answers.items() if answer.accepts]
        refusing = [verb for verb, answer in answers.items() if not answer.accepts]
        if accepting and refusing:
            kind = f"{leg}: {' and '.join(accepting)} accept what {' and '.join(refusing)} refuse"
            self.found.add(kind, "", job, *answers.values())
        self.counts["accepted by all" if not refusing else "refused by all" if not accepting else "disputed"] += 1
        return not refusing

    # --- figures -----------------------------------------------------------------------------------------------------
    def check_figures(self, job, plan, dry):
        """Memory, step time and money that `plan` and `train --dry-run` state for the same run."""
        first, second = plan.value["best"], dry.value["best"]
        if first["layout"] != second["layout"] or first["batch"] != second["batch"]:
            self.found.add("plan and train --dry-run: another layout or batch for a job that gives both", "", job,
                           plan, dry)
            return
        terms = {term: (value, second["memory_gib"][term]) for term, value in first["memory_gib"].items()
                 if not is_same(value, second["memory_gib"][term])}
        if terms:
            text = ", ".join(f"{term} {pair[0]:.9f} and {pair[1]:.9f} GiB" for term, pair in terms.items())
            self.found.add("plan and train --dry-run: memory", text, job, plan, dry)
        times = [(best["prediction"] or {}).get("step_seconds") for best in (first, second)]
        if not is_same(*times):
            self.found.add("plan and train --dry-run: step time", f"{times[0]} and {times[1]} s", job, plan, dry)
        money = [best["cost"] or {} for best in (first, second)]
        if any(not is_same(money[0].get(term), money[1].get(term)) for term in ("usd", "gpu_hours", "days")):
            self.found.add("plan and train --dry-run: cost", f"{money[0]} and {money[1]}", job, plan, dry)

    def check_capacity(self, job, ranks, stated, kind, answers_of):
        """With a little more memory than is stated every verb accepts the run, with a little less none does."""
        for share, fits in ((1.00001, True), (0.99999, False)):
            cramped = {**job, "cluster": machine(ranks, memory=round(stated * share), kind=kind)}
            name = self.verbs.write("cramped.yaml", cramped)
            answers = answers_of(name)
            wrong = [verb for verb, answer in answers.items() if answer.code != (0 if fits else 3)]
            if wrong:
                what = "refuses a device with what plan says is needed" if fits else "accepts less than plan says is needed"
                self.found.add(f"memory on {kind}: {' and '.join(wrong)} {what}", f"plan states {stated:.0f} bytes",
                               cramped, *answers.values())

    # --- the tests ---------------------------------------------------------------------------------------------------
    def test_what_one_verb_refuses_all_refuse_and_figures_are_one_number(self):
        for number, (job, ranks) in enumerate(self.jobs):
            self.given_layout(number, job, ranks)
        self.assert_agreed()
        self.assertGreater(self.counts["accepted by all"], JOBS // 4)
        self.assertGreater(self.counts["refused by all"], JOBS // 10)

    def given_layout(self, number, job, ranks):
        here = {**job, "cluster": machine(ranks)}
        name = self.verbs.write(f"given-{number}.yaml", here)
        profile = ("--profile", f"./profile-{ranks}.json")
        tune = (*profile, "--space", "space.yaml")
        answers = {"plan": self.verbs.plan(name, *profile), "train --dry-run": self.verbs.dry_run(name, *profile),
                   "tune": self.verbs.tune(name, *tune), "the engine": self.verbs.start(name)}
        if answers["plan"].accepts and answers["train --dry-run"].accepts:
            self.check_figures(here, answers["plan"], answers["train --dry-run"])
        agreed = self.check_verdicts("cpu", here, answers)
        self.given_layout_on_devices(number, job, ranks, answers["the engine"])
        if agreed:
            stated = answers["plan"].value["best"]["memory_gib"]["total"] * 2 ** 30
            if number % 4 == 0:
                self.check_capacity(job, ranks, stated, "cpu", lambda cramped: {
                    "plan": self.verbs.plan(cramped, *profile), "train --dry-run": self.verbs.dry_run(cramped, *profile),
                    "tune": self.verbs.tune(cramped, *tune)})
            self.check_options(name, here, answers["the engine"])
        elif answers["train --dry-run"].refuses:
            self.check_plan_file(number, here, profile)

    def check_plan_file(self, number, job, profile):
        """A layout that is refused in a job file is refused in a plan file too, by whoever reads it first."""
        name = self.verbs.write(f"open-{number}.yaml", {key: value for key, value in job.items() if key != "layout"})
        plan = self.verbs.dry_run(name, *profile)
        if not plan.accepts:
            return
        best = plan.value["best"]
        for key in LAYOUT_CHOICES:
            best[key] = job["layout"].get(key, "none")
        best["layout"].update(DEFAULT_LAYOUT, **{k: v for k, v in job["layout"].items() if k not in LAYOUT_CHOICES})
        data_ranks = best["layout"]["dp"] * best["layout"]["shard"]
        best["batch"]["global_sequences"] = data_ranks * best["batch"]["micro"] * best["batch"]["accumulation"]
        file = self.verbs.write(f"plan-{number}.json", plan.value)
        answers = [self.verbs.dry_run(name, "--plan", file), self.verbs.start(name, "--plan", file)]
        self.counts["plan files checked"] += 1
        if not all(answer.refuses for answer in answers):
            self.found.add("a plan file passes with a layout that is refused in a job file", "", job, *answers)

    def given_layout_on_devices(self, number, job, ranks, start):
        """The same layout on GPUs: the rules are the same ones."""
        there = {**job, "cluster": machine(ranks, kind="H100")}
        name = self.verbs.write(f"devices-{number}.yaml", there)
        micro = ("--micro", job["batch"]["micro"])
        answers = {"plan": self.verbs.plan(name, *micro), "tune": self.verbs.tune(name, "--space", "space.yaml")}
        dry = self.verbs.dry_run(name)
        if dry.code != 4:  # a build without CUDA may say that it trains on CPUs alone
            answers["train --dry-run"] = dry
        # One GPU trains narrow states, a CPU does not; one bit per gradient is the other way round.
        if "state_precision" not in job["optimizer"] and job["communication"].get("compression") != "onebit":
            answers["the engine (on CPU ranks)"] = start
        if not self.check_verdicts("H100", there, answers):
            return
        preset = self.verbs.tune(name)
        if not preset.accepts:
            self.found.add("tune with its preset space refuses a job that all accept", "", there, preset)
        if dry.accepts:
            self.check_figures(there, answers["plan"], dry)
        if number % 4 == 1:
            stated = answers["plan"].value["best"]["memory_gib"]["total"] * 2 ** 30
            self.check_capacity(job, ranks, stated, "H100", lambda cramped: {
                "plan": self.verbs.plan(cramped, *micro), "tune": self.verbs.tune(cramped, "--space", "space.yaml")})

    # --- options -----------------------------------------------------------------------------------------------------
    def check_options(self, name, job, start):
        """What was accepted has an effect."""
        layout = job["layout"]
        zero = layout.get("zero", 0)
        changes = {}
        if job["communication"].get("compression"):
            changes["compression"] = ("communication.compression=none", "communicated_bytes")
        if job["communication"].get("reshard_after_forward") is False and zero == 3:
            changes["reshard_after_forward"] = ("communication.reshard_after_forward=true", "communicated_bytes")
        if job["communication"].get("reduce_each_micro_step") and zero >= 2 and job["batch"]["accumulation"] > 1:
            changes["reduce_each_micro_step"] = ("communication.reduce_each_micro_step=false", "communicated_bytes")
        if job.get("activation_offload"):
            changes["activation_offload"] = ("activation_offload=false", "offloaded_bytes")
        if layout.get("offload", "none") != "none":
            changes["layout.offload"] = ("layout.offload=none", "offloaded_bytes")
        for option, (override, figure) in changes.items():
            self.counts["options checked"] += 1
            if option.rpartition(".")[2] in start.notes:  # said in a warning: not silent
                continue
            without = self.verbs.start(name, override)
            if without.accepts and start.value.get(figure) == without.value.get(figure):
                text = f"{figure} is {without.value.get(figure)} with and without it"
                self.found.add(f"{option} is silently ignored", text, job, start, without)

    # --- the search --------------------------------------------------------------------------------------------------
    def test_every_plan_that_the_search_returns_is_trained(self):
        for number, (job, ranks) in enumerate(self.jobs):
            self.searched(number, job, ranks)
        self.assert_agreed()
        self.assertGreater(self.counts["plans started"], 2 * JOBS)

    def searched(self, number, job, ranks):
        open_job = {key: value for key, value in job.items() if key != "layout"}
        there = {**open_job, "cluster": machine(ranks, kind="H100")}
        name = self.verbs.write(f"searched-{number}.yaml", there)
        constraints = jobs.make_constraints(random.Random(number), job, ranks)
        answer = self.verbs.plan(name, *constraints)
        self.check_sentence("plan's search", answer, there)
        if not answer.accepts:
            self.counts["searches without a plan"] += 1
            return
        self.counts["searches"] += 1
        for candidate in [answer.value["best"], *answer.value["alternatives"]]:
            self.check_candidate(number, open_job, candidate, answer)

    def check_candidate(self, number, job, candidate, search):
        planned = job_of_candidate(job, candidate)
        if "state_precision" in planned["optimizer"]:  # the fused step's, which no CPU has
            planned["optimizer"] = {k: v for k, v in planned["optimizer"].items() if k != "state_precision"}
        planned["cluster"] = machine(ranks_of(candidate["layout"]))
        name = self.verbs.write(f"candidate-{number}.yaml", planned)
        answers = {"train --dry-run": self.verbs.dry_run(name), "the engine": self.verbs.start(name)}
        self.counts["plans started"] += 1
        refusing = [verb for verb, answer in answers.items() if not answer.accepts]
        if refusing:
            self.found.add(f"{' and '.join(refusing)} refuse a plan that the search returned", "", planned, search,
                           *answers.values())


if __name__ == "__main__":
    unittest.main(verbosity=2)
