"""The simulator's speed, with SimPy in the same run: writes bench/reports/sim.md, sim.json and sim.svg.

Events a second and core on one model in both; 100,000 GPUs x 90 days x 1,000 samples; a month of 12,500 nodes; one step of Llama 3
405B on up to 131,072 GPUs; growth with size. Run it with a Python that has SimPy: `make bench-sim`.

Usage: run.py [--build DIR] [--quick]    --quick: a look, nothing is kept
"""
import argparse
import math
import pathlib
import platform
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import measure  # noqa: E402

EVENTS_TARGET, STUDY_TARGET, STEP_TARGET = 8e6, 10.0, 2.0
NODES = pathlib.Path(__file__).resolve().parent / "nodes.py"
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 360, 70, 20, 20, 46


def simpy(days, **model):
    flags = [text for name, value in model.items() for text in (f"--{name}", repr(value))]
    return measure.last_json(measure.run([sys.executable, str(NODES), "--days", repr(days), *flags], timeout=600))


def measured(build, quick):
    flags = ["--quick"] if quick else []
    result = measure.last_json(measure.run([str(build / "bench_failures"), *flags], timeout=600))
    result["simpy"] = [simpy(5.0 if quick else 30.0) for _ in range(1 if quick else 5)]
    result["simpy_month"] = simpy(30.0, work=1000 / 6.5, repair=133 / 24)
    seconds = "0.3" if quick else "3"
    result["step"] = measure.last_json(measure.run([str(build / "bench_sim"), "--seconds", seconds], timeout=600))
    return result


def growth_lines(result):
    """[(what, colour, [(GPUs, core seconds)])]"""
    steps = result["step"]["step"]
    alike = [(row["gpus"], row["cpu_seconds"]) for row in steps if row["jitter"] == 0]
    unlike = [(row["gpus"], row["cpu_seconds"]) for row in steps if row["jitter"] > 0]
    samples = [(8 * row["nodes"], row["core_seconds_per_sample"]) for row in result["growth"]]
    return [("90 days of failures, one sample", "#4477aa", samples), ("one step, ranks alike", "#228833", alike),
            ("one step, every rank unlike", "#cc6677", unlike)]


def plot(lines):
    """Core seconds against GPUs, both logarithmic."""
    points = [point for *_, line in lines for point in line]
    low = math.floor(math.log10(min(y for _, y in points)))
    high = math.ceil(math.log10(max(y for _, y in points)))
    first, last = math.log10(min(x for x, _ in points)), math.log10(max(x for x, _ in points))

    def x_of(gpus):
        return LEFT + (WIDTH - LEFT - RIGHT) * (math.log10(gpus) - first) / (last - first)

    def y_of(seconds):
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - math.log10(seconds)) / (high - low)

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
             f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>']
    for power in range(low, high + 1):
        y = y_of(10.0**power)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#dddddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{10.0**power:g}</text>')
    for number, (what, colour, line) in enumerate(lines):
        path = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in line)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x_of(x):.1f}" cy="{y_of(y):.1f}" r="3.5" fill="{colour}"/>' for x, y in line]
        parts.append(f'<circle cx="{LEFT + 14}" cy="{TOP + 14 + 18 * number}" r="4" fill="{colour}"/>')
        parts.append(f'<text x="{LEFT + 24}" y="{TOP + 18 + 18 * number}">{what}</text>')
    for power in range(math.ceil(first), math.floor(last) + 1):
        parts.append(f'<text x="{x_of(10.0**power):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{10**power:,}</text>')
    parts.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">GPUs</text>')
    parts.append(f'<text transform="translate(16 {HEIGHT / 2}) rotate(-90)" text-anchor="middle">core seconds</text>')
    return "\n".join([*parts, "</svg>", ""])


def growth_table(rows):
    yield "| GPUs | samples | events a sample | core ms a sample | mean goodput |"
    yield "|---|---|---|---|---|"
    for row in rows:
        yield (f"| {8 * row['nodes']:,} | {row['samples']} | {row['events'] / row['samples']:,.0f} "
               f"| {1e3 * row['core_seconds_per_sample']:.3g} | {100 * row['mean_goodput']:.2f}% |")


def step_table(rows):
    yield "| GPUs | data ranks that differ | events | core ms | events a core second | step | closed form |"
    yield "|---|---|---|---|---|---|---|"
    for row in rows:
        yield (f"| {row['gpus']:,} | {row['kinds_of_data_ranks']:,} | {row['events']:,} | {1e3 * row['cpu_seconds']:.3g} "
               f"| {row['events_per_cpu_second'] / 1e6:.1f} M | {row['step_seconds']:.2f} s | {row['closed_form_seconds']:.2f} s |")


