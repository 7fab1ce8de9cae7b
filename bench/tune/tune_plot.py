"""The plot of the tuner's benchmark, as SVG by hand: mean regret against trials."""
import statistics

COLOURS = ["#4477aa", "#ee6677", "#228833", "#aa3377", "#66ccee", "#bbbbbb"]
WIDTH, HEIGHT = 760, 420
LEFT, RIGHT, TOP, BOTTOM = 60, 200, 20, 45


def best_variants(summaries, count):
    """The best variant of each of Optuna's samplers."""
    best = {}
    for name in sorted((n for n in summaries if "/" in n), key=lambda n: summaries[n][count]["mean"]):
        best.setdefault(name.split("/")[0], name)
    return best.values()


def curves_of(document, summaries, counts):
    curves = {}
    for name in best_variants(summaries, counts[-1]):
        rows = [row["regrets"] for row in document["optuna"] if row["variant"] == name]
        curves[f"Optuna {name}"] = [(n + 1, statistics.fmean(r[n] for r in rows)) for n in range(9, max(counts))]
    for name in ("lockstep", "lockstep with a prior"):
        curves[name] = [(count, summaries[name][count]["mean"]) for count in counts]
    return curves


def axes(trials, ceiling, x_of, y_of):
    for tick in range(0, trials + 1, 15):
        yield f'<text x="{x_of(tick):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{tick}</text>'
    for tick in range(0, int(ceiling) + 1, 5):
        y = y_of(tick)
        yield f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#dddddd"/>'
        yield f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tick}</text>'
    yield f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">trials</text>'
    yield f'<text transform="translate(16 {HEIGHT / 2}) rotate(-90)" text-anchor="middle">mean % below the best</text>'


def plot(document, summaries, counts):
    curves = curves_of(document, summaries, counts)
    trials = max(counts)
    ceiling = 1.05 * max(y for curve in curves.values() for _, y in curve)

    def x_of(x):
        return LEFT + (WIDTH - LEFT - RIGHT) * x / trials

    def y_of(y):
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - y / ceiling)

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
             'font-size="12">', f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
             *axes(trials, ceiling, x_of, y_of)]
    for number, (name, curve) in enumerate(curves.items()):
        ours = name.startswith("lockstep")
        colour = "#000000" if name == "lockstep" else COLOURS[number % len(COLOURS)]
        points = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in curve)
        width = 2.5 if ours else 1.5
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{width}"/>')
        parts += [f'<circle cx="{x_of(x):.1f}" cy="{y_of(y):.1f}" r="4" fill="{colour}"/>' for x, y in curve if ours]
        parts.append(f'<text x="{WIDTH - RIGHT + 12}" y="{TOP + 16 + 18 * number}" fill="{colour}">{name}</text>')
    return "\n".join([*parts, "</svg>", ""])
