"""Checks that a folder of lockstep/ depends only on folders above it in the flow order, and that what its #include
lines use is exactly what its CMakeLists.txt declares under DEPENDS.

Usage: check_dependencies.py REPOSITORY | --self-test
"""
import pathlib
import re
import sys
import tempfile

ORDER = ("base spec plan telemetry cost planner sim schedulers tune diagnose report serve elastic "
         "comm plugin kernels nn parallel checkpoint data engine cli").split()
# Torch-free: everything above `comm` in docs/architecture.md, comm itself (raw buffers), and the command line.
TORCH_FREE = set(ORDER[: ORDER.index("comm") + 1]) | {"cli"}

INCLUDE = re.compile(r'^\s*#\s*include\s+[<"]([^>"]+)[>"]', re.M)
DEPENDS = re.compile(r"DEPENDS\s+([a-z_\s]+?)(?:[A-Z_]{3,}|\))", re.S)


def check_includes(root: pathlib.Path, folder: pathlib.Path, allowed: set[str]) -> tuple[set[str], list[str]]:
    """The other folders whose headers this one includes, and what is wrong with them."""
    used, found, name = set(), [], folder.name
    for source in sorted(folder.rglob("*")):
        if source.suffix not in {".h", ".cpp", ".cu", ".cuh"}:
            continue
        where = source.relative_to(root)
        for target in INCLUDE.findall(source.read_text()):
            if target.startswith("lockstep/"):
                other = target.split("/")[1]
                used.add(other)
                if other not in allowed:
                    found.append(f"{where}: includes {target}, which is below {name} in the flow")
            elif name in TORCH_FREE and re.match(r"(torch|ATen|c10)/", target):
                found.append(f"{where}: includes {target}, but {name} is torch-free")
    return used - {name}, found


def check_declared(where: pathlib.Path, text: str, used: set[str], allowed: set[str], name: str) -> list[str]:
    """DEPENDS against the flow and against what is included."""
    text = re.sub(r"#.*", "", text)
    declared = {target for group in DEPENDS.findall(text) for target in group.split() if target in ORDER}
    found = [f"{where}: DEPENDS {target}, which is below {name} in the flow" for target in sorted(declared - allowed)]
    found += [f"{where}: DEPENDS lacks {target}, whose headers {name} includes" for target in sorted(used - declared)]
    found += [f"{where}: DEPENDS {target}, of which {name} includes no header"
              for target in sorted((declared & allowed) - used)]
    return found


def problems(root: pathlib.Path) -> list[str]:
    found = []
    for folder in sorted(p for p in (root / "lockstep").iterdir() if p.is_dir()):
        name = folder.name
        if name not in ORDER:
            found.append(f"lockstep/{name}: not a folder of the architecture; add it to ORDER and docs/architecture.md")
            continue
        allowed = TORCH_FREE if name == "cli" else set(ORDER[: ORDER.index(name) + 1])
        used, wrong = check_includes(root, folder, allowed)
        found += wrong
        cmake = folder / "CMakeLists.txt"
        if cmake.exists():
            found += check_declared(cmake.relative_to(root), cmake.read_text(), used, allowed, name)
    return found


def self_test() -> list[str]:
    """Each case must give exactly one problem."""
    cases = [{"spec/a.h": '#include "lockstep/planner/p.h"\n'}, {"cost/a.h": "#include <torch/types.h>\n"},
             {"base/CMakeLists.txt": "lockstep_folder(base SOURCES a.cpp DEPENDS spec)\n"},
             {"cli/a.cpp": '#include "lockstep/nn/model.h"\n'}, {"misc/a.h": ""},
             {"spec/CMakeLists.txt": "lockstep_folder(spec SOURCES a.cpp)", "spec/a.cpp": '#include "lockstep/base/b.h"\n'},
             {"spec/CMakeLists.txt": "lockstep_folder(spec SOURCES a.cpp DEPENDS base)", "spec/a.cpp": ""}]
    missed = []
    for files in cases:
        with tempfile.TemporaryDirectory() as temp:
            for path, text in files.items():
                file = pathlib.Path(temp) / "lockstep" / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)
            found = problems(pathlib.Path(temp))
            if len(found) != 1:
                missed.append(f"self-test: {files} gave {found}")
    return missed


if __name__ == "__main__":
    result = self_test() if sys.argv[1] == "--self-test" else problems(pathlib.Path(sys.argv[1]))
    print("\n".join(result) or "dependencies: clean")
    sys.exit(1 if result else 0)