def queue_table(rows):
    yield "| events waiting | events a core second |"
    yield "|---|---|"
    for row in rows:
        yield f"| {row['pending']:,} | {row['events_per_cpu_second'] / 1e6:.1f} M |"


def step_rows(result, gpus):
    return [row for row in result["step"]["step"] if row["gpus"] == gpus]


def checks(result):
    """[(what, figure, target, met)]"""
    ours = measure.summary([row["events_per_second"] for row in result["events"]])
    theirs = measure.summary([row["events_per_second"] for row in result["simpy"]])
    study = result["study"]
    yield ("events a second and core, 12,500 nodes that fail and are repaired, median",
           f"{ours['median'] / 1e6:.1f} M ({ours['low'] / 1e6:.1f} - {ours['high'] / 1e6:.1f}); SimPy "
           f"{theirs['median'] / 1e6:.2f} M: {ours['median'] / theirs['median']:.0f} times", "8 M", ours["median"] >= EVENTS_TARGET)
    yield (f"{8 * study['nodes']:,} GPUs x {study['days']:.0f} days x {study['samples']:,} samples on {study['threads']} cores",
           f"{study['wall_seconds']:.2f} s ({study['core_seconds']:.2f} core seconds)", "10 s", study["wall_seconds"] <= STUDY_TARGET)
    month, their_month = result["month"], result["simpy_month"]
    yield ("12,500 nodes x 30 days of failures, one core",
           f"{1e3 * month['core_seconds']:.2f} ms; SimPy {1e3 * their_month['core_seconds']:.0f} ms", "-", True)
    alike, unlike = sorted(step_rows(result, 16384), key=lambda row: row["jitter"])
    yield ("one step of Llama 3 405B on 16,384 GPUs with contention, ranks alike", f"{1e3 * alike['cpu_seconds']:.1f} ms of a core",
           "2 s", alike["cpu_seconds"] <= STEP_TARGET)
    yield ("the same, every rank unlike (jitter of 2%)", f"{unlike['cpu_seconds']:.2f} s of a core", "2 s",
           unlike["cpu_seconds"] <= STEP_TARGET)


def sound(result):
    """Both programs play the model they claim to: as many nodes are down as the rates say."""
    in_order = all(row["out_of_order"] == 0 for row in result["step"]["queue"])
    return in_order and all(abs(row["mean_down"] / row["expected_down"] - 1) < 0.05 for row in [*result["events"], *result["simpy"]])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=pathlib.Path, default=measure.ROOT / "build" / "bench")
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    machine = measure.machine()
    result = measured(given.build, given.quick)
    table = list(checks(result))
    lines = ["# Simulator: events a second, and whole studies", "",
             f"{machine['cores']} x {machine['cpu']}, {machine['memory_gib']} GiB, {machine['date']}, commit {machine['commit']}; "
             f"load before: {machine['load_before']:.2f}. SimPy {result['simpy'][0]['version']} on Python {platform.python_version()}.", "",
             "| | measured | target | |", "|---|---|---|---|",
             *[f"| {what} | {figure} | {target} | {'met' if met else '**not met**'} |" for what, figure, target, met in table], "",
             "Events a second: every node works for an exponential time (a day) and is repaired for one (two hours); an event is one change",
             "of one node, with one pending per node. `bench/sim/failures.cpp` and `bench/sim/nodes.py` are the same model, in seconds of the",
             "core that runs them; both must have as many nodes down as the rates say, within 5%"
             + (" (they have)." if sound(result) else " (**they have not**)."), "",
             "A study is what `lockstep simulate` plays: faults in bursts (6.5 per 1,000 node-days), repairs, spares, recovery from memory or",
             "disk, checkpoints. Growth with the size of the cluster, one core:", "", *growth_table(result["growth"]), "",
             "One step of Llama 3 405B (tp=8, pp=16, 1F1B, 16 micro-batches of 8,192 tokens, ZeRO-1 over the rest) with contention, the",
             "price of its parts included; data ranks that are alike are played once, with jitter no two are:", "",
             *step_table(result["step"]["step"]), "",
             "The event queue by itself, each event adding the next (the hold model, Jones 1986):", "",
             *queue_table(result["step"]["queue"]), "", "![core seconds against GPUs](sim.svg)", ""]
    if given.quick:
        print("\n".join(lines))
        print("a look only: nothing was kept")
        return 0 if sound(result) else 1
    (measure.REPORTS / "sim.svg").write_text(plot(growth_lines(result)))
    measure.keep("sim", {"machine": machine, **result}, "\n".join(lines))
    return 0 if sound(result) and all(met for *_, met in table) else 3


if __name__ == "__main__":
    sys.exit(main())
