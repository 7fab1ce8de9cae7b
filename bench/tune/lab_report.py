"""Tables and targets of the laboratory's comparison (lab.py)."""
import json
import random
import statistics
from collections import defaultdict

RATIO, HIDDEN_RATIO = 0.6, 1.2   # of the best of Optuna's means; of ours with names
P90_PERCENT, P90_TRIALS = 12, 60
COVERS = (90, 97)
TOP, TOP_FAMILY = 85, 75
MILLISECONDS = 50
RESAMPLES = 2000


def by_instance(rows):
    """Mean regret of each instance over its seeds."""
    regrets = defaultdict(list)
    for row in rows:
        regrets[row["kind"], row["instance"]].append(row["regret"])
    return {key: statistics.fmean(values) for key, values in regrets.items()}


def resamples(keys):
    """Bootstrap samples of instances, drawn within each family, the same ones for the same instances."""
    generator, families = random.Random(20), defaultdict(list)
    for key in sorted(keys):
        families[key[0]].append(key)
    return [[key for some in families.values() for key in generator.choices(some, k=len(some))]
            for _ in range(RESAMPLES)]


def middle95(values):
    values = sorted(values)
    return values[int(0.025 * len(values))], values[int(0.975 * len(values))]


def quantile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))]


def summary(rows):
    means = by_instance(rows)
    low, high = middle95([statistics.fmean(means[key] for key in sample) for sample in resamples(means)])
    regrets = [row["regret"] for row in rows]
    return {"mean": statistics.fmean(means.values()), "low": low, "high": high, "median": statistics.median(regrets),
            "p90": quantile(regrets, 0.9), "failed": statistics.fmean(row["failed"] for row in rows),
            "milliseconds": statistics.fmean(row["milliseconds_per_trial"] for row in rows)}


def ratio(ours, theirs):
    """Of the means, with its interval over the instances, paired."""
    ours, theirs = by_instance(ours), by_instance(theirs)
    value = lambda keys: sum(ours[k] for k in keys) / max(1e-9, sum(theirs[k] for k in keys))  # noqa: E731
    return value(ours), *middle95([value(sample) for sample in resamples(ours)])


class Table:
    """rows(tool, trials, family="") of every tool; Optuna's variants that lack every study of some instance are left
    out, those that lack a few are in with what there is."""

    def __init__(self, document):
        self.counts = document["budgets"]
        self.timed = "CPU in one process" if document["in_process"] else "wall clock of the whole command"
        best = {(fact["kind"], fact["instance"]): fact["best"] for fact in document["surfaces"]}
        self.families = list(dict.fromkeys(kind for kind, _ in best))
        self.tools, self.incomplete = {}, {}
        for name, hidden in (("lockstep", False), ("lockstep, names hidden", True)):
            rows = [row for row in document["ours"] if row["hidden"] == hidden]
            if rows:
                self.tools[name] = {count: [r for r in rows if r["trials"] == count] for count in self.counts}
        variants = defaultdict(list)
        for row in document["optuna"]:
            variants[row["variant"]].append(row)
        for variant, rows in variants.items():
            if len(rows) < len(best) * document["seeds"]:
                self.incomplete[variant] = len(rows)
            if {(row["kind"], row["instance"]) for row in rows} != set(best):
                continue
            self.tools[variant] = {count: [
                {**row, "regret": 100 * (1 - row["truth"][str(count)] / best[row["kind"], row["instance"]]),
                 "failed": row["failed"][str(count)]} for row in rows] for count in self.counts}

    def rows(self, tool, count, family=""):
        return [row for row in self.tools[tool][count] if not family or row["kind"] == family]

    def optuna(self):
        return [name for name in self.tools if "/" in name and not name.startswith("random")]

    def chance(self):
        return next((name for name in self.tools if name.startswith("random")), None)

    def best_optuna(self, count, family=""):
        mean = lambda name: statistics.fmean(row["regret"] for row in self.rows(name, count, family))  # noqa: E731
        return min(self.optuna(), key=mean, default=None)


def share_right(rows, what):
    asked = [row["statements"][what] for row in rows if row["statements"][what] is not None]
    return (100 * statistics.fmean(asked), len(asked)) if asked else (None, 0)


