"""Tables, targets and the plot of the tuner's benchmark."""
import json
import random
import statistics
import textwrap
from collections import defaultdict

import tune_plot

TARGET_RATIO = 0.65
TARGET_FAILED = 0.12
TARGET_MILLISECONDS = 50
TARGET_INSTANCES, TARGET_KINDS = 50, 3
RESAMPLES = 2000


def by_instance(rows):
    """Mean regret of each instance over its seeds: {(kind, instance): regret}."""
    regrets = defaultdict(list)
    for row in rows:
        regrets[row["kind"], row["instance"]].append(row["regret"])
    return {key: statistics.fmean(values) for key, values in regrets.items()}


def resample(keys):
    """Bootstrap samples of instances, the same ones for whoever asks with the same keys."""
    generator = random.Random(20)
    keys = sorted(keys)
    return [generator.choices(keys, k=len(keys)) for _ in range(RESAMPLES)]


def interval(values):
    values = sorted(values)
    return values[int(0.025 * len(values))], values[int(0.975 * len(values))]


def summarize(rows):
    regrets = by_instance(rows)
    samples = [statistics.fmean(regrets[key] for key in sample) for sample in resample(regrets)]
    low, high = interval(samples)
    return {"mean": statistics.fmean(regrets.values()), "median": statistics.median(regrets.values()), "low": low,
            "high": high, "failed": statistics.fmean(row["failed"] for row in rows),
            "milliseconds": statistics.fmean(row["milliseconds_per_trial"] for row in rows),
            "kinds": {kind: statistics.fmean(v for (k, _), v in regrets.items() if k == kind)
                      for kind in sorted({key[0] for key in regrets})}}


def at_count(rows, count):
    """Optuna's studies as they stood after `count` trials."""
    return [{**row, "regret": row["regrets"][count - 1], "failed": row["failed"][str(count)]} for row in rows]


def tool_rows(document, counts):
    """{tool: {count: rows}} with our tool under "lockstep"."""
    tools = {"lockstep": {c: [r for r in document["ours"] if r["trials"] == c] for c in counts},
             "lockstep with a prior": {c: [r for r in document["ours_with_prior"] if r["trials"] == c] for c in counts}}
    variants = defaultdict(list)
    for row in document["optuna"]:
        variants[row["variant"]].append(row)
    for variant, rows in variants.items():
        tools[variant] = {c: at_count(rows, c) for c in counts}
    return tools


def best_optuna(summaries, count):
    names = [name for name in summaries if "/" in name]
    return min(names, key=lambda name: summaries[name][count]["mean"])


def ratio_interval(ours, theirs):
    """95% bootstrap interval of the ratio of means, over the instances, paired."""
    ours, theirs = by_instance(ours), by_instance(theirs)
    return interval([sum(ours[k] for k in sample) / sum(theirs[k] for k in sample) for sample in resample(ours)])


def check_targets(document, tools, summaries, counts):
    """Lines of (what, measured, target, met)."""
    counted = [fact for fact in document["surfaces"] if fact["counts"]]
    kinds = {fact["kind"] for fact in counted}
    lines = [("counted instances, of kinds", f"{len(counted)}, {len(kinds)}", f">= {TARGET_INSTANCES}, {TARGET_KINDS}",
              len(counted) >= TARGET_INSTANCES and len(kinds) >= TARGET_KINDS)]
    for count in counts:
        best = best_optuna(summaries, count)
        ratio = summaries["lockstep"][count]["mean"] / summaries[best][count]["mean"]
        low, high = ratio_interval(tools["lockstep"][count], tools[best][count])
        lines.append((f"mean regret at {count} trials against the best of Optuna ({best})",
                      f"{ratio:.2f} [{low:.2f}, {high:.2f}]", f"<= {TARGET_RATIO}", ratio <= TARGET_RATIO))
    ours = document["ours"]
    silent = sum(not row["answered"] for row in ours)
    lines.append(("studies without a feasible answer", str(silent), "0", silent == 0))
    failed = max(summaries["lockstep"][count]["failed"] for count in counts)
    lines.append(("failed trials, worst of the three counts", f"{failed:.1%}", f"<= {TARGET_FAILED:.0%}",
                  failed <= TARGET_FAILED))
    slowest = max(summaries["lockstep"][count]["milliseconds"] for count in counts)
    lines.append(("wall clock of the whole command per trial, worst of the three", f"{slowest:.1f} ms",
                  f"<= {TARGET_MILLISECONDS} ms", slowest <= TARGET_MILLISECONDS))
    return lines


