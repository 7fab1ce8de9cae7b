"""The picture of the recovery benchmark, as SVG by hand: one dot per kill on a logarithmic axis of seconds."""
import math

WIDTH, ROW = 760, 34
LEFT, RIGHT, TOP, BOTTOM = 210, 90, 16, 42
TICKS = (0.1, 0.3, 1, 3, 10, 30, 100)
COLOURS = {"Lockstep": "#000000"}
OTHER = "#4477aa"


def plot(rows):
    """rows: [(name, seconds of every kill that was recovered from, kills)]."""
    height = TOP + ROW * len(rows) + BOTTOM
    values = [value for _, seconds, _ in rows for value in seconds] or [1.0]
    ticks = [tick for tick in TICKS if min(values) / 3.5 < tick < max(values) * 3.5]
    low, high = math.log(min(min(values), ticks[0])), math.log(max(max(values), ticks[-1]))

    def x_of(seconds):
        return LEFT + (WIDTH - LEFT - RIGHT) * (math.log(seconds) - low) / ((high - low) or 1.0)

    floor = height - BOTTOM
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">',
             f'<rect width="{WIDTH}" height="{height}" fill="white"/>']
    for tick in ticks:
        parts.append(f'<line x1="{x_of(tick):.1f}" x2="{x_of(tick):.1f}" y1="{TOP}" y2="{floor}" stroke="#dddddd"/>')
        parts.append(f'<text x="{x_of(tick):.1f}" y="{floor + 16}" text-anchor="middle">{tick:g}</text>')
    parts.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{height - 8}" text-anchor="middle">'
                 'seconds from the kill to the next optimizer step</text>')
    for number, (name, seconds, kills) in enumerate(rows):
        y = TOP + ROW * (number + 0.5)
        colour = COLOURS.get(name, OTHER)
        parts.append(f'<text x="{LEFT - 10}" y="{y + 4:.1f}" text-anchor="end" fill="{colour}">{name}</text>')
        parts += [f'<circle cx="{x_of(value):.1f}" cy="{y:.1f}" r="4" fill="{colour}" fill-opacity="0.5"/>' for value in seconds]
        parts.append(f'<text x="{WIDTH - RIGHT + 12}" y="{y + 4:.1f}" fill="{colour}">{len(seconds)} of {kills}</text>')
    return "\n".join([*parts, "</svg>", ""])