def regret_targets(table):
    for count in table.counts:
        best = table.best_optuna(count)
        if best:
            value, low, high = ratio(table.rows("lockstep", count), table.rows(best, count))
            yield (f"mean regret at {count} against the best of Optuna ({best})", f"{value:.2f} [{low:.2f}, {high:.2f}]",
                   f"<= {RATIO}", value <= RATIO)
        chance = table.chance()
        if chance:
            above = [family for family in table.families if summary(table.rows("lockstep", count, family))["mean"]
                     >= summary(table.rows(chance, count, family))["mean"]]
            yield (f"families not below random search at {count}", ", ".join(above) or "none", "none", not above)
        if "lockstep, names hidden" in table.tools:
            value, low, high = ratio(table.rows("lockstep, names hidden", count), table.rows("lockstep", count))
            yield (f"names hidden at {count}, against ours with names", f"{value:.2f} [{low:.2f}, {high:.2f}]",
                   f"<= {HIDDEN_RATIO}", value <= HIDDEN_RATIO)
    if P90_TRIALS in table.counts:
        p90 = summary(table.rows("lockstep", P90_TRIALS))["p90"]
        yield f"p90 of regret at {P90_TRIALS}", f"{p90:.1f}%", f"<= {P90_PERCENT}%", p90 <= P90_PERCENT


def statement_targets(table):
    rows = [row for name in table.tools if name.startswith("lockstep") for count in table.counts
            for row in table.rows(name, count)]
    for what, name in (("figure", "interval of the winner covers"), ("gain", "interval of the gain covers")):
        value, asked = share_right(rows, what)
        if value is not None:
            yield name, f"{value:.1f}% of {asked}", f"{COVERS[0]}-{COVERS[1]}%", COVERS[0] <= value <= COVERS[1]
    value, asked = share_right(rows, "top")
    if value is None:
        return
    yield "three dearest knobs right", f"{value:.1f}% of {asked}", f">= {TOP}%", value >= TOP
    each = {family: share_right([row for row in rows if row["kind"] == family], "top")[0] for family in table.families}
    least = min((family for family in each if each[family] is not None), key=lambda family: each[family])
    yield "  the same, worst family", f"{each[least]:.1f}% ({least})", f">= {TOP_FAMILY}%", each[least] >= TOP_FAMILY


def targets(table):
    lines = [*regret_targets(table), *statement_targets(table)]
    slowest = max(summary(table.rows("lockstep", count))["milliseconds"] for count in table.counts)
    lines.append((f"{table.timed} per trial, worst budget", f"{slowest:.1f} ms", f"<= {MILLISECONDS} ms",
                  slowest <= MILLISECONDS))
    return lines


def tool_table(table):
    yield "| tool | " + " | ".join(f"{count}: mean [95%], median, p90" for count in table.counts) + " | failed | ms/trial |"
    yield "|---|" + "---|" * (len(table.counts) + 2)
    last = table.counts[-1]
    summaries = {name: {count: summary(table.rows(name, count)) for count in table.counts} for name in table.tools}
    for name in sorted(summaries, key=lambda name: summaries[name][last]["mean"]):
        cells = [f"{s['mean']:.2f} [{s['low']:.2f}, {s['high']:.2f}], {s['median']:.2f}, {s['p90']:.1f}"
                 for s in summaries[name].values()]
        label = f"**{name}**" if name.startswith("lockstep") else f"Optuna {name}"
        s = summaries[name][last]
        yield f"| {label} | {' | '.join(cells)} | {s['failed']:.0%} | {s['milliseconds']:.1f} |"


def family_table(table):
    """Ours, Optuna's best on that family alone, random search."""
    chance = table.chance()
    yield "| family | " + " | ".join(f"{count}: ours, best of Optuna, random" for count in table.counts) + \
        f" | p90 at {table.counts[-1]}: ours | failed |"
    yield "|---|" + "---|" * (len(table.counts) + 2)
    for family in table.families:
        cells = []
        for count in table.counts:
            best = table.best_optuna(count, family)
            theirs = f"{summary(table.rows(best, count, family))['mean']:.2f} ({best})" if best else "-"
            luck = f"{summary(table.rows(chance, count, family))['mean']:.2f}" if chance else "-"
            cells.append(f"{summary(table.rows('lockstep', count, family))['mean']:.2f}, {theirs}, {luck}")
        s = summary(table.rows("lockstep", table.counts[-1], family))
        yield f"| {family} | {' | '.join(cells)} | {s['p90']:.1f} | {s['failed']:.0%} |"


