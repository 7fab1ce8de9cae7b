"""Every LOCKSTEP_* environment variable in the code is on the page of environment variables, and the reverse.

    check_environment_page.py SOURCE_DIR      check the tree
    check_environment_page.py --self-test     the check notices a missing and a stale variable
"""
import pathlib
import re
import sys

PAGE = "docs/reference/environment.md"
NAME = r"(LOCKSTEP_[A-Z0-9_]+)"
# A product source names a variable in a string of its own. Tests and tools also pass other names around, so there only
# what is read from the environment counts.
NAMED = re.compile(rf'"{NAME}(?=["=])')
READ = re.compile(rf'(?:getenv\(|environ\.get\(|environ\[)"{NAME}"')
SHELL = re.compile(rf"\$\{{{NAME}:?[-=?+]")
CMAKE = re.compile(rf"\$(?:ENV|env)\{{{NAME}\}}")
PREFIX = re.compile(r'from_torchrun_style\(lookup, "(LOCKSTEP_)"\)')
TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def variables_in_code(root: pathlib.Path) -> dict[str, str]:
    """Variable -> a file that names it."""
    found: dict[str, str] = {}
    for top, pattern in (("lockstep", NAMED), ("python", NAMED), ("tests", READ), ("bench", READ), ("validation", READ)):
        for path in sorted((root / top).rglob("*")):
            if path.suffix not in (".h", ".cpp", ".cu", ".cuh", ".py") or path == pathlib.Path(__file__).resolve():
                continue
            text = path.read_text(errors="replace")
            for name in pattern.findall(text):
                found.setdefault(name, str(path))
            for prefix in PREFIX.findall(text):
                for name in TORCHRUN:
                    found.setdefault(prefix + name, str(path))
    scripts = sorted((root / "scripts").glob("*.sh"))
    for path in [*scripts, root / "CMakePresets.json", *sorted((root / "cmake").glob("*.cmake"))]:
        for pattern in (SHELL, CMAKE):
            for name in pattern.findall(path.read_text()):
                found.setdefault(name, str(path))
    return {name: place for name, place in found.items() if not name.startswith("LOCKSTEP_KNOB_")}


def variables_on_page(text: str) -> set[str]:
    """Names in the first column of its tables."""
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    names = {name for row in rows for name in re.findall(rf"`{NAME}`", row)}
    return names


def differences(code: dict[str, str], page: set[str]) -> list[str]:
    missing = [f"{name} ({code[name]}) is not on {PAGE}" for name in sorted(code.keys() - page)]
    stale = [f"{name} is on {PAGE}, but nothing reads or sets it" for name in sorted(page - code.keys())]
    return missing + stale


def self_test() -> None:
    assert differences({"LOCKSTEP_A": "a.cpp"}, {"LOCKSTEP_A"}) == []
    assert differences({"LOCKSTEP_A": "a.cpp"}, set()) == [f"LOCKSTEP_A (a.cpp) is not on {PAGE}"]
    assert differences({}, {"LOCKSTEP_B"}) == [f"LOCKSTEP_B is on {PAGE}, but nothing reads or sets it"]
    assert variables_on_page("| `LOCKSTEP_A`, `LOCKSTEP_B` | x |\n`LOCKSTEP_C` in a sentence") == {"LOCKSTEP_A", "LOCKSTEP_B"}
    assert NAMED.findall('getenv("LOCKSTEP_A"), "LOCKSTEP_B=1", "LOCKSTEP_C and more"') == ["LOCKSTEP_A", "LOCKSTEP_B"]
    assert SHELL.findall("${LOCKSTEP_A:-x} ${LOCKSTEP_B}") == ["LOCKSTEP_A"]


def main() -> int:
    if sys.argv[1] == "--self-test":
        self_test()
        return 0
    root = pathlib.Path(sys.argv[1]).resolve()
    code = variables_in_code(root)
    assert len(code) > 20, f"only {len(code)} variables were found in the code: the search is broken"
    problems = differences(code, variables_on_page((root / PAGE).read_text()))
    print("\n".join(problems) or f"{len(code)} environment variables, all of them on {PAGE}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
