"""Many faults, and a report of them.

    run.py [--faults 2000] [--seed N] [--jobs N] [--report bench/reports/chaos.md]
"""
import argparse
import statistics
import subprocess
import sys
import tempfile

from arena import *

STEPS, A_RUN = 120, 20


def table(head, rows):
    return "\n".join(["| " + " | ".join(head) + " |", "|" + "---|" * len(head)] +
                     ["| " + " | ".join(map(str, row)) + " |" for row in rows])


def quantile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


def seconds_text(values):
    if not values:
        return "-"
    return f"{statistics.median(values):.2f} / {quantile(values, 0.99):.2f} / {max(values):.2f}"


def report(outcomes, seed, jobs, seconds):
    """Markdown: counts by kind, by layout, by outcome, and how long recoveries took."""
    kinds = collections.Counter(kind_of(text) for outcome in outcomes for text in outcome.fired)
    fired, failed = sum(kinds.values()), [outcome for outcome in outcomes if outcome.problems]
    by_layout = []
    for layout in LAYOUTS:
        mine = [outcome for outcome in outcomes if outcome.layout == layout]
        recoveries = [value for outcome in mine for value in outcome.recovery_seconds]
        by_layout.append((layout, len(mine), sum(len(one.fired) for one in mine), sum(one.restarts for one in mine),
                          sum(one.lost_steps for one in mine), seconds_text(recoveries),
                          sum(bool(one.problems) for one in mine)))
    recoveries = [value for outcome in outcomes for value in outcome.recovery_seconds]
    return f"""# Chaos

Written by `make chaos` (tests/chaos/run.py, seed {seed}): {fired} faults in {len(outcomes)} runs of {STEPS} steps on {RANKS} ranks over
{' and '.join(sorted({one.backend for one in outcomes}))}, {os.cpu_count()} cores, {jobs} at a time, {seconds / 60:.0f} minutes. After every run the weights of its last checkpoint must be those of the undisturbed run of
the same layout, bit for bit, its ledger exact, its exit code 0, and no process left.

**{len(outcomes) - len(failed)} of {len(outcomes)} runs as they should be.** Recoveries: {len(recoveries)}; seconds from a failure that is known to the next
step: median {statistics.median(recoveries) if recoveries else 0:.2f}, 99th percentile {quantile(recoveries, 0.99):.2f}, longest {max(recoveries, default=0):.2f}
(the machine also starts the next process that waits).

{table(("layout", "runs", "faults", "restarts", "steps done again", "recovery: median / p99 / longest (s)", "failed"), by_layout)}

{table(("fault", "times"), sorted(kinds.items(), key=lambda item: -item[1]))}

""" + "".join(f"- {outcome}\n" for outcome in failed)


def disturb(options):
    """Outcomes of runs, one after the other, until enough faults have happened."""
    rng, outcomes = random.Random(options.seed), []
    arena = Arena("setUp")
    arena.setUp()
    try:
        while sum(len(outcome.fired) for outcome in outcomes) < options.faults:
            layout = options.layouts[len(outcomes) % len(options.layouts)]
            backend = options.backends[len(outcomes) % len(options.backends)]
            outcomes.append(arena.disturbed(layout, STEPS, schedule(rng, options.a_run, STEPS), backend))
            done = sum(len(outcome.fired) for outcome in outcomes)
            print(f"{done}/{options.faults} {outcomes[-1].seconds:.0f} s {outcomes[-1]}", flush=True)
            if options.outcomes:
                pathlib.Path(options.outcomes).write_text(json.dumps([vars(outcome) for outcome in outcomes]))
    finally:
        arena.doCleanups()
    return outcomes


def disturb_at_once(options):
    """The same in several processes, each with a part of the faults and a seed of its own."""
    with tempfile.TemporaryDirectory() as folder:
        files = [pathlib.Path(folder) / f"{job}.json" for job in range(options.jobs)]
        parts = [subprocess.Popen([sys.executable, __file__, "--faults", str(-(-options.faults // options.jobs)), "--seed",
                                   str(options.seed + 1000 * job), "--a-run", str(options.a_run), "--outcomes", str(file),
                                   "--layouts", *options.layouts[job % len(options.layouts):],
                                   *options.layouts[:job % len(options.layouts)], "--backends", *options.backends])
                 for job, file in enumerate(files)]
        for part in parts:
            part.wait()
        outcomes = []
        for file in files:
            for told in json.loads(file.read_text()) if file.exists() else []:
                outcomes.append(Outcome(told["layout"], told["events"]))
                vars(outcomes[-1]).update(told)
    return outcomes


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=16)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--layouts", nargs="*", default=list(LAYOUTS))
    parser.add_argument("--backends", nargs="*", default=BACKENDS, help="by turns")
    parser.add_argument("--a-run", type=int, default=A_RUN)
    parser.add_argument("--outcomes", default="", help="a file for what became of every run")
    parser.add_argument("--report", default="")
    options = parser.parse_args()
    begin = time.monotonic()
    outcomes = disturb_at_once(options) if options.jobs > 1 else disturb(options)
    text = report(outcomes, options.seed, options.jobs, time.monotonic() - begin)
    if options.report:
        pathlib.Path(options.report).write_text(text)
    print(text)
    return 1 if any(outcome.problems for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
