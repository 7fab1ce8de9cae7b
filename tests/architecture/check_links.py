"""Links between our own pages lead somewhere: every relative link of a Markdown page names a file (and a heading of it),
every page of docs/ is reached from docs/README.md, and every docs/... that a source file mentions exists.

    check_links.py SOURCE_DIR      check the tree
    check_links.py --self-test     the check notices a broken link, heading and mention
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

LINK = re.compile(r"\]\(([^)\s]+)\)")
MENTION = re.compile(r"(?<![\w/.])docs/[\w/-]+\.(?:md|svg|html|pdf)")
SOURCES = (".h", ".cpp", ".cu", ".cuh", ".py", ".cmake", ".sh", ".yaml", ".txt", ".md")
FOREIGN = ("validation/published", "docs/examples", "build", ".git", ".cache", "tests/architecture/check_links.py")


def tracked(root: pathlib.Path) -> list[pathlib.Path]:
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=root,
                            capture_output=True, text=True)
    if listed.returncode == 0:
        paths = [root / name for name in listed.stdout.split("\0") if name]
    else:
        paths = list(root.rglob("*"))
    return [path for path in paths if path.is_file()
            and not any(str(path.relative_to(root)).startswith(prefix) for prefix in FOREIGN)]


def prose(text: str) -> str:
    """The page without code: what stands in fences and backticks is not a link."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)
    return re.sub(r"`[^`\n]*`", "", text)


def headings(text: str) -> set[str]:
    """Anchors as GitHub makes them."""
    found = set()
    for line in re.sub(r"^```.*?^```", "", text, flags=re.S | re.M).splitlines():
        if match := re.match(r"#+\s+(.*)", line):
            kept = re.sub(r"[^\w\- ]", "", match.group(1).lower())
            found.add(kept.replace(" ", "-"))
    return found


def links_of(page: pathlib.Path) -> list[str]:
    return [link for link in LINK.findall(prose(page.read_text())) if not re.match(r"[a-z]+:", link)]


def broken_links(root: pathlib.Path, pages: list[pathlib.Path]) -> list[str]:
    problems = []
    for page in pages:
        for link in links_of(page):
            path, _, anchor = link.partition("#")
            target = page if not path else page.parent / path
            place = f"{page.relative_to(root)}: {link}"
            if not target.exists():
                problems.append(f"{place}: no such file")
            elif anchor and target.suffix == ".md" and anchor not in headings(target.read_text()):
                problems.append(f"{place}: no such heading")
    return problems


def unreached(root: pathlib.Path, pages: list[pathlib.Path]) -> list[str]:
    index = root / "docs" / "README.md"
    reached, waiting = {index}, [index]
    while waiting:
        page = waiting.pop()
        for link in links_of(page):
            target = pathlib.Path(os.path.normpath(page.parent / link.partition("#")[0]))
            if target.suffix == ".md" and target.exists() and target not in reached:
                reached.add(target)
                waiting.append(target)
    return [f"{page.relative_to(root)}: not reached from docs/README.md" for page in pages
            if root / "docs" in page.parents and page not in reached]


def stale_mentions(root: pathlib.Path, files: list[pathlib.Path]) -> list[str]:
    problems = []
    for path in files:
        if path.suffix not in SOURCES:
            continue
        for name in sorted(set(MENTION.findall(path.read_text(errors="replace")))):
            if not (root / name).exists():
                problems.append(f"{path.relative_to(root)}: {name}: no such file")
    return problems


def problems_of(root: pathlib.Path) -> list[str]:
    files = tracked(root)
    pages = [path for path in files if path.suffix == ".md"]
    assert root / "docs" / "README.md" in pages, "docs/README.md, the index, is missing"
    return broken_links(root, pages) + unreached(root, pages) + stale_mentions(root, files)


def self_test() -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        (root / "docs").mkdir()
        (root / "docs" / "README.md").write_text("[a](a.md#one-two) `[not](a-link)`\n")
        (root / "docs" / "a.md").write_text("# One: two\n[back](README.md)\n")
        assert problems_of(root) == [], problems_of(root)
        (root / "docs" / "b.md").write_text("[x](a.md#none) [y](gone.md)\n")
        (root / "x.cpp").write_text("// docs/" "gone.md tells how\n")
        assert problems_of(root) == ["docs/b.md: a.md#none: no such heading", "docs/b.md: gone.md: no such file",
                                     "docs/b.md: not reached from docs/README.md", "x.cpp: docs/" "gone.md: no such file"]


def main() -> int:
    if sys.argv[1] == "--self-test":
        self_test()
        return 0
    problems = problems_of(pathlib.Path(sys.argv[1]).resolve())
    print("\n".join(problems) or "all links lead somewhere")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
