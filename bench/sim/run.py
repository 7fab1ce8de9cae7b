"""The simulator's speed, with SimPy in the same run: writes bench/reports/sim.md, sim.json and sim.svg.

Events a second and core on one model in both; 100,000 GPUs x 90 days x 1,000 samples; a month of 12,500 nodes; one step on 16,384
GPUs where bench_sim is built; growth with size. Run it with a Python that has SimPy: `make bench-sim`.

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
    if (build / "bench_sim").is_file():
        result["step"] = measure.last_json(measure.run([str(build / "bench_sim"), *flags], timeout=600))
    return result


def plot(rows):
    """Core seconds of a sample against nodes, both logarithmic."""
    points = [(row["nodes"], row["core_seconds_per_sample"]) for row in rows]
    low = math.floor(math.log10(min(y for _, y in points)))
    high = math.ceil(math.log10(max(y for _, y in points)))
    first, last = math.log10(points[0][0]), math.log10(points[-1][0])

    def x_of(nodes):
        return LEFT + (WIDTH - LEFT - RIGHT) * (math.log10(nodes) - first) / (last - first)

    def y_of(seconds):
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - math.log10(seconds)) / (high - low)

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
             f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>']
    for power in range(low, high + 1):
        y = y_of(10.0**power)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#dddddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{10.0**power:g}</text>')
    line = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in points)
    parts.append(f'<polyline points="{line}" fill="none" stroke="#4477aa"/>')
    for nodes, seconds in points:
        parts.append(f'<circle cx="{x_of(nodes):.1f}" cy="{y_of(seconds):.1f}" r="4" fill="#4477aa"/>')
        parts.append(f'<text x="{x_of(nodes):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{nodes:,}</text>')
    parts.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">nodes of 8 GPUs, 90 days</text>')
    parts.append(f'<text transform="translate(16 {HEIGHT / 2}) rotate(-90)" text-anchor="middle">core seconds of a sample</text>')
    return "\n".join([*parts, "</svg>", ""])


def growth_table(rows):
    yield "| GPUs | samples | events a sample | core ms a sample | mean goodput |"
    yield "|---|---|---|---|---|"
    for row in rows:
        yield (f"| {8 * row['nodes']:,} | {row['samples']} | {row['events'] / row['samples']:,.0f} "
               f"| {1e3 * row['core_seconds_per_sample']:.3g} | {100 * row['mean_goodput']:.2f}% |")


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
    if "step" in result:
        seconds = result["step"]["step_16384_seconds"]
        yield ("one step of Llama 3 405B on 16,384 GPUs with contention", f"{seconds:.2f} s", "2 s", seconds <= STEP_TARGET)


def sound(result):
    """Both programs play the model they claim to: as many nodes are down as the rates say."""
    return all(abs(row["mean_down"] / row["expected_down"] - 1) < 0.05 for row in [*result["events"], *result["simpy"]])


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
             "![core seconds of a sample against nodes](sim.svg)", ""]
    if given.quick:
        print("\n".join(lines))
        print("a look only: nothing was kept")
        return 0 if sound(result) else 1
    (measure.REPORTS / "sim.svg").write_text(plot(result["growth"]))
    measure.keep("sim", {"machine": machine, **result}, "\n".join(lines))
    return 0 if sound(result) and all(met for *_, met in table) else 3


if __name__ == "__main__":
    sys.exit(main())