def regret_table(summaries, counts):
    yield ("| tool | " + " | ".join(f"{c} trials: mean [95%], median" for c in counts) + " | failed | ms/trial |")
    yield "|---|" + "---|" * (len(counts) + 2)
    last = counts[-1]
    for name in sorted(summaries, key=lambda n: summaries[n][last]["mean"]):
        cells = [f"{s['mean']:.2f} [{s['low']:.2f}, {s['high']:.2f}], {s['median']:.2f}"
                 for s in (summaries[name][c] for c in counts)]
        label = f"**{name}**" if name.startswith("lockstep") else f"Optuna {name}"
        yield (f"| {label} | {' | '.join(cells)} | {summaries[name][last]['failed']:.0%} "
               f"| {summaries[name][last]['milliseconds']:.1f} |")


def kind_table(summaries, counts):
    """Ours against the best of Optuna on each kind alone (its best there, by mean at that count)."""
    kinds = list(summaries["lockstep"][counts[0]]["kinds"])
    yield "| kind | " + " | ".join(f"{c}: ours, best of Optuna" for c in counts) + " |"
    yield "|---|" + "---|" * len(counts)
    for kind in kinds:
        cells = []
        for count in counts:
            name = min((n for n in summaries if "/" in n), key=lambda n: summaries[n][count]["kinds"][kind])
            ours, theirs = (summaries[tool][count]["kinds"][kind] for tool in ("lockstep", name))
            cells.append(f"{ours:.2f}, {theirs:.2f} ({name})")
        yield f"| {kind} | {' | '.join(cells)} |"


def surface_table(facts):
    yield ("| kind | knobs | configurations | counted of examined | best over default, median "
           "| uniform draws that fail: without rules, with | random search at 30: without rules, with |")
    yield "|---|---|---|---|---|---|---|"
    for kind in dict.fromkeys(fact["kind"] for fact in facts):
        all_of = [fact for fact in facts if fact["kind"] == kind]
        some = [fact for fact in all_of if fact["counts"]]
        mean = lambda key: statistics.fmean(fact[key] for fact in some)  # noqa: E731
        sizes = [fact["configurations"] for fact in some]
        yield (f"| {kind} | {some[0]['knobs']} | {min(sizes):,} - {max(sizes):,} | {len(some)} of {len(all_of)} "
               f"| {statistics.median(f['best'] / f['default'] for f in some):.1f}x "
               f"| {mean('failing'):.0%}, {mean('failing_with_rules'):.0%} "
               f"| {mean('random_regret_30'):.1f}%, {mean('random_regret_30_with_rules'):.1f}% |")


HOW_TO_READ = """\
Optuna's rows are `sampler/offered/told`. Samplers: `tpe` (each knob by itself), `mtpe` (multivariate, grouped by
activity), `gp`, `random`. Offered: `plain` (rules unknown), `joint` (knobs tied by a rule as one categorical of what
exists, numbers ordinal), `reject` (determined knobs derived, numbers ordinal; what still breaks a rule is told as a
failure for free, neither launched nor counted). Told: what a failed trial becomes: throughput `zero`, the `worst` so
far, `failed` (raised), or a violated `constraint`. Every tool starts with the default configuration. Optuna's answer is
its best observed; ours is what `lockstep tune --no-importance --json` reports, in a study of its own for each number of
trials. `lockstep with a prior` starts from a model of the job whose constants are off by 30% each and which lacks the
terms nobody models (run in one process). ms/trial: ours is the wall clock of the whole command (start, run store on
disk, worker) over its trials; Optuna's is the time in `ask` and `tell` alone, in memory."""