def statement_table(table):
    yield "| family | trials | winner covered | gain covered | three dearest right |"
    yield "|---|---|---|---|---|"
    for family in table.families:
        for count in table.counts:
            rows = [row for name in table.tools if name.startswith("lockstep") for row in table.rows(name, count, family)]
            cells = [f"{value:.0f}% of {asked}" if value is not None else "-"
                     for value, asked in (share_right(rows, what) for what in ("figure", "gain", "top"))]
            yield f"| {family} | {count} | {' | '.join(cells)} |"


def surface_table(document):
    yield "| family | knobs | draws that fail: without rules, with | best over default, median | random search at 30 |"
    yield "|---|---|---|---|---|"
    for kind in dict.fromkeys(fact["kind"] for fact in document["surfaces"]):
        some = [fact for fact in document["surfaces"] if fact["kind"] == kind]
        mean = lambda key: statistics.fmean(fact[key] for fact in some)  # noqa: E731
        yield (f"| {kind} | {some[0]['knobs']} | {mean('failing'):.0%}, {mean('failing_with_rules'):.0%} "
               f"| {statistics.median(f['best'] / f['default'] for f in some):.1f}x "
               f"| {mean('random_regret_30_with_rules'):.1f}% |")


HOW_TO_READ = """\
Figures are % below the true best of the configuration that the tool chose. Mean and its 95% interval: bootstrap over
instances, within families; median and p90: over studies. Optuna's rows are `sampler/offered/told`
(bench/tune/optuna_study.py): what a failed trial becomes is throughput `zero`, the `worst` so far, `failed` (raised) or a
violated `constraint`; `reject`: rules are kept for free, without a trial. The best variant is chosen after the fact, for
each budget and family anew, in Optuna's favour. Even instances tell the defaults, and every tool starts with them; odd ones
do not. ms/trial: ours is the wall clock of the whole command, worker and importance included; Optuna's the time in `ask` and
`tell`. Statements (bench/tune/lab_score.py, words of docs/reference/tuning-statistics.md) are of all our studies, hidden ones
included; the winner's figure is not asked for where the machine drifts, gain and dearest knobs where no default is told."""


def heading(document, table):
    machine, versions = document["machine"], document["versions"]
    half = {"dev": "the half that the tuner was worked on with (dev)",
            "final": "the half that was kept back and opened once (final)"}[document["half"]]
    how = " Ours in one process (tune_lab)." if document["in_process"] else ""
    wanted = len(document["surfaces"]) * document["seeds"]
    left = "".join(f" Of {name} {rows} of {wanted} studies are there{'' if name in table.tools else '; left out'}."
                   for name, rows in table.incomplete.items())
    return (f"{machine['cores']} x {machine['cpu']}, {machine['memory_gib']} GiB, {machine['date']}, commit "
            f"{machine['commit']}; load before: {machine['load_before']:.2f}; {document['seconds']} s in all. Optuna "
            f"{versions['optuna']} (Python {versions['python']}, cmaes {versions['cmaes']}, torch {versions['torch']}, scipy "
            f"{versions['scipy']}); {document['optuna_run_now']} of {len(document['optuna'])} of its studies were run now, "
            f"the others kept.{how}{left}\n\n"
            f"**Which half: {half}.** {len(table.families)} families, {document['instances']} instances each, "
            f"{document['seeds']} seeds.")


def text_of(document, table, lines):
    statements = any(row["statements"][what] is not None for row in document["ours"] for what in row["statements"])
    return "\n".join([
        f"# The tuner in the laboratory: {document['half']}", "", heading(document, table), "",
        "| target | measured | wanted | |", "|---|---|---|---|",
        *(f"| {what} | {got} | {wanted} | {'met' if met else '**missed**'} |" for what, got, wanted, met in lines), "",
        *tool_table(table), "", HOW_TO_READ, "", "## By family (Optuna's best on that family alone)", "",
        *family_table(table), "",
        *(["## Statements after the study", "", *statement_table(table), ""] if statements else []),
        "## Surfaces", "", *surface_table(document), "", "bench/tune/README.md describes the families.", ""])


def write(document, folder):
    """Prints the page, writes it where there is a folder; the targets that were missed."""
    table = Table(document)
    lines = targets(table)
    text = text_of(document, table, lines)
    print(text)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        name = f"tune_lab_{document['half']}"
        (folder / f"{name}.md").write_text(text)
        document["targets"] = [{"what": w, "measured": m, "wanted": t, "met": met} for w, m, t, met in lines]
        (folder / f"{name}.json").write_text(json.dumps(document, separators=(",", ":")) + "\n")
    return [line for line in lines if not line[3]]
