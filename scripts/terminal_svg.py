"""Turns terminal output into an SVG picture: terminal_svg.py TITLE < text > picture.svg

The pictures in docs/ are made with it from real output, so they can be made again after a change.
"""
import html
import re
import sys

CELL_WIDTH, LINE_HEIGHT, MARGIN = 8.4, 19, 16
COLOURS = {"31": "#ff6b6b", "32": "#69db7c", "33": "#ffd43b", "34": "#74c0fc", "36": "#66d9e8", "90": "#868e96",
           "2": "#868e96"}


def spans(line):
    """Text with SGR colours as tspans."""
    out, colour, bold = [], None, False
    for piece in re.split(r"(\x1b\[[0-9;]*[A-Za-z])", line):
        code = re.fullmatch(r"\x1b\[([0-9;]*)m", piece)
        if code:
            for part in (code.group(1) or "0").split(";"):
                if part == "0":
                    colour, bold = None, False
                elif part == "1":
                    bold = True
                elif part in COLOURS:
                    colour = COLOURS[part]
        elif piece and not piece.startswith("\x1b"):
            style = (f' fill="{colour}"' if colour else "") + (' font-weight="bold"' if bold else "")
            out.append(f"<tspan{style}>{html.escape(piece)}</tspan>")
    return "".join(out)


def main():
    title = sys.argv[1]
    lines = [line.rstrip("\n").split("\r")[-1] for line in sys.stdin]
    plain = [re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", line) for line in lines]
    width = int(max(map(len, plain)) * CELL_WIDTH + 2 * MARGIN)
    height = int(len(lines) * LINE_HEIGHT + 2 * MARGIN + 28)
    print(f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">')
    print(f'<rect width="{width}" height="{height}" rx="8" fill="#1b1e24"/>')
    for index, colour in enumerate(("#ff6b6b", "#ffd43b", "#69db7c")):
        print(f'<circle cx="{MARGIN + 6 + 20 * index}" cy="18" r="6" fill="{colour}"/>')
    print(f'<text x="{width / 2}" y="22" fill="#adb5bd" font-family="sans-serif" font-size="13" text-anchor="middle">'
          f"{html.escape(title)}</text>")
    print('<g font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, \'DejaVu Sans Mono\', monospace" font-size="14" '
          'fill="#e9ecef" xml:space="preserve">')
    for index, line in enumerate(lines):
        # A stated length keeps columns straight whatever the viewer's font does with block and braille characters.
        length = f' textLength="{len(plain[index]) * CELL_WIDTH:.1f}" lengthAdjust="spacingAndGlyphs"' if plain[index] else ""
        print(f'<text x="{MARGIN}" y="{MARGIN + 40 + index * LINE_HEIGHT}"{length}>{spans(line)}</text>')
    print("</g></svg>")


main()
