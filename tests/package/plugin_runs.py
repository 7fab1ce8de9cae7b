"""What a built examples/own-model must do: the same losses on one rank and under every layout, and an exact resume."""
import json

STEPS = 6
LAYOUTS = {"one rank": ("cluster=1x1xcpu", "layout={dp: 1}", "batch={micro: 4, accumulation: 2}"),
           "dp=2": ("cluster=1x2xcpu", "layout={dp: 2}", "batch={micro: 2, accumulation: 2}"),
           "shard=2, zero 3": ("cluster=1x2xcpu", "layout={shard: 2, zero: 3}", "batch={micro: 2, accumulation: 2}"),
           "pp=2": ("cluster=1x2xcpu", "layout={pp: 2}", "batch={micro: 4, accumulation: 2}")}


def losses_of(lockstep, name, *more):
    """The losses of a run of job.yaml in fp64; `lockstep` runs the command and returns what it printed."""
    out = lockstep("train", "job.yaml", "precision=fp64", f"steps={STEPS}", "--json", f"checkpoint={{directory: {name}}}",
                   *more)
    run = json.loads(out.strip().splitlines()[-1])
    report = json.loads(lockstep("report", run["run"], "--json"))
    return [value for _, value, *_ in sorted(report["loss"])], run["final_loss"]


def check(test, lockstep):
    """Prints the worst difference of each layout from one rank."""
    alone = None
    for name, words in LAYOUTS.items():
        folder = name.replace(" ", "").replace(",", "-").replace("=", "")
        losses, _ = losses_of(lockstep, folder, *words)
        test.assertEqual(len(losses), STEPS, name)
        alone = alone or losses
        worst = max(abs(a - b) for a, b in zip(losses, alone))
        print(f"{name:16} worst difference of {STEPS} losses from one rank: {worst:.1e}", flush=True)
        test.assertLess(worst, 1e-12, name)
    test.assertNotEqual(alone[0], alone[-1])
    words = LAYOUTS["shard=2, zero 3"]
    _, straight = losses_of(lockstep, "straight", *words)
    losses_of(lockstep, "stopped", *words, f"steps={STEPS // 2}")
    _, resumed = losses_of(lockstep, "stopped", *words, "--resume")
    test.assertEqual(straight, resumed)
    print(f"resumed after {STEPS // 2} of {STEPS} steps: the same loss, {resumed!r}", flush=True)