HOW_MADE = """\
bench/tune/surface_*.cpp has the formulas. An instance counts where random search ends at least 7% below the best after
30 trials (mean of 40 searches, with the rules of the space and without them) and at least 40% of uniform draws over the
knobs fail. The best is found by trying every configuration. Noise: lognormal, about 3% from launch to launch, the same
for every tool at the same trial number."""


def prior_line(facts):
    """How good the prior is by itself."""
    counted = [fact for fact in facts if fact["counts"]]
    runs = [100 * (1 - fact["believed_best"] / fact["best"]) for fact in counted if fact["believed_best"] > 0]
    return (f"The prior's own first choice does not run on {len(counted) - len(runs)} of {len(counted)} instances and "
            f"ends {statistics.fmean(runs):.1f}% below the best on the others.")


def heading(document):
    machine, versions = document["machine"], document["versions"]
    text = (f"{machine['cores']} x {machine['cpu']}, {machine['memory_gib']} GiB, {machine['date']}, commit "
            f"{machine['commit']}; load before: {machine['load_before']:.2f}; {document['seconds']} s in all, two "
            f"processes. Optuna {versions['optuna']} (Python {versions['python']}, torch {versions['torch']}, scipy "
            f"{versions['scipy']}).")
    reused = " Optuna's studies are from an earlier run." if document["optuna_reused"] else ""
    return textwrap.wrap(text + reused, 120)


def text_of(document, summaries, targets, counts):
    counted = sum(fact["counts"] for fact in document["surfaces"])
    cpu = statistics.fmean(row["cpu_milliseconds_per_trial"] for row in document["ours"])
    bias = statistics.fmean(row["bias_percent"] for row in document["ours"] if row["bias_percent"] is not None)
    return "\n".join([
        "# Tuner: `lockstep tune` against Optuna on jobs with known truth", "", *heading(document), "",
        "Figures are % below the true best of the configuration that the tool chose, over "
        f"{counted} instances, studies of each: {document['seeds']}.", "Intervals are 95% bootstrap over instances.",
        "",
        "| target | measured | wanted | |", "|---|---|---|---|",
        *(f"| {what} | {got} | {wanted} | {'met' if met else '**missed**'} |" for what, got, wanted, met in targets),
        "", "![Mean regret against trials](tune.svg)", "", *regret_table(summaries, counts), "", HOW_TO_READ,
        prior_line(document["surfaces"]), "",
        "By kind (Optuna's best on that kind alone):", "", *kind_table(summaries, counts), "",
        f"What `lockstep tune` reported for its winner was off by {bias:+.2f}% on average; its command took",
        f"{cpu:.1f} ms of CPU per trial, worker included.", "",
        "## Surfaces", "", *surface_table(document["surfaces"]), "", HOW_MADE, ""])


def write(document, counts, folder):
    """Prints the tables, writes the report when there is a folder; the targets that were missed."""
    tools = tool_rows(document, counts)
    summaries = {name: {count: summarize(rows) for count, rows in by_count.items()} for name, by_count in tools.items()}
    targets = check_targets(document, tools, summaries, counts)
    text = text_of(document, summaries, targets, counts)
    print(text)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "tune.md").write_text(text)
        (folder / "tune.svg").write_text(tune_plot.plot(document, summaries, counts))
        document["targets"] = [{"what": w, "measured": m, "wanted": t, "met": met} for w, m, t, met in targets]
        (folder / "tune.json").write_text(json.dumps(document, separators=(",", ":")) + "\n")
    return [target for target in targets if not target[3]]
